import { availableParallelism, cpus } from 'node:os';
import { parseArgs } from 'node:util';
import { randomFrom } from './random.js';
import { row, title } from './report.js';
import { scenarios } from './scenarios.js';
import { Stage } from './stage.js';

/** Milliseconds between two bad things. */
const PAUSE = 300;

const { values: options } = parseArgs({
  options: {
    only: { type: 'string', default: scenarios.map(({ name }) => name).join() },
    seconds: { type: 'string', default: '20' },
    seed: { type: 'string', default: `${Date.now() % 1e6}` },
  },
});

const chosen = options.only.split(',');
const unknown = chosen.filter((name) => !scenarios.some((scenario) => scenario.name === name));
if (unknown.length > 0) {
  throw new Error(
    `There is no scenario ${unknown.join()}; there are ${scenarios.map(({ name }) => name).join()}`,
  );
}
/** Some rounds end only when a partition has been started again. */
const limit = (10 * Number(options.seconds) + 120) * 1000;
const rounds = Math.ceil((Number(options.seconds) * 1000) / PAUSE);
console.log(
  `seed ${options.seed}, ${availableParallelism()} x ${cpus()[0]?.model}, Node ${process.version}\n\n${title}`,
);
for (const scenario of scenarios.filter(({ name }) => chosen.includes(name))) {
  const random = randomFrom(Number(options.seed));
  const outcome = await Stage.play(scenario, {
    rounds,
    pause: PAUSE,
    isPatient: true,
    random,
    limit,
  });
  const broken = outcome.findings.filter(({ isKept }) => !isKept);
  console.log(row(scenario, outcome));
  outcome.notes.forEach((note) => console.log(`  ${note}`));
  for (const { words, seen } of broken) {
    console.log(`  BROKEN: ${words}; seen: ${JSON.stringify(seen)}`);
    process.exitCode = 1;
  }
}
// What hangs may hang on.
process.exit();
