import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { afterEach, describe, expect, it, jest } from '@jest/globals';
import {
  createServing,
  RunTimeoutError,
  type ServingDefinition,
  type ServingEvent,
  type ServingHandler,
  ServingUnavailableError,
} from 'nestjs-serving';
import { filter } from 'rxjs';
import { HeldFunction } from '../../../fixtures/batching/held-function.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';
import { later, timers, turn, useVirtualTime } from '../../../fixtures/async/virtual-time.js';
import { recordWarnings } from '../../../fixtures/recorded-warnings.js';

/** A class whose batches run until the test finishes them. */
class HeldHandler implements ServingHandler {
  static held = new HeldFunction();
  private readonly run = HeldHandler.held.useFactory();

  init(): void {}

  async handleBatch(batch: { consume(): unknown }): Promise<{ output: unknown }> {
    return { output: await this.run(batch.consume() as string[]) };
  }
}

const kinds: [string, (held: HeldFunction) => ServingDefinition][] = [
  [
    'function',
    (held) => ({
      name: 'held',
      batchSize: 1,
      recovery: { runTimeout: 50 },
      model: { useFactory: held.useFactory },
    }),
  ],
  [
    'class',
    (held) => {
      HeldHandler.held = held;
      return {
        name: 'held',
        batchSize: 1,
        recovery: { runTimeout: 50 },
        model: { useClass: HeldHandler },
      };
    },
  ],
];

describe('runTimeout', () => {
  useVirtualTime();
  const start = useServings();

  afterEach(() => {
    jest.restoreAllMocks();
  });

  it.each(kinds)(
    '[5.6] A %s that hangs is reported and gets no batch until it returns',
    async (_, definition) => {
      const warnings = recordWarnings();
      const held = new HeldFunction();
      const serving = await start(definition(held));

      const replies = Promise.allSettled(['a', 'b'].map((row) => serving.batchedRun(row)));
      await later(49);
      expect(serving.partitions()).toEqual([{ state: 'up', restarts: 0 }]);
      await later(1);

      expect(await replies).toEqual([
        { status: 'rejected', reason: expect.any(RunTimeoutError) },
        { status: 'rejected', reason: expect.any(ServingUnavailableError) },
      ]);
      const reason =
        'Partition 0 has run a batch of 1 row for over 50 ms, and takes no other until that returns';
      expect(serving.partitions()).toEqual([{ state: 'hung', restarts: 0, reason }]);
      expect(warnings).toEqual([`Serving "held": ${reason}`]);
      await expect(serving.batchedRun('early')).rejects.toThrow(reason);
      expect(held.rows).toEqual([['a']]);

      held.next().finish(['A']);
      await turn();
      const next = serving.batchedRun('c');
      await turn();
      held.next().finish(['C']);

      expect(await next).toBe('C');
      expect(serving.partitions()).toEqual([{ state: 'up', restarts: 0 }]);
      expect(warnings).toHaveLength(1);
    },
  );

  it.each(['one partition', 'two, which hang at the same time'])(
    '[5.6] [6.5] Only the callers of an idempotent batch that hung get the timeout error when none can retry it: %s',
    async (partitions) => {
      const held = new HeldFunction();
      const options = {
        name: 'held',
        batchSize: 1,
        recovery: { runTimeout: 50, idempotent: true },
        model: { useFactory: held.useFactory },
      };
      const rows = partitions === 'one partition' ? ['a'] : ['a', 'b'];
      const serving = await start({ ...options, partitions: rows.length });

      const replies = Promise.allSettled(rows.map((row) => serving.batchedRun(row)));
      await turn();
      const waiting = expect(serving.batchedRun('waiting')).rejects.toMatchObject({
        statusCode: 503,
      });
      await later(50);

      expect(await replies).toEqual(
        rows.map(() => ({ status: 'rejected', reason: expect.any(RunTimeoutError) })),
      );
      await waiting;
      await expect(serving.batchedRun('late')).rejects.toThrow(ServingUnavailableError);
      expect(held.rows).toEqual(rows.map((row) => [row]));
      rows.forEach(() => held.next().finish(['in the end']));
    },
  );

  it('[5.6] [6.5] [3.1] The caller of an idempotent inline run that hung gets the timeout error', async () => {
    const held = new HeldFunction();
    const serving = createServing({
      name: 'held',
      recovery: { runTimeout: 50, idempotent: true },
      model: { useFactory: held.useFactory },
    });

    const reply = expect(serving.run('a')).rejects.toThrow(RunTimeoutError);
    await later(50);
    await reply;

    held.next().finish(['A']);
    await serving.close();
  });

  it('[5.6] [12.3] A hung partition is reported by events and by node:diagnostics_channel', async () => {
    const published: unknown[] = [];
    const note = (event: unknown): unknown => published.push(event);
    subscribe('nestjs-serving:partition:change', note);
    const seen: ServingEvent[] = [];
    const held = new HeldFunction();
    const serving = await start({
      name: 'held',
      recovery: { runTimeout: 50 },
      model: { useFactory: held.useFactory },
    });
    serving.events$
      .pipe(filter(({ type }) => type === 'partition:change'))
      .subscribe((event) => seen.push(event));

    const reply = expect(serving.batchedRun('a')).rejects.toThrow(RunTimeoutError);
    await later(50);
    await reply;
    held.next().finish(['A']);
    await turn();
    unsubscribe('nestjs-serving:partition:change', note);

    const about = {
      type: 'partition:change',
      serving: 'held',
      version: '1',
      partition: 0,
      restarts: 0,
    };
    expect(seen).toEqual([
      { ...about, state: 'hung', reason: expect.stringContaining('for over 50 ms') },
      { ...about, state: 'up' },
    ]);
    expect(published).toEqual(seen);
  });

  it('[5.6] [8.4] The run timeout covers all steps of a generator and ends it at the next step', async () => {
    let ended = false;
    const steps: (() => void)[] = [];
    const serving = await start({
      name: 'steps',
      recovery: { runTimeout: 50 },
      model: {
        useFactory: () =>
          async function* (rows: string[]) {
            try {
              for (;;) {
                yield rows;
                await new Promise<void>((resolve) => steps.push(resolve));
              }
            } finally {
              ended = true;
            }
          },
      },
    });
    const reply = expect(serving.batchedRun('a')).rejects.toThrow(RunTimeoutError);

    await later(30);
    steps.pop()!();
    await later(20);
    await reply;
    expect([ended, serving.partitions()[0]!.state]).toEqual([false, 'hung']);
    steps.pop()!();
    await turn();

    expect([ended, serving.partitions()[0]!.state]).toEqual([true, 'up']);
  });

  it('[5.6] [3.1] The run timeout applies to inline runs', async () => {
    const held = new HeldFunction();
    const serving = createServing({
      name: 'held',
      recovery: { runTimeout: 50 },
      model: { useFactory: held.useFactory },
    });

    const reply = expect(serving.run('a')).rejects.toThrow(RunTimeoutError);
    await later(50);
    await reply;
    held.next().finish(['A']);
    await serving.close();
  });

  it('[5.6] [2.4] The run timeout does not apply to the warm-up, which may compile', async () => {
    const held = new HeldFunction();
    const serving = createServing({
      name: 'held',
      batchSize: 1,
      recovery: { runTimeout: 50 },
      warmUp: ['a'],
      model: { useFactory: held.useFactory },
    });
    const started = serving.start();

    await later(10_000);
    held.next().finish(['A']);
    await started;

    expect(serving.partitions()).toEqual([{ state: 'up', restarts: 0 }]);
    await serving.close();
  });

  it('[5.6] A serving without a run timeout has no timer', async () => {
    const held = new HeldFunction();
    const serving = await start({ name: 'held', model: { useFactory: held.useFactory } });

    const reply = serving.batchedRun('a');
    await turn();
    expect(timers()).toBe(0);
    held.next().finish(['A']);

    expect(await reply).toBe('A');
  });

  it('[5.6] [9.3] A serving whose function never returns closes within the shutdown limit', async () => {
    const held = new HeldFunction();
    const serving = await start({
      name: 'held',
      recovery: { runTimeout: 50 },
      shutdown: { timeout: 1000 },
      model: { useFactory: held.useFactory },
    });
    const reply = expect(serving.batchedRun('a')).rejects.toThrow(RunTimeoutError);
    await later(50);
    await reply;

    await serving.close();

    expect(serving.state).toBe('closed');
  });
});
