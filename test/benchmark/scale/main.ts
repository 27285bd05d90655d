import { once } from 'node:events';
import { setTimeout } from 'node:timers/promises';
import type { ServingCounters } from 'nestjs-serving';
import { freePort } from '../../fixtures/http/free-port.js';
import { cpuOf } from '../harness/cpu-of.js';
import { columns, numberText } from '../harness/report.js';
import { summarize } from '../harness/statistics.js';
import { startGenerator } from '../http/contender.js';
import { digitsPost } from '../http/posts.js';
import { capacityOf, type Costs } from './capacity.js';
import { Processes } from './processes.js';

/** What one load has shown; costs in microseconds of CPU time. */
interface Sample extends Costs {
  readonly rate: number;
  readonly p50: number;
  readonly p99: number;
  readonly rowsPerBatch: number;
}

const post = { ...digitsPost, path: '/digits' };
const load = { kind: 'closed', connections: 128, seconds: 1.5 } as const;
const rounds = 5;

const generator = await startGenerator();
const lines: string[][] = [];
let costs: Costs | undefined;
for (const webProcesses of [1, 2, 4]) {
  const samples = await measure(webProcesses);
  const median = (value: (sample: Sample) => number): number =>
    summarize(samples.map(value)).median;
  lines.push([
    `${webProcesses}`,
    ...[
      median(({ rate }) => rate),
      median(({ p50 }) => p50),
      median(({ p99 }) => p99),
      median(({ rowsPerBatch }) => rowsPerBatch),
      median(({ web }) => web),
      median(({ model }) => model),
      median(({ partition }) => partition),
    ].map(numberText),
  ]);
  // The last run has the fullest batches.
  costs = {
    web: median(({ web }) => web),
    model: median(({ model }) => model),
    partition: median(({ partition }) => partition),
  };
}
await generator.close();

const headline = [
  'web processes',
  'req/s',
  'p50 ms',
  'p99 ms',
  'rows/batch',
  'web µs/req',
  'model main µs/row',
  'partition µs/row',
];
console.log(columns([headline, ...lines]));
console.log();
const computed = [16, 64].map((cores) => {
  const { webs, models, rate } = capacityOf(costs!, cores);
  return [cores, webs, models, Math.round(rate)].map(String);
});
console.log(
  columns([['cores', 'web processes', 'model processes', 'req/s computed'], ...computed]),
);

async function measure(webProcesses: number): Promise<Sample[]> {
  const [modelPort, webPort] = [await freePort(), await freePort()];
  Object.assign(process.env, { MODEL_PORT: modelPort, WEB_PORT: webPort });
  const processes = new Processes(webProcesses);
  await answering(webPort);
  await generator.ask({ port: webPort, post, load: { ...load, seconds: 3 * webProcesses } });
  const samples: Sample[] = [];
  for (let round = 0; round < rounds; round++) {
    const before = await stateOf(processes);
    const { rate, p50, p99, requests } = await generator.ask({ port: webPort, post, load });
    const after = await stateOf(processes);
    const served = after.rows - before.rows;
    samples.push({
      rate,
      p50,
      p99,
      rowsPerBatch: served / (after.batches - before.batches),
      web: (after.web - before.web) / requests,
      model: (after.main - before.main) / served,
      partition: (after.others - before.others) / served,
    });
  }
  await processes.stop();
  return samples;
}

/** CPU time so far of the web processes, and of the model's: its main thread, and the others. */
async function stateOf({ webs, models }: Processes) {
  const [model] = models;
  const counters = once(model!, 'message');
  model!.send('counters');
  const [{ rows, batches }] = (await counters) as [ServingCounters];
  const { main, all } = cpuOf(model!.pid!);
  const web = [...webs].reduce((sum, { pid }) => sum + cpuOf(pid!).all, 0);
  return { rows, batches, main, others: all - main, web };
}

async function answering(port: number): Promise<void> {
  for (let tries = 0; tries < 100; tries++) {
    const response = await fetch(`http://127.0.0.1:${port}${post.path}`, {
      method: 'POST',
      headers: { 'content-type': post.type },
      body: Buffer.from(post.body),
    }).catch(() => undefined);
    if (response?.ok) {
      return;
    }
    await setTimeout(100);
  }
  throw new Error(`no answer from port ${port}`);
}
