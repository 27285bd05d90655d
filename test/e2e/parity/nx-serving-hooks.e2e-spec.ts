import { describe, expect, it, jest } from '@jest/globals';
import {
  Batch,
  type BatchContext,
  createServing,
  InvalidInputError,
  type ServingDefinition,
  Tensor,
} from 'nestjs-serving';
import { recordBatches } from 'nestjs-serving/testing';
import { collect } from '../../fixtures/async/collect.js';
import { doubled } from '../../fixtures/batching/doubling.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { value } from '../../fixtures/models/models.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';

const plus = (x: Tensor, by: number): Tensor =>
  new Tensor(
    'float32',
    (x.data as Float32Array).map((n) => n + by),
    x.dims,
  );

/** Adds five in several steps and emits the intermediate values. */
const addFive = (x: Tensor, { emit }: BatchContext): Tensor => {
  const double = doubled(x) as Tensor;
  emit('double', double);
  const more = plus(double, 10);
  emit('plusTen', more);
  const five = plus(x, 5);
  emit('ignored', five);
  return five;
};

class AddFive {
  init(): void {}
  handleBatch(batch: Batch, _partition: number, context: BatchContext) {
    return { output: addFive(batch.consume() as Tensor, context) };
  }
}

/** The same as a model, whose intermediate values are outputs outside of the reply. */
const addFiveModel = onnxModel({
  inputs: { x: value('float32', 'rows', 2) },
  outputs: {
    five: value('float32', 'rows', 2),
    double: value('float32', 'rows', 2),
    plusTen: value('float32', 'rows', 2),
  },
  nodes: [
    node('Add', ['x', 'x'], ['double']),
    node('Add', ['double', 'ten'], ['plusTen']),
    node('Mul', ['plusTen', 'half'], ['five']),
  ],
  initializers: {
    ten: { type: 'float32', dims: [1], data: Float32Array.of(10) },
    half: { type: 'float32', dims: [1], data: Float32Array.of(0.5) },
  },
});

const hooks = ['double', 'plusTen'] as const;
const rowsFrom = (first: number, rows = 2): Tensor =>
  floats(
    [rows, 2],
    Array.from({ length: rows * 2 }, (_, i) => first + i),
  );
/** All events of a call with the rows from `first` on. */
const eventsOf = (first: number, output: (five: Tensor) => unknown = (five) => five, rows = 2) => {
  const x = rowsFrom(first, rows);
  return [
    { hook: 'double', value: doubled(x) },
    { hook: 'plusTen', value: plus(doubled(x) as Tensor, 10) },
    { batch: { offset: 0, rows }, output: output(plus(x, 5)), metadata: undefined },
  ];
};

describe('Hooks, like Nx.Serving', () => {
  useVirtualTime();
  const serve = useServings();

  describe.each<[string, Partial<ServingDefinition>, ((five: Tensor) => unknown)?]>([
    ['a function', { model: { useFactory: () => addFive } }],
    ['a class', { model: { useClass: AddFive } }],
    ['a file', { model: { useFile: worker('add-five') } }],
    [
      'a model',
      { model: { file: addFiveModel, fetches: ['five'], session: { intraOpNumThreads: 1 } } },
      (five) => ({ five }),
    ],
  ])('%s', (kind, how, output) => {
    const definition = (options: Partial<ServingDefinition> = {}) =>
      ({ name: 'hooks', ...how, ...options }) as ServingDefinition;
    // A hook of a model is the tensor of that name. Its output is the map of fetched ones.
    const events = (first: number, rows?: number) => eventsOf(first, output, rows);

    it.each([true, false])(
      '[8.3] Requested hooks arrive in order of emission and then one batch event (inline: %j)',
      async (inline) => {
        const serving = await serve(definition());

        expect(await collect(serving.stream(rowsFrom(1), { hooks, inline }))).toEqual(events(1));
      },
    );

    it('[8.3] A call that does not fit into the waiting batch flushes it at once and starts the next', async () => {
      const serving = await serve(definition({ batchSize: 3, batchTimeout: 100 }));
      const batches = recordBatches(serving);
      const calls = [11, 21].map((first) => collect(serving.stream(rowsFrom(first), { hooks })));

      expect(await calls[0]).toEqual(events(11));
      await later(100);
      expect(await calls[1]).toEqual(events(21));
      await turn();
      expect(batches.map(({ rows, reason }) => [rows, reason])).toEqual([
        [2, 'flush'],
        [2, 'timeout'],
      ]);
    });

    it('[8.3] Calls that fit share a batch, and each gets its own rows of every hook', async () => {
      const serving = await serve(definition({ batchSize: 5, batchTimeout: 100 }));
      const batches = recordBatches(serving);
      const calls = Promise.all(
        [11, 21].map((first) => collect(serving.stream(rowsFrom(first), { hooks }))),
      );
      await later(100);

      expect(await calls).toEqual([events(11), events(21)]);
      await turn();
      expect(batches.map(({ rows, padding }) => [rows, padding])).toEqual([[4, 0]]);
    });

    it('[8.3] A call with more rows than the batch size is refused with both numbers', async () => {
      const serving = await serve(definition({ batchSize: 2 }));

      await expect(collect(serving.stream(rowsFrom(1, 3), { hooks }))).rejects.toThrow(
        new InvalidInputError(
          'Serving "hooks": a call with hooks is never split, and its 3 rows are more than the batch size of 2',
        ),
      );
    });

    it('[8.3] Calls in one batch get the hooks that each has requested', async () => {
      const serving = await serve(definition({ batchSize: 6, batchTimeout: 10_000 }));
      const [double, plusTen, batch] = events(21);

      const calls = await Promise.all([
        collect(serving.stream(rowsFrom(21), { hooks: ['double'] })),
        collect(serving.stream(rowsFrom(21), { hooks: ['plusTen'] })),
        collect(serving.stream(rowsFrom(21))),
      ]);

      expect(calls).toEqual([[double, batch], [plusTen, batch], [batch]]);
    });

    it('[2.4] [8.3] Hook values exclude the padding of their batch', async () => {
      const serving = await serve(
        definition({ batchSize: [4], warmUp: kind === 'a model' ? [] : [rowsFrom(1)] }),
      );

      expect(await collect(serving.stream(rowsFrom(1), { hooks }))).toEqual(events(1));
    });

    it('[8.3] [8.5] Each element of an input sequence emits its hooks and then its batch', async () => {
      const serving = await serve(definition({ batchSize: 2 }));
      const elements = [rowsFrom(1), rowsFrom(11)].map((rows) => Batch.concatenate([rows]));
      const second = events(11).map((event) =>
        'batch' in event ? { ...event, batch: { offset: 2, rows: 2 } } : event,
      );

      expect(await collect(serving.stream(elements, { hooks }))).toEqual([...events(1), ...second]);
    });
  });

  it('[8.3] A hook value arrives while its batch still runs', async () => {
    let finish!: () => void;
    const released = new Promise<void>((resolve) => (finish = resolve));
    const serving = await serve({
      name: 'slow',
      model: {
        useFactory:
          () =>
          async (rows: number[], { emit }) => {
            emit('seen', rows);
            await released;
            return rows;
          },
      },
    });
    const seen: unknown[] = [];
    serving.stream(1, { hooks: ['seen'] }).subscribe((event) => seen.push(event));
    await turn();
    expect(seen).toEqual([{ hook: 'seen', value: 1 }]);

    finish();
    await turn();
    expect(seen).toHaveLength(2);
  });

  it('[8.3] A hook value stays as emitted when its memory is reused', async () => {
    const serving = await serve({
      name: 'in place',
      model: {
        useFactory:
          () =>
          (x: Tensor, { emit }) => {
            const working = Float32Array.from(x.data as Float32Array);
            for (let step = 0; step < 2; step++) {
              emit('step', new Tensor('float32', working, x.dims));
              working.forEach((n, i) => (working[i] = n * 10));
            }
            return new Tensor('float32', working, x.dims);
          },
      },
    });

    const events = await collect(serving.stream(rowsFrom(1, 1), { hooks: ['step'] }));

    expect(events).toEqual([
      { hook: 'step', value: floats([1, 2], [1, 2]) },
      { hook: 'step', value: floats([1, 2], [10, 20]) },
      { batch: { offset: 0, rows: 1 }, output: floats([1, 2], [100, 200]), metadata: undefined },
    ]);
  });

  it('[8.3] A batch function can read which hooks were requested', async () => {
    const requested = jest.fn();
    const serving = await serve({
      name: 'requested',
      batchTimeout: 10,
      model: {
        useFactory: () => (rows: number[], batch) => (requested(batch.hooks.toSorted()), rows),
      },
    });
    const calls = Promise.all([
      collect(serving.stream(1, { hooks: ['a', 'b'] })),
      collect(serving.stream(2, { hooks: ['b', 'c'] })),
      collect(serving.stream(3)),
    ]);
    await later(10);
    await calls;

    expect(requested.mock.calls).toEqual([[['a', 'b', 'c']]]);
  });

  it('[6.3] [8.3] A hook value without an entry per row fails the batch with both numbers', async () => {
    const serving = await serve({
      name: 'short',
      model: {
        useFactory:
          () =>
          (rows: number[], { emit }) => (emit('h', rows.slice(1)), rows),
      },
    });

    await expect(
      collect(serving.stream(Batch.stack([1, 2]), { hooks: ['h'] })),
    ).rejects.toMatchObject({
      code: 'SERVING_INVALID_OUTPUT',
      message: expect.stringContaining('2 rows needs 2 results; the batch function returned 1'),
    });
    // Without a subscriber the invalid hook is not emitted.
    expect(await serving.batchedRun(Batch.stack([1, 2]))).toEqual([1, 2]);
  });

  it('[8.3] A hook that the model does not have is refused with those that it has', async () => {
    const serving = await serve({
      name: 'model',
      model: { file: addFiveModel, fetches: ['five'] },
    });

    await expect(collect(serving.stream(rowsFrom(1), { hooks: ['triple'] }))).rejects.toThrow(
      new InvalidInputError(
        'The model of serving "model" has no output "triple" that could be a hook; it has five, double, plusTen',
      ),
    );
  });

  it('[3.1] [8.3] Without a batch size an inline call with hooks may have any number of rows', async () => {
    const serving = createServing({ name: 'whole', model: { useFactory: () => addFive } });

    expect(await collect(serving.stream(rowsFrom(1, 40), { hooks, inline: true }))).toEqual(
      eventsOf(1, undefined, 40),
    );
  });
});
