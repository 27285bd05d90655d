import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { batchGain } from './figures/batch-gain.js';
import { endpoint } from './figures/endpoint.js';
import { engine } from './figures/engine.js';
import { isolation } from './figures/isolation.js';
import { loneCall } from './figures/lone-call.js';
import { overload } from './figures/overload.js';
import { precedence } from './figures/precedence.js';
import { registry } from './figures/registry.js';
import { remoteCall } from './figures/remote-call.js';
import { besideNx } from './figures/nx.js';
import { callCost } from './figures/call-cost.js';
import { memory } from './figures/memory.js';
import { neighbours } from './figures/neighbours.js';
import { refusals } from './figures/refusals.js';
import { route } from './figures/route.js';
import { saturation } from './figures/saturation.js';
import { chart } from './harness/chart.js';
import type { Figure, Measurement } from './harness/measurement.js';
import { full, type Plan, quick } from './harness/plan.js';
import { againstRecorded, record, type Recorded } from './harness/regression.js';
import { regressionText } from './harness/regression-report.js';
import { table } from './harness/report.js';

const figures: Record<Figure, (plan: Plan) => Promise<Measurement[]>> = {
  P1: saturation,
  P2: engine,
  P3: loneCall,
  P4: endpoint,
  P5: endpoint,
  P6: batchGain,
  P7: isolation,
  P8: overload,
  P9: precedence,
  P10: registry,
  P11: remoteCall,
  P12: neighbours,
  P13: route,
  P14: callCost,
  P15: besideNx,
  P16: memory,
  P17: refusals,
};

const { values: options } = parseArgs({
  options: {
    only: { type: 'string', default: Object.keys(figures).join() },
    quick: { type: 'boolean', default: false },
    record: { type: 'boolean', default: false },
  },
});

const chosen = new Set(options.only.split(',').map((name) => figures[name as Figure]));
const measurements: Measurement[] = [];
for (const measure of chosen) {
  const start = performance.now();
  const measured = await measure(options.quick ? quick : full);
  const names = [...new Set(measured.map(({ figure }) => figure))].join(', ');
  console.error(`${names || 'left out'}: ${Math.round((performance.now() - start) / 1000)} s`);
  measurements.push(...measured);
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
