import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { busyBatcher, runAll } from '../../fixtures/batching/busy-batcher.js';
import {
  HeldBatcher,
  type HeldBatcherOptions,
  type NamedRequest,
  NO_LIMIT,
} from '../../fixtures/batching/held-batcher.js';
import { NamedQueue } from '../../fixtures/batching/named-queue.js';
import { later, nextTimer, timers, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { DeadlineExceededError } from 'nestjs-serving';

const KINDS = [
  { rows: 'rows that cost 1', budget: undefined },
  { rows: 'rows with a cost that nothing limits', budget: NO_LIMIT },
];

describe.each(KINDS)('Batcher: the order of $rows', ({ budget }) => {
  useVirtualTime();

  const busy = (options: HeldBatcherOptions = {}): Promise<HeldBatcher> =>
    busyBatcher({ batchSize: 1, maxRows: 20_000, budget, ...options });

  it('[7.4] [4.4] No row runs before one that arrived earlier, after a head start for each level of priority', async () => {
    const anAsk = fc.record({
      after: fc.nat({ max: 12 }),
      size: fc.integer({ min: 1, max: 4 }),
      priority: fc.integer({ min: -2, max: 2 }),
    });
    await fc.assert(
      fc.asyncProperty(
        fc.array(anAsk, { minLength: 2, maxLength: 20 }),
        fc.integer({ min: 1, max: 4 }),
        async (asks, batchSize) => {
          const ageing = 10;
          const turnOf = ({ arrivedAt, priority }: NamedRequest): number =>
            arrivedAt - priority * ageing;
          const asked: NamedRequest[] = [];
          const passed: string[] = [];
          const batcher = await busy({
            batchSize,
            ageing,
            onDispatch: () => asked.length > 0 && check(),
          });
          const check = (): void => {
            const { parts } = batcher.started.at(-1)!;
            const latest = Math.max(...parts.map(({ request }) => turnOf(request)));
            const before = asked.filter(
              (request) => request.waiting > 0 && turnOf(request) < latest,
            );
            passed.push(...before.map(({ name }) => name));
          };
          for (const [i, { after, size, priority }] of asks.entries()) {
            asked.push(batcher.ask(`${i}.`, { size, priority }));
            await later(after);
            if (i % 2 === 1) {
              batcher.finishBatch();
              await later();
            }
          }
          await runAll(batcher);

          expect(passed).toEqual([]);
        },
      ),
    );
  });

  it('[7.4] No tenant gets more or less than one turn beyond its share while several have rows', async () => {
    const aTenant = fc.record({
      weight: fc.double({ min: 0.1, max: 10, noNaN: true }),
      sizes: fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1, maxLength: 12 }),
    });
    await fc.assert(
      fc.asyncProperty(
        fc.array(aTenant, { minLength: 2, maxLength: 5 }),
        fc.integer({ min: 1, max: 32 }),
        async (tenants, batchSize) => {
          const weights = Object.fromEntries(tenants.map(({ weight }, i) => [`${i}`, weight]));
          const batcher = await busy({ batchSize, weights });
          tenants.forEach(({ sizes }, tenant) =>
            sizes.forEach((size) => batcher.ask('', { tenant: `${tenant}`, size })),
          );
          await runAll(batcher);

          const left = tenants.map(({ sizes }) => sizes.reduce((sum, size) => sum + size, 0));
          const had = tenants.map(() => 0);
          // The bound of start-time fair queueing.
          const turns = tenants.map(({ weight }) => batchSize / weight).toSorted((a, b) => b - a);
          for (const { parts } of batcher.started.slice(1)) {
            for (const { request, count } of parts) {
              had[Number(request.tenant)]! += count / weights[request.tenant]!;
              left[Number(request.tenant)]! -= count;
            }
            if (left.some((rows) => rows === 0)) {
              break;
            }
            expect(Math.max(...had) - Math.min(...had)).toBeLessThanOrEqual(
              turns[0]! + turns[1]! + 1e-9,
            );
          }
        },
      ),
      { numRuns: 50 },
    );
  });

  it('[7.4] [4.4] Tenants that have had equal shares take turns in their order of arrival', async () => {
    const batcher = await busy();
    const tenants = Array.from({ length: 50 }, (_, i) => `t${i}-`);
    tenants.forEach((tenant) => batcher.ask(tenant, { tenant, size: 2 }));
    const ran = await runFirst(batcher, 20);
    ['x', 'y'].forEach((tenant) => batcher.ask(tenant, { tenant }));
    ran.push(...(await runAll(batcher)));

    const [first, second] = [0, 1].map((row) => tenants.map((tenant) => `${tenant}${row}`));
    expect(ran).toEqual([...first!, 'x0', 'y0', ...second!]);
  });

  it.each([
    { tenant: 'that arrives late', before: 50, asks: { b: 100 } },
    { tenant: 'that arrives at an empty queue', before: 30, asks: { b: 20, a: 20 } },
  ])('[7.4] A tenant $tenant gets no credit for the time before', async ({ before, asks }) => {
    const batcher = await busy();
    batcher.ask('a', { tenant: 'a', size: before });
    if ('a' in asks) {
      await runAll(batcher);
      batcher.call('busy', 1, 'busy 0');
      await later();
    } else {
      await runFirst(batcher, 25);
    }
    Object.entries(asks).forEach(([tenant, size]) => batcher.ask(tenant, { tenant, size }));

    const ran = (await runAll(batcher)).slice(0, 10);

    expect(ran.filter((row) => row.startsWith('b'))).toHaveLength(5);
  });

  it('[7.4] A tenant that leaves and returns gets no credit for its absence', async () => {
    const batcher = await busy({ batchSize: 16, weights: { returns: 4 } });
    batcher.ask('stays', { tenant: 'stays', size: 1000 });
    batcher.ask('returns', { tenant: 'returns', size: 16 });
    let stays = 0;

    for (let turn = 0; turn < 50; turn++) {
      batcher.finishBatch();
      await later();
      const { parts } = batcher.started.at(-1)!;
      stays += parts.filter(({ request }) => request.tenant === 'stays').length;
      if (parts.some(({ request }) => request.tenant === 'returns')) {
        batcher.ask('returns', { tenant: 'returns', size: 16 });
      }
    }

    expect(stays).toBeGreaterThanOrEqual(10);
    await runAll(batcher);
  });

  it('[7.4] Rows of every tenant of a low priority run in the end, below an endless load of higher priority', async () => {
    const batcher = await busy({ batchSize: 2, ageing: 50 });
    const low = ['a', 'b', 'c'].map((tenant) => batcher.ask(tenant, { tenant, priority: -1 }));
    const hasRun = (request: NamedRequest): boolean =>
      batcher.started.some(({ parts }) => parts.some((part) => part.request === request));
    let now = 0;

    for (; now < 200 && !low.every(hasRun); now++) {
      batcher.ask(`high ${now}.`, { priority: 1, size: 2 });
      batcher.ask(`new ${now}.`, { priority: -1, tenant: `tenant ${now}` });
      await later(1);
      batcher.finishBatch();
      await later();
    }

    expect(now).toBeGreaterThan(99);
    expect(now).toBeLessThan(200);
    await runAll(batcher);
  });

  it('[7.4] An urgent row moves its lane ahead no longer once it has left or is late', async () => {
    for (const deadline of [Infinity, 10]) {
      const batcher = await busy({ batchSize: 3 });
      batcher.ask('r', { size: 3 }, 'right');
      batcher.ask('a', { size: 2 }, 'left');
      const urgent = batcher.ask('urgent', { priority: 1, deadline }, 'left');
      if (deadline === Infinity) {
        urgent.leave();
      } else {
        await later(10);
      }

      expect(await runAll(batcher)).toEqual(['r0 r1 r2', 'a0 a1']);
    }
  });

  it('[8.3] [7.4] No row of another tenant comes between the rows of a whole request', async () => {
    for (const batchTimeout of [0, 10]) {
      const batcher = await busy({ batchSize: 3, batchTimeout });
      batcher.ask('first', { tenant: 'other' });
      batcher.ask('W', { size: 3, whole: true });
      batcher.ask('other', { tenant: 'other', size: 3 });
      await later(batchTimeout);

      const ran = await runAll(batcher);

      expect(ran.filter((rows) => rows.includes('W')).map((rows) => rows.split(' '))).toEqual([
        ['W0', 'W1', 'W2'],
      ]);
    }
  });

  it('[7.2] [7.3] No row is lost when a call that is late cancels others', async () => {
    const batcher = await busy({ batchSize: 8 });
    const late = ['a', 'b', ''].map((tenant) => batcher.ask('late', { tenant, deadline: 5 }));
    const others = ['a', 'b', 'c', ''].flatMap((tenant) => [
      batcher.ask('gone', { tenant, size: 2 }),
      batcher.ask('stays', { tenant }),
    ]);
    for (const request of late) {
      const expire = request.expire.bind(request);
      request.expire = () => {
        others.filter(({ name }) => name === 'gone').forEach((other) => other.leave());
        expire();
      };
    }
    await later(5);

    expect((await runAll(batcher)).join(' ')).toBe('stays0 stays0 stays0 stays0');
    expect(late.every(({ isOver }) => isOver)).toBe(true);
    expect(batcher.depth).toBe(0);
  });

  it('[7.3] A call that is cancelled costs no look at the calls that stay', async () => {
    const batcher = await busy({ batchSize: 3 });
    let looks = 0;
    for (let i = 0; i < 1000; i++) {
      const stays = batcher.ask(`stays ${i}.`, { tenant: `${i % 3}`, priority: i % 2 });
      Object.defineProperty(stays, 'isOver', { get: () => (looks++, false) });
    }
    looks = 0;

    for (let i = 0; i < 5000; i++) {
      batcher.ask(`${i}.`, { tenant: `${i % 3}`, priority: i % 2 }).leave();
    }

    expect(looks).toBeLessThanOrEqual(5000);
    await runAll(batcher);
  });

  it('[7.4] [7.3] The batcher keeps no state of tenants whose rows have run or left', async () => {
    const asked: string[] = [];
    class Weights extends Map<string, number> {
      override get(tenant: string): undefined {
        asked.push(tenant);
        return undefined;
      }
    }
    const batcher = await busy({ weights: new Weights() });
    const askAll = (name: string): NamedRequest[] =>
      Array.from({ length: 1000 }, (_, i) =>
        batcher.ask(name, { tenant: `${name} ${i}`, size: 1 }),
      );
    const runOne = async (): Promise<void> => {
      batcher.ask('one', { size: 5 });
      await runAll(batcher);
      batcher.call('busy', 1, 'busy 0');
      await later();
    };
    ['a', 'b', 'a'].forEach((name) => askAll(name).forEach((request) => request.leave()));
    const ofThoseThatLeft = asked.length;
    await runOne();
    askAll('a');
    await runOne();
    askAll('a');
    await runOne();

    // A weight is read for each tenant whose state is new.
    expect(ofThoseThatLeft).toBeGreaterThan(2800);
    expect(asked.length).toBeGreaterThan(4800);
  });

  it('[7.3] The queue of a lane keeps few calls that have left', () => {
    const queue = new NamedQueue(1000, undefined, budget);
    queue.window('lane', 'stays', 2);
    queue.lane('lane', 1000);
    for (let i = 0; i < 5000; i++) {
      const part = queue.part('lane', `${i}.`, { priority: i % 2, tenant: `${i % 3}` });
      queue.addClosed('lane', [part]);
      part.request.isOver = true;
      queue.leave(part.request);
    }

    expect(queue.clear().size).toBeLessThanOrEqual(66);
  });
});

describe.each(KINDS)('ReadyQueue: late $rows', ({ budget }) => {
  it('[7.2] [7.5] Rows that would be late after running are failed, and their places go to other rows', () => {
    const queue = new NamedQueue(1000, undefined, budget);
    const late = [
      queue.part('lane', 'a', { deadline: 40 }),
      queue.part('lane', 'b', { deadline: 50, size: 2, priority: 1 }),
    ];
    const others = ['c', 'd'].map((name) => queue.part('lane', name, { deadline: 51 }));
    queue.addClosed('lane', [...late, ...others]);

    expect(queue.take(20, () => 50).parts).toEqual(others);
    expect(late.map(({ request }) => request.error)).toEqual([
      expect.any(DeadlineExceededError),
      expect.any(DeadlineExceededError),
    ]);
    expect(queue.takeAll(20)).toEqual([]);
  });

  it('[7.2] Rows that would be late are taken when there are no others, since the expected time may be wrong', () => {
    const queue = new NamedQueue(1000, undefined, budget);
    const late = queue.part('lane', 'a', { deadline: 20 });
    const others = ['b', 'c'].map((name) => queue.part('lane', name, { deadline: 40 }));
    const gone = queue.part('lane', 'd', { deadline: 1000, tenant: 'other' });
    queue.addClosed('lane', [late, ...others, gone]);
    gone.request.leave();
    queue.leave(gone.request);

    expect(queue.take(20, () => 50).parts).toEqual(others);
    expect(late.request.error).toBeInstanceOf(DeadlineExceededError);
  });

  it('[4.8] [8.3] A whole request larger than the present batch size gets a batch of its own', () => {
    const queue = new NamedQueue(1000, undefined, budget);
    queue.lane('lane', 5);
    const parts = [
      queue.part('lane', 'a'),
      queue.part('lane', 'b', { size: 5, whole: true }),
      queue.part('lane', 'c', { size: 4 }),
    ];
    queue.addClosed('lane', parts);
    queue.size = 3;

    expect(queue.takeAll()).toEqual(['a0', 'b0 b1 b2 b3 b4', 'c0 c1 c2', 'c3']);
  });
});

describe('Batcher: shares of rows with costs', () => {
  useVirtualTime();

  it.each([0, 4])(
    '[14.2] [15.1] A batch costs no more than what a latency target leaves it now, with overtaking of %d batches',
    (overtaking) => {
      const queue = new NamedQueue(1000, undefined, { most: 100, padded: false, overtaking });
      queue.lane('lane', 8);
      queue.addClosed('lane', [queue.part('lane', 'a', { costs: [10, 10, 10, 10, 10, 10] })]);
      queue.cost = 25;

      expect(queue.takeNames()).toBe('a0 a1');
      queue.cost = 40;
      expect(queue.takeAll()).toEqual(['a2 a3 a4 a5']);
    },
  );

  it('[7.4] [14.2] No tenant gets more or less than two batches beyond its share of the cost while several have rows', async () => {
    const aTenant = fc.record({
      weight: fc.double({ min: 0.1, max: 10, noNaN: true }),
      costs: fc.array(fc.integer({ min: 1, max: 20 }), { minLength: 1, maxLength: 80 }),
    });
    await fc.assert(
      fc.asyncProperty(
        fc.array(aTenant, { minLength: 2, maxLength: 5 }),
        fc.constantFrom(0, 4),
        async (tenants, overtaking) => {
          const most = 20;
          const weights = Object.fromEntries(tenants.map(({ weight }, i) => [`${i}`, weight]));
          const batcher = await busyBatcher({
            batchSize: 8,
            weights,
            budget: { most, padded: false, overtaking },
          });
          tenants.forEach(({ costs }, tenant) => batcher.ask('', { tenant: `${tenant}`, costs }));
          await runAll(batcher);

          const left = tenants.map(({ costs }) => costs.length);
          const had = tenants.map(() => 0);
          const turns = tenants.map(({ weight }) => most / weight).toSorted((a, b) => b - a);
          for (const { parts } of batcher.started.slice(1)) {
            for (const { request, offset, count } of parts) {
              const tenant = Number(request.tenant);
              const costs = request.rowCosts!.slice(offset, offset + count);
              had[tenant]! += costs.reduce((sum, cost) => sum + cost, 0) / weights[request.tenant]!;
              left[tenant]! -= count;
            }
            if (left.some((rows) => rows === 0)) {
              break;
            }
            expect(Math.max(...had) - Math.min(...had)).toBeLessThanOrEqual(
              2 * (turns[0]! + turns[1]!) + 1e-9,
            );
          }
        },
      ),
      { numRuns: 50 },
    );
  });
});

/** Finishes batches until this many have started, besides the one that kept the partition busy. */
async function runFirst(batcher: HeldBatcher, batches: number): Promise<string[]> {
  while (batcher.started.length <= batches) {
    batcher.finishBatch();
    await later();
    while (timers() > 0 && batcher.running.length === 0) {
      await nextTimer();
    }
  }
  return batcher.started
    .slice(1, -1)
    .map(({ parts: [part] }) => `${part!.request.name}${part!.offset}`);
}
