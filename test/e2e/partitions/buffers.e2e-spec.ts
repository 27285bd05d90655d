import { afterEach, describe, expect, it, jest } from '@jest/globals';
import { Batch, InvalidOutputError, type ServingDefinition, Tensor } from 'nestjs-serving';
import { SpareMemory } from '../../../lib/core/partitions/worker/transfer.js';
import { echoModel, recurrentModel, value } from '../../fixtures/models/models.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { worker } from '../../fixtures/partitions/worker.js';

type Tensors = Readonly<Record<'x' | 'state' | 'rate', Tensor>>;

const step = (n: number): Tensors => ({
  x: floats([1, 3], [n, n, n]),
  state: floats([2, 1, 3], [1, 2, 3, 4, 5, 6]),
  rate: new Tensor('int64', [8n], []),
});

const net: ServingDefinition = { name: 'net', model: recurrentModel(2, 'batch') };
const rows = { batchAxis: 1 };
const fixedNet: ServingDefinition = {
  name: 'net',
  model: { file: recurrentModel(2, 1), inputs: { state: rows }, outputs: { next: rows } },
};
const echo: ServingDefinition = { name: 'echo', model: { useFile: worker('echo') } };

const bytesOf = ({ data }: Tensor): number => (data as Uint8Array).buffer.byteLength;

describe('The memory of a tensor', () => {
  const serve = useServings();

  afterEach(() => {
    jest.restoreAllMocks();
  });

  it.each<[string, ServingDefinition, (tensors: Tensors) => unknown]>([
    ['a model', net, (tensors) => tensors],
    ['a model of fixed batch', fixedNet, (tensors) => tensors],
    ['a module', echo, ({ x }) => [x, { x }]],
    [
      'a module as a plain value',
      echo,
      ({ x, state, rate }) => Batch.ofValues([x, { state }, [rate]]),
    ],
  ])(
    '[5.4] A caller keeps the memory of tensors passed to %s unchanged',
    async (_, definition, inputOf) => {
      const serving = await serve(definition);
      const tensors = step(1);

      for (let call = 0; call < 2; call++) {
        await Promise.all([serving.batchedRun(inputOf(tensors)), serving.run(inputOf(tensors))]);
      }

      expect(tensors).toEqual(step(1));
    },
  );

  it.each<[string, ServingDefinition]>([
    ['a model', net],
    ['a model of fixed batch', fixedNet],
  ])(
    '[5.4] A tensor from %s belongs to its caller and holds only its rows',
    async (_, definition) => {
      const serving = await serve<Record<'y' | 'next' | 'used', Tensor>>(definition);

      const replies = await Promise.all([1, 2, 3].map((n) => serving.batchedRun(step(n))));

      for (const [n, { y, next, used }] of replies.entries()) {
        expect([y, next, used].map(bytesOf)).toEqual([3 * 4, 6 * 4, 8]);
        expect([...(y.data as Float32Array)]).toEqual([8, 8, 8].map((factor) => factor * (n + 1)));
        [y, next].forEach(({ data }) => (data as Float32Array).fill(NaN));
        (used.data as BigInt64Array).fill(0n);
      }
    },
  );

  it.each<[string, unknown[], unknown[]]>([
    ['a view of a table', [0, 1], [2, 3]],
    ['a pooled Buffer', [0, 1], [2, 3]],
    ['shared memory', [0, 0], [2, 2]],
    ['memory that may not move', [0, 1], [0, 1]],
    ['one tensor for all rows', [1, 2], [1, 2]],
  ])(
    '[5.4] A tensor belongs to its caller when a module returns %s',
    async (output, first, second) => {
      const serving = await serve<Tensor>({
        name: 'outputs',
        model: { useFile: worker('outputs') },
      });

      const replies = await Promise.all([0, 2].map((n) => serving.batchedRun({ output, n })));

      expect(replies.map(({ data }) => [...data])).toEqual([first, second]);
      expect(replies.map(bytesOf)).toEqual(
        replies.map(({ data }) => (data as Uint8Array).byteLength),
      );
      (replies[0]!.data as Uint8Array).fill(7);
      expect([...replies[1]!.data]).toEqual(second);
    },
  );

  it.each([
    ['thread', 5],
    // A native run writes outputs into memory that we allocate: for each of ten batches.
    [undefined, 15],
  ] as const)(
    '[5.4] Large batches (%s) use the memory of earlier ones, and no row changes by that',
    async (isolation, limit) => {
      const width = 40_000;
      const row = (n: number): Tensor =>
        new Tensor('float32', new Float32Array(width).fill(n), [1, width]);
      const serving = await serve<Record<'same_x', Tensor>>({
        name: 'echo',
        model: { file: echoModel({ x: value('float32', 'batch', width) }), isolation },
        batchSize: 4,
      });
      const allocate = jest.spyOn(Buffer, 'allocUnsafeSlow');
      // The spy holds what it was given, which the collector could take otherwise.
      jest.spyOn(SpareMemory.prototype, 'keep');

      const replies: Tensor[] = [];
      for (let at = 0; at < 40; at += 8) {
        const calls = Array.from({ length: 8 }, (_, i) => serving.batchedRun({ x: row(at + i) }));
        replies.push(...(await Promise.all(calls)).map(({ same_x }) => same_x));
      }

      // One runs while the next is made.
      expect(allocate.mock.calls.filter(([bytes]) => bytes >= width * 4).length).toBeLessThan(
        limit,
      );
      replies.forEach(({ data }, n) => expect(data).toEqual(new Float32Array(width).fill(n)));
    },
  );

  it('[5.4] [6.3] A tensor that a module returns twice fails its second batch alone, with advice', async () => {
    const serving = await serve<Tensor>({ name: 'outputs', model: { useFile: worker('outputs') } });
    const call = (output: string, n: number): Promise<Tensor> => serving.batchedRun({ output, n });
    const kept = 'a tensor that it keeps';

    expect((await call(kept, 0)).data).toEqual(Float32Array.of(1, 2));
    await expect(call(kept, 0)).rejects.toThrow(InvalidOutputError);
    await expect(call(kept, 0)).rejects.toThrow('to return it again, keep it and return a copy');
    expect((await call('a view of a table', 4)).data).toEqual(Float32Array.of(4, 5));
  });
});
