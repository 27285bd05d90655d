import { parseArgs } from 'node:util';
import { failuresOf, table } from './report.js';
import { soak } from './soak.js';
import { allSubjects } from './subjects/all.js';
import { watchEventLoop } from './watchdog.js';

const { values } = parseArgs({
  options: {
    rows: { type: 'string', default: '10000000' },
    minutes: { type: 'string', default: '10' },
    rounds: { type: 'string', default: '20' },
    seed: { type: 'string', default: String(Date.now() % 2 ** 20) },
  },
});
const [rows, minutes, rounds, seed] = [values.rows, values.minutes, values.rounds, values.seed].map(
  Number,
) as [number, number, number, number];

console.log(`seed ${seed}`);
const unwatched = watchEventLoop(60);
const report = await soak({
  rows,
  minutes,
  rounds,
  seed,
  subjects: allSubjects,
  log: (line) => console.log(line),
});
await unwatched();
console.log(table(report));
const failures = failuresOf(report);
if (failures.length > 0) {
  console.error(`failed (--seed ${seed}): ${failures.join(', ')}`);
  process.exitCode = 1;
}
