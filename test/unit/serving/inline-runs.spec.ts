import { AsyncLocalStorage } from 'node:async_hooks';
import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  createServing,
  DeadlineExceededError,
  type LocalServing,
  OverloadedError,
  ServingClosedError,
  type ServingDefinition,
} from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { externalModel } from '../../fixtures/serving/external-model.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, passTime, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const reason = new Error('the client has left');

/** Finishes the batches one after the other and returns their rows. */
async function finishAll(batches: HeldFunction): Promise<(readonly string[])[]> {
  const rows: (readonly string[])[] = [];
  for (await turn(); batches.batches.length > 0; await turn()) {
    expect(batches.batches).toHaveLength(1);
    const batch = batches.next();
    rows.push(batch.rows);
    batch.finish(batch.rows);
  }
  return rows;
}

/** A serving that isn't started, whose session for run() never finishes loading. */
function loading(limits: Partial<ServingDefinition> = {}): LocalServing {
  const model = externalModel(() => new Promise(() => {}));
  return createServing({ name: 'held', shutdown: { timeout: 1000 }, ...limits, model });
}

describe('Inline runs', () => {
  useVirtualTime();
  const start = useServings();

  async function held(
    options: Partial<ServingDefinition> = {},
  ): Promise<[LocalServing, HeldFunction]> {
    const batches = new HeldFunction();
    const definition = {
      name: 'held',
      shutdown: { timeout: 1000 },
      model: { useFactory: batches.useFactory },
      ...options,
    } as ServingDefinition;
    return [await start(definition), batches];
  }

  it('[H5] Inline runs execute one batch at a time, each call in batches of its own', async () => {
    const [serving, batches] = await held({ batchSize: 2 });
    const inputs = ['abc', 'd', 'ef'].map((rows) => Batch.stack(rows.split('')));
    const replies = inputs.map((input) => serving.run(input));

    expect(await finishAll(batches)).toEqual([['a', 'b'], ['c'], ['d'], ['e', 'f']]);
    expect(await Promise.all(replies)).toEqual([['a', 'b', 'c'], ['d'], ['e', 'f']]);
  });

  it('[3.1] A run takes its turn among the batches of other calls, and shares none', async () => {
    const [serving, batches] = await held({ batchSize: 2, batchTimeout: 1000 });
    const replies = [serving.batchedRun('a'), serving.batchedRun('b')];
    await turn();
    replies.push(serving.batchedRun('c'), serving.run('alone'), serving.batchedRun('d'));

    expect(await finishAll(batches)).toEqual([['a', 'b'], ['alone'], ['c', 'd']]);
    expect(await Promise.all(replies)).toEqual(['a', 'b', 'c', 'alone', 'd']);
  });

  it('[3.1] Runs are on all partitions', async () => {
    const [serving, batches] = await held({ partitions: 2 });
    const replies = [serving.run('a'), serving.batchedRun('b'), serving.run('c')];
    await turn();

    expect(batches.rows).toEqual([['a'], ['b']]);
    batches.next().finish(['a']);
    await turn();
    expect(batches.rows).toEqual([['b'], ['c']]);
    batches.next().finish(['b']);
    batches.next().finish(['c']);
    expect(await Promise.all(replies)).toEqual(['a', 'b', 'c']);
  });

  it('[3.1] A start ends the session that run() has opened before it, once its calls have ended', async () => {
    const batches = new HeldFunction();
    const loaded: number[] = [];
    const serving = createServing<string, string, unknown, unknown>({
      name: 'held',
      partitions: 2,
      model: {
        useFactory: ({ partition }) => {
          loaded.push(partition);
          return batches.useFactory();
        },
      },
    });
    const replies = [serving.run('a')];
    await turn();
    const started = serving.start();
    replies.push(serving.run('b'));
    await turn();
    expect(loaded).toEqual([0]);

    batches.next().finish(['a']);
    await turn();
    expect(await replies[0]).toBe('a');
    await started;
    await turn();
    expect(loaded).toEqual([0, 0, 1]);
    batches.next().finish(['b']);
    expect(await replies[1]).toBe('b');
    await passTime(serving.close());
  });

  it('[H5] Inline runs beyond the queue limit are refused', async () => {
    const [serving, batches] = await held({ queue: { maxRows: 2 }, batchSize: 2 });
    const replies = [serving.run('a')];
    await turn();
    replies.push(...['b', 'c'].map((row) => serving.run(row)));
    await turn();
    await expect(serving.run('d')).rejects.toThrow(OverloadedError);

    expect(serving.queued).toBe(2);
    await finishAll(batches);
    expect(await Promise.all(replies)).toEqual(['a', 'b', 'c']);
  });

  it('[H5] Inline runs beyond the queue limit are refused while the session loads', async () => {
    const serving = loading({ queue: { maxRows: 2 }, batchSize: 2 });
    const waiting = ['a', 'b'].map((row) =>
      expect(serving.run(row)).rejects.toThrow(ServingClosedError),
    );
    await expect(serving.run('c')).rejects.toThrow(OverloadedError);

    await passTime(serving.close());
    await Promise.all(waiting);
  });

  it('[H5] An inline run whose deadline has passed never starts', async () => {
    const [serving, batches] = await held();
    const replies = [serving.run('a'), serving.run('late', { timeout: 50 }), serving.run('b')];
    const late = expect(replies[1]).rejects.toThrow(DeadlineExceededError);
    await later(50);
    await late;

    expect(await finishAll(batches)).toEqual([['a'], ['b']]);
    expect([await replies[0], await replies[2]]).toEqual(['a', 'b']);
  });

  it('[H5] A cancelled inline run never starts', async () => {
    const [serving, batches] = await held();
    const leaving = new AbortController();
    const replies = [
      serving.run('a'),
      serving.run('gone', { signal: leaving.signal }),
      serving.run('b'),
    ];
    await turn();
    leaving.abort(reason);
    await expect(replies[1]).rejects.toBe(reason);

    expect(await finishAll(batches)).toEqual([['a'], ['b']]);
    expect([await replies[0], await replies[2]]).toEqual(['a', 'b']);
  });

  it('[H5] Inline runs report the reason "inline", their wait, and the rows behind them', async () => {
    const [serving, batches] = await held();
    const ends: unknown[] = [];
    serving
      .eventsOf('batch:end')
      .subscribe(({ reason: why, rows, wait, queued }) => ends.push([why, rows, wait, queued]));
    const replies = ['a', 'b'].map((row) => serving.run(row));
    await later(30);
    await finishAll(batches);
    await Promise.all(replies);

    expect(ends).toEqual([
      ['inline', 1, 0, 1],
      ['inline', 1, 30, 0],
    ]);
  });

  it.each<[string, (serving: LocalServing, options: object) => Promise<unknown>]>([
    ['run', (serving, options) => serving.run('a', options)],
    ['stream', (serving, options) => collect(serving.stream('a', { ...options, inline: true }))],
  ])(
    '[H6] A call with %s ends at its deadline or signal while the session loads',
    async (_, call) => {
      const serving = loading();
      const leaving = new AbortController();
      const late = expect(call(serving, { timeout: 100 })).rejects.toThrow(DeadlineExceededError);
      const left = expect(call(serving, { signal: leaving.signal })).rejects.toBe(reason);

      leaving.abort(reason);
      await left;
      await later(100);
      await late;
      await passTime(serving.close());
    },
  );

  it('[E11] Calls of run() that fail while the session loads are counted, and have their events', async () => {
    const serving = loading();
    const ends: unknown[] = [];
    serving
      .eventsOf('call:end')
      .subscribe(({ mode, preprocessing, cancelled }) =>
        ends.push([mode, preprocessing, cancelled]),
      );
    const leaving = new AbortController();
    const calls = [
      serving.run('a', { timeout: 100 }),
      serving.run('a', { signal: leaving.signal }),
      collect(serving.stream('a', { timeout: 50, inline: true })),
      serving.run('a', { unknown: 1 } as object),
    ];
    const ended = Promise.allSettled(calls);
    leaving.abort(reason);
    await later(100);
    await ended;

    expect(serving.counters().failed).toEqual({
      SERVING_INVALID_INPUT: 1,
      SERVING_CANCELLED: 1,
      SERVING_DEADLINE_EXCEEDED: 2,
    });
    expect(ends).toEqual([
      ['inline', 0, undefined],
      ['inline', 0, true],
      ['stream', 50, undefined],
      ['inline', 100, undefined],
    ]);
    await passTime(serving.close());
  });

  it('[E11] A call of run() that waits for its session is counted once, from its beginning on', async () => {
    const partition = {
      prefetch: 0,
      run: async () => ({ output: ['A'] }),
      close: async () => {},
    };
    const model = externalModel(async () => {
      await new Promise((resolve) => setTimeout(resolve, 30));
      return { partitions: [partition] };
    });
    const serving = createServing({ name: 'a', model });
    const events: unknown[] = [];
    serving.eventsOf('call:start').subscribe(() => events.push('start'));
    serving.eventsOf('call:end').subscribe(({ preprocessing }) => events.push(preprocessing));

    const reply = serving.run('a');
    await later(30);
    expect(await reply).toBe('A');
    expect(events).toEqual(['start', 30]);
    expect(serving.counters()).toMatchObject({ answered: 1, failed: {} });
    await passTime(serving.close());
  });

  it('[H4] An inline run is answered with the closed error at the shutdown limit while the session loads', async () => {
    const serving = loading();
    const closed = expect(serving.run('a')).rejects.toThrow(ServingClosedError);
    await passTime(serving.close());
    await closed;
  });

  it('[H4] [9.3] start() is rejected when the session has not loaded by the shutdown limit', async () => {
    const serving = createServing({
      name: 'held',
      shutdown: { timeout: 100 },
      model: { useFactory: () => new Promise<never>(() => {}) },
    });
    const refused = expect(serving.start()).rejects.toThrow(ServingClosedError);
    await turn();
    await passTime(serving.close());
    await refused;
    expect(serving.state).toBe('closed');
  });

  it('[H4] [9.3] start() is rejected when the session loads during shutdown', async () => {
    let open!: () => void;
    const gate = new Promise<void>((resolve) => (open = resolve));
    const serving = createServing({
      name: 'held',
      model: { useFactory: async () => (await gate, (rows: unknown[]) => rows) },
    });
    const refused = expect(serving.start()).rejects.toThrow(ServingClosedError);
    const closed = serving.close();
    open();
    await Promise.all([refused, closed]);
    await expect(serving.batchedRun('a')).rejects.toThrow(ServingClosedError);
  });

  it('[L2] The session and its batches run in the async context of no caller', async () => {
    const users = new AsyncLocalStorage<string>();
    const seen: unknown[] = [];
    const serving = await start({
      name: 'context',
      model: {
        useFactory: () => {
          seen.push(users.getStore());
          return (rows: unknown[]) => (seen.push(users.getStore()), rows);
        },
      },
    });

    await users.run('alice', () => serving.run('a'));

    expect(seen).toEqual([undefined, undefined, undefined]);
  });
});
