import { fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { chart } from './harness/chart.js';
import type { Measurement } from './harness/measurement.js';
import { againstRecorded, record, type Recorded } from './harness/regression.js';
import { regressionText } from './harness/regression-report.js';
import { table } from './harness/report.js';

/** In this order; P5 is measured together with P4. */
const figures =
  'P1,P2,P3,P4,P6,P7,P8,P9,P10,P11,P12,P13,P14,P15,P16,P17,P18,P19,P20,P21,P22,P23,P24,P25,P26,P27,P28,P29';

const { values: options } = parseArgs({
  options: {
    only: { type: 'string', default: figures },
    quick: { type: 'boolean', default: false },
    record: { type: 'boolean', default: false },
  },
});

const chosen = new Set(options.only.replace('P5', 'P4').split(','));
const measurements: Measurement[] = [];
for (const name of chosen) {
  const start = performance.now();
  const measured = await measure(name);
  const names = [...new Set(measured.map(({ figure }) => figure))].join(', ');
  console.error(`${names || 'left out'}: ${Math.round((performance.now() - start) / 1000)} s`);
  measurements.push(...measured);
}

async function measure(figure: string): Promise<Measurement[]> {
  const script = fileURLToPath(new URL('./one-figure.js', import.meta.url));
  const child = fork(script, [figure, options.quick ? 'quick' : 'full']);
  const failed = once(child, 'exit').then(([code]) => {
    throw new Error(`${figure} ended with code ${code}`);
  });
  const [measured] = await Promise.race([once(child, 'message'), failed]);
  failed.catch(() => {});
  return measured as Measurement[];
}

const machine = `${availableParallelism()} x ${cpus()[0]?.model}, Node ${process.version}`;
const folder = 'bench-results';
mkdirSync(folder, { recursive: true });
writeFileSync(
  join(folder, 'benchmark.json'),
  JSON.stringify({ machine, options, measurements }, null, 2),
);
writeFileSync(join(folder, 'benchmark.svg'), chart(machine, measurements));
console.log(
  `${table(measurements)}\n\n${machine}\n${folder}/benchmark.json, ${folder}/benchmark.svg`,
);

const file = 'test/benchmark/recorded.json';
const recorded = JSON.parse(readFileSync(file, 'utf8')) as Recorded;
if (options.record) {
  writeFileSync(file, `${JSON.stringify(record(measurements, machine, recorded), null, 2)}\n`);
} else {
  const verdicts = againstRecorded(measurements, recorded);
  console.log(`\n${regressionText(verdicts, file)}`);
  if (verdicts.some(({ outcome }) => outcome === 'worse')) {
    process.exitCode = 1;
  }
}
