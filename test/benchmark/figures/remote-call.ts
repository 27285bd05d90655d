import { ServingService } from 'nestjs-serving';
import { firstValueFrom } from 'rxjs';
import { NatsServer, natsMissing } from '../../fixtures/cluster/nats-server.js';
import { rowsPerSecond } from '../harness/callers.js';
import { typicalLatency } from '../harness/latency.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { Process } from '../http/process.js';
import { randomRows } from '../models/random.js';
import { startCaller } from '../remote/node.js';
import type { Side } from '../remote/process.js';
import { rawClient } from '../remote/raw.js';
import { natsWay, tcpWay, unixWay, type Way } from '../remote/way.js';

type Call = () => Promise<unknown>;

const sizes = [
  { size: '3 KB', floats: 768, callers: 64 },
  { size: '300 KB', floats: 76_800, callers: 16 },
];

/**
 * P11: what the way to another node costs beside the transport that it takes, and what more nodes
 * bring.
 */
export async function remoteCall(plan: Plan): Promise<Measurement[]> {
  return [
    ...(await byTcp(plan)),
    ...(await byNats(plan)),
    ...(await overSockets(plan)),
    await scaling(plan),
  ];
}

async function byTcp(plan: Plan): Promise<Measurement[]> {
  return by('TCP', await tcpWay(), await tcpWay(), plan);
}

async function byNats(plan: Plan): Promise<Measurement[]> {
  if (natsMissing) {
    console.error(`\nP11 IS MEASURED WITHOUT NATS. ${natsMissing}\n`);
    return [];
  }
  const server = await NatsServer.start();
  const way = natsWay(server.url);
  const measurements = await by('NATS', way, way, plan);
  await server.end();
  return measurements;
}

async function by(name: string, way: Way, rawWay: Way, plan: Plan): Promise<Measurement[]> {
  const owners = await Promise.all([ownerOf('serving', way), ownerOf('raw', rawWay)]);
  const client = rawClient(rawWay);
  const app = await startCaller([way]);
  const measurements: Measurement[] = [];
  for (const { size, floats, callers } of sizes) {
    const row = randomRows(1, [floats]);
    const bytes = new Uint8Array(row.data.buffer);
    const serving = (): Promise<unknown> => app.get(ServingService).batchedRun('echo', row);
    const raw = (): Promise<unknown> => firstValueFrom(client.send('echo', bytes));
    const rates = await interleave(plan.rounds, {
      serving: () => callsPerSecond(callers, plan, serving),
      raw: () => callsPerSecond(callers, plan, raw),
    });
    const latencies = await interleave(plan.rounds, {
      serving: () => typicalLatency(plan.seconds / 2, serving),
      raw: () => typicalLatency(plan.seconds / 2, raw),
    });
    const title = `${size} to another node and back by ${name}`;
    measurements.push(
      compare({
        figure: 'P11',
        title: `${title}, ${callers} callers`,
        aim: { atLeast: 0.8 },
        by: 'ratio',
        sides: rates,
        sideUnit: 'calls/s',
      }),
      compare({
        figure: 'P11',
        title: `p50 of a lone call, ${title}`,
        by: 'difference',
        better: 'lower',
        sides: latencies,
        sideUnit: 'ms',
      }),
    );
  }
  await client.close();
  await app.close();
  await Promise.all(owners.map((owner) => owner.close()));
  return measurements;
}

/** Calls over a Unix socket beside those over TCP. */
async function overSockets(plan: Plan): Promise<Measurement[]> {
  const ways = { 'Unix socket': unixWay(), TCP: await tcpWay() };
  const owners = await Promise.all(Object.values(ways).map((way) => ownerOf('serving', way)));
  const apps = await Promise.all(Object.values(ways).map((way) => startCaller([way])));
  const measurements: Measurement[] = [];
  for (const { size, floats, callers } of sizes) {
    const row = randomRows(1, [floats]);
    const [socketCall, tcpCall] = apps.map(
      (app) => (): Promise<unknown> => app.get(ServingService).batchedRun('echo', row),
    );
    const sides = await interleave(plan.rounds, {
      'Unix socket': () => callsPerSecond(callers, plan, socketCall!),
      TCP: () => callsPerSecond(callers, plan, tcpCall!),
    });
    const title = `${size} to a process of the same machine and back by a Unix socket`;
    measurements.push(
      compare({ figure: 'P11', title, by: 'ratio', better: 'higher', sides, sideUnit: 'calls/s' }),
    );
  }
  await Promise.all([...apps, ...owners].map((each) => each.close()));
  return measurements;
}

/** Of a model that is all that its node has to do. */
async function scaling(plan: Plan): Promise<Measurement> {
  const ways = await Promise.all([1, 2, 3, 4].map(() => tcpWay()));
  const owners = await Promise.all(ways.map((way) => ownerOf('serving', way)));
  const apps = await Promise.all([startCaller(ways), startCaller(ways.slice(0, 1))]);
  const [four, one] = apps.map(
    (app) => (): Promise<unknown> => app.get(ServingService).batchedRun('busy', 1),
  );
  const sides = await interleave(plan.rounds, {
    'four nodes': () => callsPerSecond(64, plan, four!),
    'one node': () => callsPerSecond(16, plan, one!),
  });
  await Promise.all([...apps, ...owners].map((each) => each.close()));
  return compare({
    figure: 'P11',
    title: 'four nodes of a busy model',
    by: 'ratio',
    better: 'higher',
    sides,
    sideUnit: 'calls/s',
  });
}

function ownerOf(side: Side, way: Way): Promise<Process<never, never>> {
  return Process.start(new URL('../remote/process.js', import.meta.url), side, JSON.stringify(way));
}

async function callsPerSecond(callers: number, { seconds }: Plan, call: Call): Promise<number> {
  const measure = (rows: number): Promise<number> =>
    rowsPerSecond({ callers, rowsPerCall: 1, rows, warmup: callers }, call);
  return measure(Math.ceil((await measure(2 * callers)) * seconds));
}
