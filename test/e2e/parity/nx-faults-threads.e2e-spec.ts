import { describe, expect, it } from '@jest/globals';
import { Batch, createServing, type ServingDefinition } from 'nestjs-serving';
import { recordBatches } from 'nestjs-serving/testing';
import { firstValueFrom } from 'rxjs';
import { collect } from '../../fixtures/async/collect.js';
import { doubled, numbers } from '../../fixtures/batching/doubling.js';
import { useGates } from '../../fixtures/batching/gate.js';
import { linearModel } from '../../fixtures/models/models.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { turn } from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';

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
        model: { useFile: worker('gate') },
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
      model: { useFile: worker('doubling') },
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
    [
      'a file',
      { model: { useFile: worker('doubling') } },
      { x: floats([2, 3], [1, 2, 3, 4, 5, 6]) },
    ],
    [
      'a function',
      { model: { useFactory: () => doubled } },
      { x: floats([2, 3], [1, 2, 3, 4, 5, 6]) },
    ],
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
      model: { useFile: worker('counted') },
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
    const serving = await serve({ name: 'echo', model: { useFile: worker('echo') } });
    const rows = [{ text: 'größer', at: new Date(0) }, 'text', [1, [2n]], null];

    expect(await Promise.all(rows.map((row) => serving.batchedRun(row)))).toEqual(rows);
  });
});
