import { spawnSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

const { values: options } = parseArgs({ options: { minutes: { type: 'string', default: '5' } } });
const minutes = Number(options.minutes);
if (!(minutes > 0)) {
  throw new Error(`--minutes must be a positive number, not ${options.minutes}`);
}

const properties = ['test/unit', 'test/e2e']
  .flatMap((folder) => readdirSync(folder, { recursive: true }).map((path) => join(folder, path)))
  .filter(
    (path) => path.endsWith('spec.ts') && readFileSync(path, 'utf8').includes("from 'fast-check'"),
  );

const end = Date.now() + minutes * 60_000;
let rounds = 0;
let isGreen = true;
while (isGreen && Date.now() < end) {
  rounds++;
  isGreen = passes(randomInt(2 ** 31));
}
console.log(
  `${rounds} rounds of ${properties.length} files, ${isGreen ? 'all passed' : 'the last one failed'}`,
);
process.exitCode = isGreen ? 0 : 1;

/**
 * Runs all property tests with the seed. After a failure prints the report and the command that
 * repeats it.
 */
function passes(seed) {
  const { status, stderr } = spawnSync('npm', ['run', '-s', 'jest', '--', ...properties], {
    env: { ...process.env, SEED: String(seed), FORCE_COLOR: '0' },
    stdio: ['ignore', 'inherit', 'pipe'],
    encoding: 'utf8',
    maxBuffer: Infinity,
  });
  if (status !== 0) {
    const failed = new Set([...stderr.matchAll(/^FAIL (\S+)/gm)].map(([, path]) => path));
    console.log(
      `${stderr}\nSeed ${seed} fails. To repeat it: SEED=${seed} npm run jest -- ${[...failed].join(' ')}`,
    );
  }
  return status === 0;
}
