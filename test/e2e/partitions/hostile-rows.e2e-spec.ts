import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  InvalidBatchError,
  InvalidInputError,
  InvalidOutputError,
  type LocalServing,
  type ServingDefinition,
  Tensor,
} from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { linearModel } from '../../fixtures/models/models.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { worker } from '../../fixtures/partitions/worker.js';

const threadEcho: ServingDefinition = { name: 'echo', model: { useFile: worker('echo') } };
const functionEcho: ServingDefinition = {
  name: 'echo',
  model: { useFactory: () => (rows: unknown) => rows },
};
class EchoHandler {
  init(): void {}
  handleBatch(batch: Batch): { output: unknown } {
    return { output: batch.consume() };
  }
}
const handlerEcho: ServingDefinition = { name: 'echo', model: { useClass: EchoHandler } };

const throws = (): never => {
  throw new TypeError('no');
};
const around = (levels: number): unknown => {
  let value: unknown = [];
  for (let i = 0; i < levels; i++) {
    value = [value];
  }
  return value;
};
const detached = (): Float32Array => {
  const view = new Float32Array(4);
  structuredClone(view, { transfer: [view.buffer] });
  return view;
};

const bufferOf = ({ data }: Tensor): ArrayBuffer => (data as Float32Array<ArrayBuffer>).buffer;

/** The outcomes of concurrent calls. */
async function answers(serving: LocalServing, ...inputs: readonly unknown[]): Promise<unknown[]> {
  const replies = await Promise.allSettled(inputs.map((input) => serving.batchedRun(input)));
  return replies.map((reply) =>
    reply.status === 'fulfilled' ? reply.value : (reply.reason as unknown),
  );
}

describe('A row that cannot be sent to a thread', () => {
  const serve = useServings();

  it.each<[string, unknown]>([
    ['a function', () => 1],
    ['a promise', { later: Promise.resolve() }],
    ['a symbol', Symbol('row')],
    [
      'a getter that throws',
      { x: 1, y: Object.defineProperty({}, 'z', { get: throws, enumerable: true }) },
    ],
    ['a view of memory that is gone', detached()],
    ['lists of 50 000 levels', { at: 1, lists: around(50_000) }],
    ['a port', new MessageChannel().port1],
  ])(
    '[4.9] [6.1] A row that cannot be sent is refused alone, and its batch mates are served: %s',
    async (_, row) => {
      const serving = await serve(threadEcho);
      const sizes: number[] = [];
      serving.eventsOf('batch:end').subscribe(({ rows }) => sizes.push(rows));

      const [before, refused, after] = await answers(serving, 'a', row, ['b']);

      expect([before, after]).toEqual(['a', ['b']]);
      expect(refused).toBeInstanceOf(InvalidInputError);
      expect(refused).toMatchObject({
        statusCode: 400,
        message: expect.stringContaining('The row cannot be sent'),
      });
      // Without hooks the rows run again.
      expect(sizes).toEqual([3, 2]);
      await expect(serving.run(row)).rejects.toThrow(InvalidInputError);
      await expect(collect(serving.stream(row))).rejects.toThrow(InvalidInputError);
    },
  );

  it('[4.9] [6.1] A row that cannot be sent is refused with its whole call and with no other', async () => {
    const serving = await serve({ ...threadEcho, batchSize: 8 });

    const replies = await answers(
      serving,
      Batch.ofValues([1, 2]),
      Batch.ofValues([3, () => 4, 5]),
      Batch.ofValues([6]),
    );

    expect(replies).toEqual([[1, 2], expect.any(InvalidInputError), [6]]);
  });

  it('[4.9] [6.1] A plain row that claims to be a tensor is refused alone', async () => {
    const serving = await serve(threadEcho);
    const claim = { type: 'float32', dims: [1], data: Uint8Array.of(1), size: 1 };

    const replies = await answers(
      serving,
      Batch.ofValues(['a']),
      Batch.ofValues([claim]),
      Batch.ofValues([floats([1], [1])]),
    );

    expect(replies).toEqual([['a'], expect.any(InvalidInputError), [floats([1], [1])]]);
  });

  it('[8.3] [6.1] A row that cannot be sent is refused alone from a batch with hooks', async () => {
    const serving = await serve({
      ...threadEcho,
      model: { useFile: worker('saying') },
      batchSize: 4,
    });

    const [streamed, refused] = await Promise.allSettled([
      collect(serving.stream(Batch.ofValues(['a', 'b']), { hooks: ['upper'] as never })),
      serving.batchedRun(() => 1),
    ]);

    expect(streamed.status).toBe('fulfilled');
    expect((refused as PromiseRejectedResult).reason).toBeInstanceOf(InvalidInputError);
  });

  it('[2.4] A warm-up example that cannot be sent fails the boot', async () => {
    await expect(serve({ ...threadEcho, warmUp: [() => 1] })).rejects.toThrow(
      'The warm-up with 32 rows of key "default" failed: The row cannot be sent',
    );
  });
});

describe('Tensors whose memory is detached while they wait', () => {
  const serve = useServings();

  it.each([
    ['a thread', threadEcho],
    ['a function', functionEcho],
    ['a class', handlerEcho],
  ])(
    '[4.9] [6.1] Detached tensors fail their own call in %s, and their batch mates are served',
    async (_, definition) => {
      const serving = await serve(definition);
      const inputs = [1, 2, 3].map((n) => floats([1, 1], [n]));

      const replies = answers(serving, ...inputs);
      structuredClone(inputs[1]!.data, { transfer: [bufferOf(inputs[1]!)] });

      expect(await replies).toEqual([
        floats([1, 1], [1]),
        expect.any(InvalidBatchError),
        floats([1, 1], [3]),
      ]);
    },
  );

  it('[4.9] [6.1] Detached tensors fail their own call in a model, and their batch mates are served', async () => {
    const serving = await serve({ name: 'linear', model: linearModel('batch') });
    const inputs = [1, 2].map((n) => new Tensor('float32', Float32Array.of(n, n, n), [1, 3]));

    const replies = answers(serving, ...inputs);
    structuredClone(inputs[0]!.data, { transfer: [bufferOf(inputs[0]!)] });

    expect(await replies).toEqual([
      expect.any(InvalidBatchError),
      { y: expect.objectContaining({ dims: [1, 2] }) },
    ]);
  });
});

describe('A result that cannot be read', () => {
  const serve = useServings();

  it('[4.6] [6.1] A result that is nested too deeply fails its own call, and its batch mates are served', async () => {
    const serving = await serve(threadEcho);

    const [before, deep, after] = await answers(serving, 'a', around(3000), 'b');

    expect([before, after]).toEqual(['a', 'b']);
    expect(deep).toBeInstanceOf(InvalidOutputError);
    expect(deep).toMatchObject({
      message: expect.stringContaining('nested more than 500 levels deep'),
    });
    expect(await serving.batchedRun(around(499))).toEqual(around(499));
  });

  it('[4.6] [6.1] Metadata that is nested too deeply fails its batch, and the next ones get their own results', async () => {
    const serving = await serve({ name: 'deep', model: { useFile: worker('deep') }, batchSize: 1 });

    const replies = await answers(serving, 'a', 'deep metadata', 'b', 'deep metadata', 'c');

    expect(replies).toEqual([
      'a',
      expect.any(InvalidOutputError),
      'b',
      expect.any(InvalidOutputError),
      'c',
    ]);
    expect(replies[1]).toMatchObject({ message: expect.stringContaining('cannot be read') });
  });

  it('[8.4] [4.6] A step that is nested too deeply fails its call, and the next ones get their own results', async () => {
    const serving = await serve({ name: 'deep', model: { useFile: worker('deep') }, batchSize: 1 });

    const replies = await answers(serving, 'deep step', 'a', 'b');

    expect(replies).toEqual([expect.any(InvalidOutputError), 'a', 'b']);
  });
});
