// Builds and runs a sample, and says what it is doing: npm run sample 01, or npm run sample 06-cluster -- --nats nats://localhost:4222.
// `npm run demo` is `npm run sample demo`.
import { execSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const DEMO = 'demo';
const root = new URL('../', import.meta.url);
const samples = readdirSync(new URL('sample', root)).filter((folder) => /^\d\d-/.test(folder));

const [name, ...args] = process.argv.slice(2);
const matches = [...samples, DEMO].filter((folder) => name && folder.startsWith(name));
if (matches.length === 1) {
  await run(matches[0]);
} else {
  const list = samples.map((folder) => `  ${folder.padEnd(20)} ${purposeOf(folder)}`).join('\n');
  const usage = `npm run sample NAME, or the beginning of a NAME:\n${list}`;
  if (name) {
    console.error(`There is no sample "${name}", or more than one. ${usage}`);
    process.exitCode = 1;
  } else {
    console.log(usage);
  }
}

async function run(sample) {
  if (sample === DEMO || !existsSync(new URL('dist', root))) {
    step('Building nestjs-serving: takes some 20 seconds, on a slow machine a few minutes.');
    build('npm run -s build');
  }
  // The demo measures the applications of two samples.
  for (const folder of sample === DEMO ? [...samples.slice(0, 2), DEMO] : [sample]) {
    step(`Building sample/${folder}.`);
    build(`npx tsc -p sample/${folder}`);
  }
  step(`Starting sample/${sample}.`);
  const main = new URL(`sample/${sample}/dist/${sample === DEMO ? DEMO : 'main'}.js`, root);
  process.argv = [process.execPath, fileURLToPath(main), ...args];
  await import(main);
}

/** Steps go to stderr, so that stdout has what the sample prints and nothing else. */
function step(text) {
  console.error(text);
}

function build(command) {
  execSync(command, { cwd: root, stdio: 'inherit' });
}

/** The first sentence of the sample's README. */
function purposeOf(folder) {
  const [, text] = /^# .*\n\n([^]*?)\.\s/.exec(
    readFileSync(new URL(`sample/${folder}/README.md`, root), 'utf8'),
  );
  return text.replaceAll('\n', ' ').replace(/\[(.*?)\]\(.*?\)/g, '$1');
}
