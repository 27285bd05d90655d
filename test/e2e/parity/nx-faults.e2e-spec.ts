import { getEventListeners } from 'node:events';
import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  type BatchEndEvent,
  BatchFailedError,
  type CallEndEvent,
  createServing,
  DONE,
  InvalidInputError,
  OverloadedError,
  type ServingDefinition,
} from 'nestjs-serving';
import { recordBatches } from 'nestjs-serving/testing';
import { Tensor } from 'onnxruntime-common';
import { firstValueFrom } from 'rxjs';
import { collect } from '../../fixtures/async/collect.js';
import { doubled, goOn } from '../../fixtures/batching/doubling.js';
import { useGates } from '../../fixtures/batching/gate.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { linearModel } from '../../fixtures/models/models.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import {
  later,
  passTime,
  timers,
  turn,
  useVirtualTime,
} from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';

const numbers = (...values: number[]): Batch =>
  Batch.concatenate([floats([values.length], values)]);
const doubledNumbers = (...values: number[]): Tensor =>
  doubled(floats([values.length], values)) as Tensor;
const session = { intraOpNumThreads: 1 };

/** A stream of input that differs for each caller. */
async function* streamOf(n: number): AsyncGenerator<Batch, void> {
  for (let element = 0; element < 1 + (n % 4); element++) {
    await turn();
    yield numbers(...Array.from({ length: 1 + (n % 3) }, (_, row) => n * 100 + element * 10 + row));
  }
}

describe('Faults of Nx.Serving, in real threads', () => {
  const gate = useGates();
  const serve = useServings();

  it.each(['batchedRun', 'stream'] as const)(
    '[4.5] [8.2] A split %s keeps the order of its rows when the partitions finish out of order',
    async (method) => {
      const serving = await serve<{ row: unknown }[]>({
        name: 'gates',
        useFile: worker('gate'),
        batchSize: 2,
        partitions: 2,
      });
      const held = gate();
      const rows = Batch.stack([held.row, 'b', 'c', 'd']);
      const second = firstValueFrom(serving.eventsOf('batch:end'));
      const call =
        method === 'stream'
          ? collect(serving.stream(rows)).then((events) => events.flatMap(({ output }) => output))
          : serving.batchedRun(rows);
      await held.entered();
      expect(await second).toMatchObject({ partition: 1, rows: 2 });
      held.open();

      expect((await call).slice(1).map(({ row }) => row)).toEqual(['b', 'c', 'd']);
    },
  );

  it('[8.1] Many concurrent calls with input streams are all answered', async () => {
    const serving = await serve({
      name: 'many',
      useFile: worker('doubling'),
      batchSize: 4,
      partitions: 2,
      batchTimeout: 1,
    });
    const callers = Array.from({ length: 30 }, (_, n) => n);

    const replies = await Promise.all(callers.map((n) => serving.batchedRun(streamOf(n))));

    const expected = await Promise.all(
      callers.map(async (n) => doubled(Batch.merge(await collect(streamOf(n))).consume())),
    );
    expect(replies).toEqual(expected);
  });

  it.each<[string, Partial<ServingDefinition>, object]>([
    [
      'a model',
      { model: { file: linearModel('rows'), session } },
      { x: floats([2, 3], [1, 2, 3, 4, 5, 6]) },
    ],
    ['a file', { useFile: worker('doubling') }, { x: floats([2, 3], [1, 2, 3, 4, 5, 6]) }],
    ['a function', { useFactory: () => doubled }, { x: floats([2, 3], [1, 2, 3, 4, 5, 6]) }],
  ])('[3.1] [3.2] The output in batches equals the inline output: %s', async (_, how, input) => {
    const serving = await serve({ name: 'both', ...how } as ServingDefinition);

    expect(await serving.batchedRun(input)).toEqual(await serving.run(input));
  });

  it('[4.5] [5.1] The outputs of several sessions of a model are joined to one', async () => {
    const definition = { name: 'sessions', model: { file: linearModel('rows'), session } };
    const input = {
      x: floats(
        [7, 3],
        Array.from({ length: 21 }, (_, i) => i),
      ),
    };
    const [one, two] = [
      await serve(definition),
      await serve({ ...definition, batchSize: 2, partitions: 2 }),
    ];
    const batches = recordBatches(two);

    expect(await two.batchedRun(input)).toEqual(await one.run(input));
    await turn();
    expect(new Set(batches.map(({ partition }) => partition))).toEqual(new Set([0, 1]));
  });

  it('[9.3] A model can be released while the application runs, and loaded again', async () => {
    const [started, living] = [0, 0].map(() => new Int32Array(new SharedArrayBuffer(4)));
    const definition = {
      name: 'counted',
      useFile: worker('counted'),
      partitions: [1, 2].map(() => ({ started, living })),
    };
    const first = createServing(definition);
    await first.start();
    expect(living![0]).toBe(2);
    await first.close();
    expect(living![0]).toBe(0);

    const second = await serve(definition);
    expect(await second.batchedRun('x')).toBe('x');
    expect([started![0], living![0]]).toEqual([4, 2]);
  });

  it('[1.7] Rows are values of any kind, also across threads', async () => {
    const serving = await serve({ name: 'echo', useFile: worker('echo') });
    const rows = [{ text: 'größer', at: new Date(0) }, 'text', [1, [2n]], null];

    expect(await Promise.all(rows.map((row) => serving.batchedRun(row)))).toEqual(rows);
  });
});

describe('Faults of Nx.Serving, in virtual time', () => {
  useVirtualTime();
  const serve = useServings();
  const hold = async (options: Partial<ServingDefinition> = {}) => {
    const held = new HeldFunction<never>();
    return {
      held,
      serving: await serve({ name: 'held', useFactory: held.useFactory, ...options }),
    };
  };

  it('[4.9] Concurrent rows of different kinds and keys do not affect each other', async () => {
    const serving = await serve({
      name: 'kinds',
      useFactory: () => doubled,
      batchKeys: ['a', 'b'],
      batchSize: 4,
      batchTimeout: 10,
    });
    const inputs = [
      numbers(1).withKey('a'),
      Batch.stack([floats([2], [1, 2])]).withKey('a'),
      Batch.stack([{ x: floats([2], [1, 2]) }]).withKey('a'),
      Batch.stack([1]).withKey('a'),
      numbers(2).withKey('b'),
      numbers(3).withKey('a'),
    ];

    const replies = await passTime(Promise.all(inputs.map((input) => serving.batchedRun(input))));

    expect(replies).toEqual(inputs.map((input) => doubled(input.consume())));
  });

  it('[4.9] A row that does not fit the model is refused alone before it enters a batch', async () => {
    const serving = await serve({
      name: 'model',
      model: { file: linearModel('rows'), session },
      batchSize: 3,
      batchTimeout: 10_000,
    });
    const call = (...values: number[]) =>
      serving.batchedRun({ x: floats([1, values.length], values) });
    const good = Promise.all([call(1, 2, 3), call(4, 5, 6)]);

    await expect(call(1, 2)).rejects.toThrow(InvalidInputError);
    await call(7, 8, 9);
    expect(await good).toHaveLength(2);
  });

  it('[4.1] No timer outlives its window, so none can close another', async () => {
    const serving = await serve({
      name: 'timers',
      useFactory: () => doubled,
      batchSize: 2,
      batchTimeout: 100,
    });
    const batches = recordBatches(serving);
    for (let window = 0; window < 20; window++) {
      const first = serving.batchedRun(1);
      await later(70);
      await Promise.all([first, serving.batchedRun(2)]);
      expect(timers()).toBe(0);
    }
    const alone = serving.batchedRun(3);
    await later(99);
    expect(batches).toHaveLength(20);
    await later(1);
    await alone;
    await turn();

    expect(batches.map(({ rows }) => rows)).toEqual([...Array.from({ length: 20 }, () => 2), 1]);
    await later(1000);
    expect(batches).toHaveLength(21);
  });

  it('[7.3] A call leaves nothing on the signal of its caller, however it ends', async () => {
    const serving = await serve({
      name: 'tidy',
      useFactory: () => (rows: number[]) =>
        rows.map((row) => (row < 0 ? new RangeError('negative') : row)),
    });
    const { signal } = new AbortController();

    await Promise.allSettled([
      serving.batchedRun(1, { signal }),
      serving.batchedRun(-1, { signal }),
      serving.batchedRun(Batch.empty(), { signal }),
      serving.batchedRun([numbers(1), numbers(2)], { signal }),
      serving.run(1, { signal }),
      collect(serving.stream(Batch.stack([1, 2]), { signal })),
      collect(serving.stream(-1, { signal })),
    ]);

    expect(getEventListeners(signal, 'abort')).toEqual([]);
  });

  it('[6.2] A failed row fails its caller alone, in calls and in streams', async () => {
    const serving = await serve({
      name: 'rows',
      useFactory: () => (rows: number[]) =>
        rows.map((row) => (row < 0 ? new RangeError(`${row}`) : row)),
    });
    const batches = recordBatches(serving);

    const replies = await Promise.allSettled([
      serving.batchedRun(1),
      serving.batchedRun(-2),
      collect(serving.stream(-3)),
      collect(serving.stream(4)),
    ]);
    await turn();

    expect(replies).toMatchObject([
      { value: 1 },
      { reason: new RangeError('-2') },
      { reason: new RangeError('-3') },
      { value: [{ output: 4 }] },
    ]);
    expect(batches.map(({ rows }) => rows)).toEqual([4]);
  });

  it('[4.3] By default a single call on an idle serving does not wait for others', async () => {
    const serving = await serve({ name: 'lone', useFactory: () => doubled });
    const now = performance.now();

    expect(await serving.batchedRun(1)).toBe(2);
    expect(performance.now()).toBe(now);
  });

  it('[8.1] One input stream keeps all partitions busy, with more pieces ready', async () => {
    const { held, serving } = await hold({ batchSize: 1, partitions: 2 });
    const reply = serving.batchedRun([1, 2, 3, 4, 5].map((value) => numbers(value)));
    await turn();
    expect(held.rows).toEqual([floats([1], [1]), floats([1], [2])]);
    await goOn(held);
    expect(held.rows).toEqual([floats([1], [2]), floats([1], [3])]);
    while (held.batches.length > 0) {
      await goOn(held);
    }

    expect(await reply).toEqual(doubledNumbers(1, 2, 3, 4, 5));
  });

  it('[4.7] Each key has a batch size and a timeout of its own', async () => {
    const serving = await serve({
      name: 'keys',
      useFactory: () => doubled,
      batchKeys: ['short', { key: 'long', batchSize: 2, batchTimeout: 50 }],
      batchTimeout: 10,
    });
    const batches = recordBatches(serving);
    const calls = [numbers(1, 2, 3).withKey('short'), numbers(1, 2, 3).withKey('long')].map(
      (rows) => serving.batchedRun(rows),
    );
    await later(10);
    await later(40);
    await Promise.all(calls);

    expect(batches.map(({ key, rows, wait }) => [key, rows, wait])).toEqual([
      ['long', 2, 0],
      ['short', 3, 10],
      ['long', 1, 50],
    ]);
  });

  it('[8.4] A caller whose rows have ended does not wait for the longest row of the batch', async () => {
    const { promise: released, resolve: release } = withResolvers();
    const serving = await serve({
      name: 'steps',
      useFactory: () =>
        async function* (rows: number[]) {
          yield rows.map((row) => row * 10);
          yield rows.map((row) => (row > 1 ? row * 100 : DONE));
          await released;
          yield rows.map((row) => (row > 1 ? row * 1000 : DONE));
        },
    });
    const [short, long] = [serving.batchedRun(1), serving.batchedRun(2)];

    expect(await short).toEqual([10]);
    release();
    expect(await long).toEqual([20, 200, 2000]);
  });

  it('[2.2] A batch that is not full is not padded unless its model needs it', async () => {
    const serving = await serve({ name: 'partial', useFactory: () => doubled, batchSize: 8 });
    const batches = recordBatches(serving);

    await serving.batchedRun(numbers(1, 2, 3));
    await turn();

    expect(batches).toMatchObject([{ rows: 3, padding: 0 }]);
  });

  describe('limits', () => {
    it('[7.1] A call beyond the queue limit is refused at once with 503', async () => {
      const { held, serving } = await hold({ batchSize: 1, queue: { maxRows: 2 } });
      const calls = [1, 2, 3, 4].map((value) => serving.batchedRun(numbers(value)));
      const refused = await Promise.allSettled([calls.pop()]);
      await turn();
      while (held.batches.length > 0) {
        await goOn(held);
      }

      expect(refused).toMatchObject([{ reason: expect.any(OverloadedError) }]);
      expect(refused).toMatchObject([{ reason: { statusCode: 503 } }]);
      expect(await Promise.all(calls)).toEqual([1, 2, 3].map((value) => doubledNumbers(value)));
    });

    it('[7.2] A call with a signal on a timer is answered in time although all partitions are busy', async () => {
      const { held, serving } = await hold();
      const running = serving.batchedRun(numbers(1));
      await turn();
      const controller = new AbortController();
      setTimeout(() => controller.abort(new DOMException('too late', 'TimeoutError')), 200);
      const late = expect(
        serving.batchedRun(numbers(2), { signal: controller.signal }),
      ).rejects.toThrow('too late');
      await later(200);
      await late;
      await goOn(held);

      expect(held.batches).toEqual([]);
      expect(await running).toEqual(doubledNumbers(1));
    });

    it('[7.3] Cancelled rows make room in the queue at once', async () => {
      const { held, serving } = await hold({ batchSize: 2, queue: { maxRows: 2 } });
      const running = serving.batchedRun(numbers(1));
      await turn();
      const controller = new AbortController();
      const left = expect(
        serving.batchedRun(numbers(2, 3), { signal: controller.signal }),
      ).rejects.toThrow();
      await turn();
      controller.abort();
      await left;
      const calls = Promise.allSettled([
        serving.batchedRun(numbers(4, 5)),
        serving.batchedRun(numbers(6)),
      ]);
      await goOn(held);
      await turn();
      held.batches.forEach(({ rows, finish }) => finish(doubled(rows)));

      expect(await calls).toMatchObject([
        { value: doubledNumbers(4, 5) },
        { reason: expect.any(OverloadedError) },
      ]);
      expect(await running).toEqual(doubledNumbers(1));
    });

    it('[7.1] [7.3] Rows that have left count once, so that the queue limit stays the same', async () => {
      const { held, serving } = await hold({ batchSize: 2, queue: { maxRows: 6 } });
      const failed = expect(serving.batchedRun(numbers(1, 2, 3, 4, 5, 6))).rejects.toThrow('oops');
      await turn();
      held.next().fail(new RangeError('oops'));
      await failed;
      await turn();
      while (held.batches.length > 0) {
        await goOn(held);
      }
      const calls = Promise.allSettled(
        [numbers(1, 2, 3, 4, 5, 6), numbers(7, 8, 9)].map((rows) => serving.batchedRun(rows)),
      );
      await turn();
      while (held.batches.length > 0) {
        await goOn(held);
      }

      expect(await calls).toMatchObject([
        { status: 'fulfilled' },
        { reason: expect.any(OverloadedError) },
      ]);
    });

    it('[7.3] The places of cancelled rows go to others', async () => {
      const { held, serving } = await hold({ batchSize: 2 });
      const running = serving.batchedRun(numbers(1));
      await turn();
      const controller = new AbortController();
      const left = expect(
        serving.batchedRun(numbers(2), { signal: controller.signal }),
      ).rejects.toThrow();
      const replies = [running, serving.batchedRun(numbers(3))];
      await turn();
      controller.abort();
      await left;
      replies.push(serving.batchedRun(numbers(4)));
      await turn();
      const seen: unknown[] = [];
      while (held.batches.length > 0) {
        seen.push(held.rows[0]);
        await goOn(held);
      }

      expect(await Promise.all(replies)).toEqual([1, 3, 4].map((value) => doubledNumbers(value)));
      expect(seen.map((rows) => (rows as Tensor).dims[0])).toEqual([1, 2]);
    });
  });

  it('[4.6] A reply lies in memory of its own, of the size of its own rows', async () => {
    const serving = await serve<Tensor>({ name: 'own', useFactory: () => doubled, batchSize: 3 });

    const [one, two] = await Promise.all([
      serving.batchedRun(numbers(1)),
      serving.batchedRun(numbers(2, 3)),
    ]);

    const [first, second] = [one, two].map(({ data }) => (data as Float32Array).buffer);
    expect([first!.byteLength, second!.byteLength]).toEqual([4, 8]);
    (one.data as Float32Array).fill(99);
    expect(two).toEqual(doubledNumbers(2, 3));
  });

  it('[9.2] A serving is not ready until it has loaded and is warm, and servings load concurrently', async () => {
    const { promise: loaded, resolve: load } = withResolvers();
    const runs: unknown[] = [];
    const definition = (name: string): ServingDefinition => ({
      name,
      batchSize: 4,
      warmUp: [7],
      useFactory: async () => {
        runs.push(`${name} loads`);
        await loaded;
        return (rows: number[]) => (runs.push(`${name} runs ${rows.length}`), doubled(rows));
      },
    });
    const servings = ['a', 'b'].map((name) => createServing(definition(name)));
    const starting = Promise.all(servings.map((serving) => serving.start()));
    await turn();

    expect(runs).toEqual(['a loads', 'b loads']);
    expect(servings.map(({ state }) => state)).toEqual(['starting', 'starting']);
    await expect(servings[0]!.batchedRun(1)).rejects.toMatchObject({
      code: 'SERVING_CLOSED',
      statusCode: 503,
    });
    load();
    await starting;

    expect(runs.slice(2)).toEqual(['a runs 4', 'b runs 4']);
    expect(servings.map(({ state }) => state)).toEqual(['ready', 'ready']);
    await Promise.all(servings.map((serving) => serving.close()));
  });

  it('[1.9] Servings can be created while the application runs, with any name', async () => {
    const tenants = ['tenant/1', 'größter Kunde', ''.padEnd(100, 'x')];
    const servings = await Promise.all(
      tenants.map((name) =>
        serve({ name, useFactory: () => (rows: string[]) => rows.map((row) => name + row) }),
      ),
    );

    expect(await Promise.all(servings.map((serving) => serving.batchedRun('!')))).toEqual(
      tenants.map((name) => `${name}!`),
    );
  });

  it('[12.2] Events report queue, wait, fill and size of batches, and refused calls', async () => {
    const { held, serving } = await hold({ batchSize: 2, queue: { maxRows: 2 } });
    const batches: BatchEndEvent[] = [];
    const calls: CallEndEvent[] = [];
    serving.eventsOf('batch:end').subscribe((batch) => batches.push(batch));
    serving.eventsOf('call:end').subscribe((call) => calls.push(call));
    const replies = Promise.allSettled(
      [[1], [2], [3], [4, 5]].map((values) => serving.batchedRun(numbers(...values))),
    );
    await turn();
    await later(30);
    await goOn(held);
    await later(5);
    await goOn(held);
    await replies;

    expect(batches).toMatchObject([
      {
        rows: 2,
        batchSize: 2,
        fill: 1,
        queued: 1,
        wait: 0,
        runTime: 30,
        partition: 0,
        key: 'default',
        reason: 'full',
      },
      { rows: 1, batchSize: 2, fill: 0.5, queued: 0, wait: 30, runTime: 5 },
    ]);
    expect(calls.find(({ error }) => error)).toMatchObject({ error: expect.any(OverloadedError) });
    expect(
      calls.filter(({ error }) => !error).map(({ waiting, running }) => [waiting, running]),
    ).toEqual([
      [0, 30],
      [0, 30],
      [30, 5],
    ]);
  });

  describe('streams', () => {
    it('[8.2] A stream can be read elsewhere and by several readers', async () => {
      const serving = await serve({ name: 'shared', useFactory: () => doubled });
      const stream = serving.stream(numbers(1, 2));
      const elsewhere = Promise.resolve().then(() => collect(stream));

      expect(await elsewhere).toEqual(await collect(stream));
    });

    it('[8.3] [8.5] Hooks and input streams combine', async () => {
      const serving = await serve({
        name: 'hooks',
        useFactory:
          () =>
          (rows: string[], { emit }) => (emit('seen', rows), rows),
      });

      const events = await collect(serving.stream(['a', 'b'].values(), { hooks: ['seen'] }));

      expect(events).toMatchObject([
        { hook: 'seen', value: ['a'] },
        { batch: { offset: 0 } },
        { hook: 'seen', value: ['b'] },
        { batch: { offset: 1 } },
      ]);
    });

    it('[6.1] [6.2] A step can fail one row of a stream while the others go on', async () => {
      const serving = await serve({
        name: 'steps',
        useFactory: () =>
          async function* (rows: number[]) {
            yield rows.map((row) => (row < 0 ? new RangeError('negative') : row));
            yield rows.map((row) => row + 1);
          },
      });

      const [good, bad] = await Promise.allSettled([
        collect(serving.stream(1)),
        collect(serving.stream(-1)),
      ]);

      expect(good).toMatchObject({ value: [{ output: 1 }, { output: 2 }] });
      expect(bad).toMatchObject({ reason: new RangeError('negative') });
    });
  });

  it('[8.5] Live input leads to live output: an event arrives before the source has more', async () => {
    const serving = await serve({ name: 'live', useFactory: () => doubled });
    const { promise: spoken, resolve: speak } = withResolvers();
    async function* microphone(): AsyncGenerator<Batch, void> {
      yield numbers(1);
      await spoken;
      yield numbers(2);
    }
    const events = serving.stream(microphone())[Symbol.asyncIterator]();

    expect(await events.next()).toMatchObject({ value: { output: doubledNumbers(1) } });
    speak();
    expect(await events.next()).toMatchObject({ value: { output: doubledNumbers(2) } });
    expect(await events.next()).toEqual({ done: true, value: undefined });
  });

  it('[6.1] A batch that runs out of memory fails its callers, and the next one runs', async () => {
    const { held, serving } = await hold();
    const failed = expect(serving.batchedRun(numbers(1))).rejects.toThrow(BatchFailedError);
    await turn();
    held.next().fail(new RangeError('Array buffer allocation failed'));
    await failed;
    const next = serving.batchedRun(numbers(2));
    await turn();
    await goOn(held);

    expect(await next).toEqual(doubledNumbers(2));
  });
});

/** Promise.withResolvers, which Node 20 lacks. */
function withResolvers(): { readonly promise: Promise<void>; readonly resolve: () => void } {
  let resolve!: () => void;
  const promise = new Promise<void>((settle) => (resolve = settle));
  return { promise, resolve };
}
