import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  type Batch,
  CallCycleError,
  createServing,
  last,
  type LocalServing,
  type ServingOptions,
} from 'nestjs-serving';
import { outcomeOf } from '../../fixtures/async/outcome-of.js';
import { later, passTime, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

type Call = (row: number) => Promise<unknown>;
type Runs = (rows: readonly number[]) => unknown;

const refusedAs = (path: string): unknown =>
  expect.objectContaining({
    name: 'CallCycleError',
    code: 'SERVING_CALL_CYCLE',
    message: expect.stringContaining(path),
  });

/** Each row waits for the row below it. */
const descend =
  (next: Call): Runs =>
  (rows) =>
    Promise.all(rows.map(async (row) => (row === 0 ? 0 : 1 + Number(await next(row - 1)))));

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

describe('Calls from inside a batch', () => {
  useVirtualTime();
  const startServing = useServings();

  const start = (
    name: string,
    runs: Runs,
    options: Partial<ServingOptions> = {},
  ): Promise<LocalServing> => startServing({ name, model: { useFactory: () => runs }, ...options });

  async function startDescent(
    options: Partial<ServingOptions> = {},
    by: 'batchedRun' | 'run' = 'batchedRun',
  ): Promise<LocalServing> {
    const runs = descend((row) => serving[by](row));
    const serving = await start('depth', runs, options);
    return serving;
  }

  it.each([
    ['', {}],
    [', also with a runTimeout', { recovery: { runTimeout: 60_000 } }],
  ])(
    '[FR3] A call to its own serving that can never run is refused, and later callers are answered%s',
    async (_, options) => {
      const serving = await startDescent(options);

      const refused = outcomeOf(serving.batchedRun(3));
      await turn();

      expect(refused.outcome).toBeInstanceOf(CallCycleError);
      expect(refused.outcome).toEqual(refusedAs('("depth" -> "depth")'));
      expect(await serving.batchedRun(0)).toBe(0);
    },
  );

  it('[FR3] A call after an await or a timer of its batch is refused, too', async () => {
    const serving = await start('late', async (rows) => {
      await pause(10);
      return rows[0] === 0 ? rows : [await serving.batchedRun(0)];
    });

    const refused = outcomeOf(serving.batchedRun(1));
    await later(10);
    await turn();

    expect(refused.outcome).toEqual(refusedAs('("late" -> "late")'));
    expect(await passTime(serving.batchedRun(0))).toBe(0);
  });

  it('[FR3] Two servings that call each other are refused with the path of the cycle', async () => {
    const a = await start('a', (rows) => descend((row) => b.batchedRun(row))(rows));
    const b = await start('b', (rows) => descend((row) => a.batchedRun(row))(rows));

    const refused = outcomeOf(a.batchedRun(5));
    await later(10);

    expect(refused.outcome).toEqual(refusedAs('("b" -> "a" -> "b")'));
    expect(await a.batchedRun(1)).toBe(1);
  });

  it('[FR3] With two partitions one level of calls is answered, and a deeper one is refused', async () => {
    const serving = await startDescent({ partitions: 2 });

    expect(await serving.batchedRun(1)).toBe(1);
    const refused = outcomeOf(serving.batchedRun(2));
    await later(10);
    expect(refused.outcome).toEqual(refusedAs('"depth" -> "depth"'));
    expect(await serving.batchedRun(1)).toBe(1);
  });

  it('[FR3] Of two batches on two partitions that each call their serving, the second call closes the cycle', async () => {
    const serving = await start(
      'pair',
      async ([row]) => {
        await pause(10 * (row ?? 0));
        return row === 0 ? [0] : [await serving.batchedRun(0)];
      },
      { partitions: 2, batchSize: 1 },
    );

    const first = serving.batchedRun(1);
    const second = outcomeOf(serving.batchedRun(2));

    expect(await passTime(first)).toBe(0);
    expect(second.outcome).toEqual(refusedAs('"pair" -> "pair"'));
  });

  it('[FR3] A batch whose function calls run needs a second partition, too', async () => {
    const lone = await startDescent({}, 'run');
    const refused = [lone.run(1), lone.batchedRun(1)].map(outcomeOf);
    await later(10);
    refused.forEach(({ outcome }) => expect(outcome).toEqual(refusedAs('("depth" -> "depth")')));
    expect(await lone.run(0)).toBe(0);

    const two = await startDescent({ partitions: 2 }, 'run');
    expect(await Promise.all([two.run(1), two.batchedRun(0)])).toEqual([1, 0]);
  });

  it('[FR3] A class, a generator and a stream are refused as a function is', async () => {
    class Recursive {
      init(): void {}
      async handleBatch(batch: Batch): Promise<{ output: unknown }> {
        const [row] = batch.consume() as number[];
        return { output: [row === 0 ? 0 : await handler.batchedRun(row! - 1)] };
      }
    }
    const handler = await startServing({ name: 'class', model: { useClass: Recursive } });
    const stepping = await start('steps', async function* (rows: readonly number[]) {
      yield rows;
      yield [await stepping.batchedRun(0)];
    });
    const streaming = await start('stream', async ([row]) => {
      const values: unknown[] = [];
      for await (const value of row === 0 ? [] : streaming.stream(0)) {
        values.push(value);
      }
      return [values];
    });

    const calls = [handler, stepping, streaming].map((each) => outcomeOf(each.batchedRun(1)));
    await later(10);

    expect(calls.map(({ outcome }) => outcome)).toEqual([
      refusedAs('("class" -> "class")'),
      refusedAs('("steps" -> "steps")'),
      refusedAs('("stream" -> "stream")'),
    ]);
  });

  it('[FR3] A batch that catches the refusal goes on, and harms no other caller', async () => {
    const serving = await start('careful', (rows) =>
      Promise.all(
        rows.map(async (row) => (row === 0 ? 'fine' : serving.batchedRun(0).catch(() => 'own'))),
      ),
    );

    expect(await Promise.all([0, 1, 0].map((row) => serving.batchedRun(row)))).toEqual([
      'fine',
      'own',
      'fine',
    ]);
  });

  it('[FR3] A refused row fails alone if the function returns a promise for each row', async () => {
    const serving = await start('rows', (rows) =>
      rows.map((row) => (row === 0 ? 'fine' : serving.batchedRun(0))),
    );
    const [one, other] = [0, 1].map((row) => outcomeOf(serving.batchedRun(row)));
    await later(10);

    expect(one!.outcome).toBe('fine');
    expect(other!.outcome).toEqual(refusedAs('("rows" -> "rows")'));
  });

  it('[FR3] A call that nobody awaits is refused while its batch runs, and runs after it', async () => {
    const calls: { outcome?: unknown }[] = [];
    const serving = await start('detached', async ([row]) => {
      if (row === 1) {
        calls.push(outcomeOf(serving.batchedRun(0)));
        setTimeout(() => calls.push(outcomeOf(serving.batchedRun(0))), 50);
        await pause(10);
      }
      return ['done'];
    });

    expect(await passTime(serving.batchedRun(1))).toBe('done');
    await later(60);

    expect(calls.map(({ outcome }) => outcome)).toEqual([
      refusedAs('("detached" -> "detached")'),
      'done',
    ]);
  });

  it('[FR3] A function that was synchronous for long is refused when it calls its serving', async () => {
    const serving = await start('cached', (rows) =>
      rows[0] === 0 ? rows : Promise.all(rows.map((row) => serving.batchedRun(row - 1))),
    );
    for (let i = 0; i < 200; i++) {
      await serving.batchedRun(0);
    }
    const refused = outcomeOf(serving.batchedRun(1));
    await later(10);

    expect(refused.outcome).toEqual(refusedAs('("cached" -> "cached")'));
    expect(await serving.batchedRun(0)).toBe(0);
  });

  it('[FR3] An inner call does not join a run that waits for its batch', async () => {
    const serving = await start(
      'shared',
      (rows) => Promise.all(rows.map((row) => serving.batchedRun(row))),
      { deduplication: { singleFlight: true } },
    );
    const refused = outcomeOf(serving.batchedRun(1));
    await later(10);

    expect(refused.outcome).toEqual(refusedAs('("shared" -> "shared")'));
  });

  it('[FR3] A call whose reply would wait for its own batch because of its order is refused', async () => {
    const serving = await startDescent({ partitions: 2, queue: { order: 'preserve' } });
    const refused = outcomeOf(serving.batchedRun(1));
    await later(10);

    expect(refused.outcome).toEqual(refusedAs('("depth" -> "depth")'));
  });

  it('[FR3] A step of a session that calls its session is refused', async () => {
    const step: Runs = async ([row]) => (row === 0 ? [0] : [await session.run(0)]);
    const serving: LocalServing = await start('session', step, {
      partitions: 2,
      model: { useFactory: () => step, sessions: {} },
    } as Partial<ServingOptions>);
    const session = serving.open();
    const refused = outcomeOf(session.run(1));
    await later(10);

    expect(refused.outcome).toEqual(refusedAs('("session" -> "session")'));
    expect(await session.run(0)).toBe(0);
    await session.close();
  });

  it('[FR3] A step of a sequence that calls its serving is refused, also if a place is free', async () => {
    const serving: LocalServing = await startServing({
      name: 'sequence',
      batchSize: 4,
      model: {
        sequence: {},
        useFactory: () => ({
          start: (rows: unknown[]) => rows,
          step: async (rows: unknown[]) =>
            Promise.all(rows.map(async (row) => last(row === 0 ? 0 : await serving.batchedRun(0)))),
        }),
      },
    });
    const refused = outcomeOf(serving.batchedRun(1));
    await later(10);

    expect(refused.outcome).toEqual(refusedAs('("sequence" -> "sequence")'));
    expect(await serving.batchedRun(0)).toEqual([0]);
  });

  it('[FR3] Calls between servings in any graph all end', async () => {
    const edge = fc.record({
      from: fc.nat({ max: 3 }),
      to: fc.nat({ max: 3 }),
      by: fc.constantFrom('batchedRun' as const, 'run' as const),
      wait: fc.nat({ max: 2 }),
    });
    const site = fc.record({
      partitions: fc.integer({ min: 1, max: 3 }),
      batchSize: fc.integer({ min: 1, max: 3 }),
      catches: fc.boolean(),
    });
    await fc.assert(
      fc.asyncProperty(
        fc.array(site, { minLength: 4, maxLength: 4 }),
        fc.array(edge, { maxLength: 8 }),
        fc.array(fc.record({ to: fc.nat({ max: 3 }), depth: fc.nat({ max: 4 }) }), {
          minLength: 1,
          maxLength: 8,
        }),
        async (sites, edges, calls) => {
          const servings = sites.map(({ partitions, batchSize, catches }, from) =>
            createServing({
              name: `s${from}`,
              partitions,
              batchSize,
              model: {
                useFactory: () => (rows: readonly number[]) =>
                  Promise.all(
                    rows.map(async (depth) => {
                      for (const { to, by, wait } of depth === 0
                        ? []
                        : edges.filter((each) => each.from === from)) {
                        await pause(wait);
                        const inner = servings[to]![by](depth - 1);
                        await (catches ? inner.catch(() => {}) : inner);
                      }
                      return depth;
                    }),
                  ),
              },
            }),
          );
          await Promise.all(servings.map((serving) => serving.start()));
          const seen = calls.map(({ to, depth }) =>
            outcomeOf(servings[to]!.batchedRun(depth).then(() => 'answered')),
          );
          for (let i = 0; i < 2000 && seen.some(({ outcome }) => outcome === undefined); i++) {
            await later(1);
          }

          const isAcyclic = edges.every(({ from, to }) => from < to);
          expect(isAcyclic && seen.some(({ outcome }) => outcome !== 'answered')).toBe(false);
          expect(
            seen.filter(
              ({ outcome }) => outcome !== 'answered' && !(outcome instanceof CallCycleError),
            ),
          ).toEqual([]);
          await passTime(Promise.all(servings.map((serving) => serving.close())));
        },
      ),
      { numRuns: 60 },
    );
  });
});
