import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { type INestApplicationContext, Logger } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import {
  isServingError,
  NodeLostError,
  type ServingDefinition,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { ServingCluster, ServingClusterModule } from 'nestjs-serving/distribution';
import { openTransport } from '../../../lib/extensions/distribution/open-transport.js';
import type { ServingTransport } from '../../../lib/extensions/distribution/transport.js';
import { Kind } from '../../../lib/extensions/distribution/wire/prelude.js';
import { MemoryNetwork } from '../../../lib/extensions/distribution/memory-network.js';
import { until } from '../../fixtures/async/awaited.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { describeWirings } from '../../fixtures/cluster/wirings.js';

/** Which packets are lost, although both nodes are alive and know each other. */
let isLost: (kind: number) => boolean;
/** The kinds of the packets that were lost. */
let lost: number[];
/** The streams of the serving that have begun and not ended. */
let open: number;
let runs: number;
let apps: INestApplicationContext[];

beforeEach(() => {
  Logger.overrideLogger(false);
  isLost = () => false;
  lost = [];
  open = 0;
  runs = 0;
  apps = [];
});

afterEach(async () => {
  isLost = () => false;
  await Promise.all(apps.map((app) => app.close()));
});

const loses = (packet: Uint8Array): boolean => {
  const kind = packet[4]!;
  const isGone = isLost(kind);
  if (isGone) {
    lost.push(kind);
  }
  return isGone;
};

function losing(transport: ServingTransport): ServingTransport {
  const send = transport.send.bind(transport);
  const broadcast = transport.broadcast.bind(transport);
  transport.send = (to, packet, free) => (loses(packet) ? undefined : send(to, packet, free));
  transport.broadcast = (packet) => (loses(packet) ? undefined : broadcast(packet));
  return transport;
}

async function start(
  transport: ServingTransport,
  servings: readonly ServingDefinition[] = [],
): Promise<INestApplicationContext> {
  const root = {
    module: class {},
    imports: [
      ServingModule.forRoot({ servings }),
      ServingClusterModule.forRoot({
        transport: losing(transport),
        heartbeat: 50,
        // So long that no test ends by it, nor by the limit of a call.
        downAfter: 600_000,
        requestTimeout: 600_000,
        drainTimeout: 1000,
      }),
    ],
  };
  const app = await NestFactory.createApplicationContext(root, { logger: false });
  apps.push(app);
  return app;
}

async function untilFound(app: INestApplicationContext): Promise<ServingService> {
  const { selector } = app.get(ServingCluster);
  await until(() => selector.candidates('steps').length > 0);
  return app.get(ServingService);
}

const steps: ServingDefinition = {
  name: 'steps',
  batchSize: 1,
  partitions: 16,
  model: {
    useFactory: () =>
      async function* ([count]: number[]) {
        open++;
        try {
          for (let step = 0; step < count!; step++) {
            yield [step];
            await sleep(2);
          }
        } finally {
          open--;
        }
      },
  },
};
const sum: ServingDefinition = {
  name: 'sum',
  recovery: { idempotent: true },
  model: {
    useFactory: () => (rows: number[]) => {
      runs++;
      return rows.map((row) => row + 1);
    },
  },
};
const servings = [steps, sum];

async function read(stream: AsyncIterable<unknown>): Promise<number> {
  let events = 0;
  for await (const _ of stream) {
    events++;
  }
  return events;
}

async function* one() {
  yield 1;
}

async function* two() {
  yield 1;
  await sleep(2);
  yield 2;
}

/** Loses the next packets of the kind. */
function loseNext(kind: number, times = 1): void {
  isLost = (each) => each === kind && lost.length < times;
}

describe('Packets that are lost between nodes that are alive', () => {
  let calls: ServingService;

  beforeEach(async () => {
    const network = new MemoryNetwork({ connections: false });
    await start(network.transport(), servings);
    calls = await untilFound(await start(network.transport()));
  });

  it.each([
    ['request', Kind.request],
    ['end', Kind.end],
    ['last chunk', Kind.chunk],
  ])('[C3] A stream whose %s is lost ends with an error at both sides', async (_, kind) => {
    loseNext(kind);

    const error = await failureOf(read(calls.stream('steps', 1)));

    expect(lost).toEqual([kind]);
    expect(error).toBeInstanceOf(NodeLostError);
    await until(() => open === 0);
  });

  it('[C3] A stream goes on when all its credits are lost', async () => {
    loseNext(Kind.credit, Infinity);

    expect(await read(calls.stream('steps', 200))).toBe(200);
    expect(lost.length).toBeGreaterThan(3);
  });

  it('[C3] A stream that is left ends at the other side, too, when its cancellation was lost', async () => {
    loseNext(Kind.cancel);
    const stream = calls.stream('steps', 1e9);
    for await (const _ of stream) {
      break;
    }

    await until(() => lost.length > 0);
    await until(() => open === 0);
  });

  it.each([
    ['element', Kind.input],
    ['end', Kind.inputEnd],
  ])('[C3] A stream ends when the %s of its lazy input is lost', async (_, kind) => {
    loseNext(kind);

    const error = await failureOf(read(calls.stream('sum', two())));

    expect(lost).toEqual([kind]);
    expect(isServingError(error)).toBe(true);
  });

  it('[C3] A stream runs again when the first request for its lazy input is lost', async () => {
    loseNext(Kind.inputCredit);
    expect(await read(calls.stream('sum', one()))).toBe(1);
    expect(lost).toEqual([Kind.inputCredit]);
  });

  it.each([
    ['request', Kind.request, 1],
    ['reply', Kind.reply, 2],
  ])('[C3] A call whose %s is lost runs again where it may', async (_, kind, expected) => {
    loseNext(kind);

    expect(await calls.batchedRun('sum', 1)).toBe(2);
    expect(lost).toEqual([kind]);
    expect(runs).toBe(expected);
  });
});

describeWirings('Packets that are lost for 300 ms', (wiring) => {
  it('[C3] Every stream is whole or ends with a typed error, at both sides', async () => {
    const node = await start(await openTransport(wiring.options([])), servings);
    const { port } = node.get(ServingCluster)['transport'] as { readonly port?: number };
    const peers = port === undefined ? [] : [port];
    const calls = await untilFound(await start(await openTransport(wiring.options(peers))));
    const streams = Array.from({ length: 16 }, async (_, i) => {
      await sleep(25 * i);
      return read(calls.stream('steps', 100));
    });
    const outcomes = Promise.allSettled(streams);

    await sleep(100);
    isLost = () => true;
    await sleep(300);
    isLost = () => false;

    const failures = (await outcomes).filter(({ status }) => status === 'rejected');
    const whole = (await outcomes).filter(({ status }) => status === 'fulfilled');
    expect(failures.length).toBeGreaterThan(0);
    expect(failures).toEqual(
      failures.map(() => ({ status: 'rejected', reason: expect.any(NodeLostError) })),
    );
    expect(whole).toEqual(whole.map(() => ({ status: 'fulfilled', value: 100 })));
    await until(() => open === 0);
  });
});
