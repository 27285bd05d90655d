// Builds and runs a sample: npm run sample 01, or npm run sample 06-cluster -- --nats nats://localhost:4222
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const [name = '', ...args] = process.argv.slice(2);
const samples = readdirSync(new URL('../sample', import.meta.url)).filter((folder) =>
  /^\d\d-/.test(folder),
);
const [sample, ...others] = samples.filter((folder) => name && folder.startsWith(name));

if (!sample || others.length > 0) {
  console.error(`npm run sample NAME, or the beginning of a NAME:\n  ${samples.join('\n  ')}`);
  process.exitCode = 1;
} else {
  const root = fileURLToPath(new URL('..', import.meta.url));
  const run = (command) => execFileSync(command, { cwd: root, stdio: 'inherit', shell: true });
  if (!existsSync(new URL('../dist', import.meta.url))) {
    run('npm run -s build');
  }
  run(`npx tsc -p sample/${sample}`);
  const main = new URL(`../sample/${sample}/dist/main.js`, import.meta.url);
  process.argv = [process.execPath, fileURLToPath(main), ...args];
  await import(main);
}
