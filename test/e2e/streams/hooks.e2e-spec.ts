import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  type BatchContext,
  type BatchEndEvent,
  defineServing,
  DONE,
  InvalidInputError,
  InvalidOutputError,
  InvalidServingError,
  type ServingDefinition,
  type Tensor,
} from 'nestjs-serving';
import type { HookEvent } from '../../../lib/core/definition/reply.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { value } from '../../fixtures/models/models.js';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { worker } from '../../fixtures/partitions/worker.js';

/** Emits the hooks that a row names and returns the names of the subscribed ones. */
const saying = (
  rows: { name: string; says?: readonly string[] }[],
  { emit, hooks }: BatchContext,
): string[] => {
  const names = rows.map(({ name }) => name);
  rows
    .find(({ says }) => says)
    ?.says!.forEach((word, i) =>
      emit(
        word,
        names.map((name) => `${name} ${word} ${i}`),
      ),
    );
  return names.map((name) => `${name} of ${hooks.join()}`);
};

/** `h = x + x`, `t` its transpose, `y = h * h`. */
const layered = onnxModel({
  inputs: { x: value('float32', 'batch', 2) },
  outputs: {
    y: value('float32', 'batch', 2),
    h: value('float32', 'batch', 2),
    t: value('float32', 2, 'batch'),
  },
  nodes: [
    node('Add', ['x', 'x'], ['h']),
    node('Transpose', ['h'], ['t'], { perm: [1, 0] }),
    node('Mul', ['h', 'h'], ['y']),
  ],
});

const named = (...names: string[]): Batch =>
  Batch.stack(names.map((name) => ({ name, says: ['x'] })));
const x = (...values: number[]): Tensor => floats([values.length / 2, 2], values);

describe('Hooks', () => {
  const serve = useServings();

  describe.each<[string, (batchSize?: number) => ServingDefinition]>([
    [
      'a function',
      (batchSize = 8) => ({
        name: 'saying',
        model: { useFactory: () => saying },
        batchSize,
        batchTimeout: 1,
      }),
    ],
    [
      'a class',
      (batchSize = 8) => ({
        name: 'saying',
        batchSize,
        batchTimeout: 1,
        model: {
          useClass: class {
            init(): void {}
            handleBatch(batch: Batch, _partition: number, context: BatchContext) {
              return { output: saying(batch.consume() as { name: string }[], context) };
            }
          },
        },
      }),
    ],
    [
      'a thread',
      (batchSize = 8) => ({
        name: 'saying',
        model: { useFile: worker('saying') },
        batchSize,
        batchTimeout: 1,
      }),
    ],
    [
      'a process',
      (batchSize = 8) => ({
        name: 'saying',
        model: { useFile: worker('saying'), isolation: 'process' },
        batchSize,
        batchTimeout: 1,
      }),
    ],
  ])('of %s', (_, definition) => {
    it('[8.3] Hooks arrive in the order of emission and before the output', async () => {
      const serving = await serve<string>(definition());
      const input = { name: 'a', says: ['x', 'y', 'x', 'z', 'y'] };

      const events = await iterated(serving.stream(input, { hooks: ['x', 'y'] }));

      expect(events).toEqual([
        { hook: 'x', value: 'a x 0' },
        { hook: 'y', value: 'a y 1' },
        { hook: 'x', value: 'a x 2' },
        { hook: 'y', value: 'a y 4' },
        { batch: { offset: 0, rows: 1 }, output: 'a of x,y', metadata: undefined },
      ]);
    });

    it('[8.3] Each caller in a batch gets its own rows of the hooks that it subscribed to', async () => {
      const serving = await serve(definition());
      const batches: number[] = [];
      serving.eventsOf('batch:end').subscribe(({ rows }) => batches.push(rows));

      const replies = await Promise.all([
        iterated(serving.stream({ name: 'a', says: ['x', 'y'] }, { hooks: ['x'] })),
        iterated(
          serving.stream(Batch.stack([{ name: 'b' }, { name: 'c' }]), { hooks: ['y', 'x'] }),
        ),
        iterated(serving.stream({ name: 'd' })),
        iterated(serving.stream({ name: 'e' }, { hooks: [] })),
        serving.batchedRun({ name: 'f' }),
      ]);

      expect(batches).toEqual([6]);
      expect(replies.slice(0, 4).map((events) => outputsOf(events as HookEvent[]))).toEqual([
        [{ x: 'a x 0' }, 'a of x,y'],
        [{ x: ['b x 0', 'c x 0'] }, { y: ['b y 1', 'c y 1'] }, ['b of x,y', 'c of x,y']],
        ['d of x,y'],
        ['e of x,y'],
      ]);
      expect(replies[4]).toBe('f of x,y');
    });

    it('[8.3] A call with hooks stays in one batch, and the batch before it is flushed when it does not fit', async () => {
      const serving = await serve(definition(3));
      const batches: Pick<BatchEndEvent, 'rows' | 'reason'>[] = [];
      serving.eventsOf('batch:end').subscribe(({ rows, reason }) => batches.push({ rows, reason }));

      const [, events] = await Promise.all([
        serving.batchedRun(named('a', 'b')),
        iterated(serving.stream(named('c', 'd', 'e'), { hooks: ['x'] })),
      ]);

      expect(batches).toEqual([
        { rows: 2, reason: 'flush' },
        { rows: 3, reason: 'full' },
      ]);
      expect(outputsOf(events)).toEqual([
        { x: ['c x 0', 'd x 0', 'e x 0'] },
        ['c of x', 'd of x', 'e of x'],
      ]);
    });

    it('[8.3] A call with hooks and more rows than a batch is refused', async () => {
      const serving = await serve(definition(2));

      await expect(
        iterated(serving.stream(Batch.stack([1, 2, 3]), { hooks: ['x'] })),
      ).rejects.toThrow(InvalidInputError);
      await expect(
        iterated(serving.stream(Batch.stack([1, 2, 3]), { hooks: ['x'] })),
      ).rejects.toThrow('its 3 rows are more than the batch size of 2');
    });

    it('[8.3] [8.5] Hooks arrive for each batch of a sequence before its output', async () => {
      const serving = await serve(definition(2));
      const input = [
        { name: 'a', says: ['x'] },
        Batch.stack([{ name: 'b', says: ['x'] }, { name: 'c' }]),
      ];

      const events = await iterated(serving.stream(input.values(), { hooks: ['x'] }));

      expect(outputsOf(events)).toEqual([
        { x: ['a x 0'] },
        ['a of x'],
        { x: ['b x 0', 'c x 0'] },
        ['b of x', 'c of x'],
      ]);
    });

    it('[8.3] Inline runs emit hooks', async () => {
      const serving = await serve(definition());

      const events = await iterated(
        serving.stream({ name: 'a', says: ['x'] }, { hooks: ['x'], inline: true }),
      );

      expect(outputsOf(events)).toEqual([{ x: 'a x 0' }, 'a of x']);
    });
  });

  it.each<[string, object]>([
    [
      'a function',
      {
        model: {
          useFactory:
            () =>
            (rows: unknown[], { emit }: BatchContext) => (emit('x', ['one too few']), rows),
        },
      },
    ],
    ['a thread', { model: { useFile: worker('short-hook') } }],
    ['a process', { model: { useFile: worker('short-hook'), isolation: 'process' } }],
  ])('[8.3] [6.3] Hooks of %s without a value for each row fail the batch', async (_, how) => {
    const serving = await serve({ name: 'short', batchTimeout: 1, ...how } as ServingDefinition);

    const replies = await Promise.allSettled([
      iterated(serving.stream('a', { hooks: ['x'] })),
      iterated(serving.stream('b')),
      serving.batchedRun('c'),
    ]);

    const reason = expect.any(InvalidOutputError);
    expect(replies).toEqual(replies.map(() => ({ status: 'rejected', reason })));
    expect(await Promise.all(['a', 'b'].map((text) => serving.batchedRun(text)))).toEqual([
      'a',
      'b',
    ]);
  });

  it('[8.3] [8.4] Hooks of a generator arrive between its steps', async () => {
    const serving = await serve({
      name: 'steps',
      model: {
        useFactory: () =>
          async function* (rows: string[], { emit }: BatchContext) {
            for (let step = 0; step < 2; step++) {
              emit(
                'x',
                rows.map(() => step),
              );
              yield rows.map((row) => `${row}${step}`);
            }
            emit(
              'x',
              rows.map(() => 'end'),
            );
            yield rows.map(() => DONE);
          },
      },
    });

    const events = await iterated(serving.stream('a', { hooks: ['x'] }));

    expect(outputsOf(events)).toEqual([{ x: 0 }, 'a0', { x: 1 }, 'a1', { x: 'end' }]);
  });

  it('[8.3] Hooks pass postprocess unchanged, and postprocessStream can shape them with the output', async () => {
    const definition = { name: 'saying', model: { useFactory: () => saying } };
    const input = { name: 'a', says: ['x'] };
    const shaped = await serve(
      defineServing({ ...definition, postprocess: (output: string) => output.toUpperCase() }),
    );
    expect(outputsOf(await iterated(shaped.stream(input, { hooks: ['x'] })))).toEqual([
      { x: 'a x 0' },
      'A OF X',
    ]);

    const whole = await serve({
      ...definition,
      postprocessStream: async function* (events) {
        for await (const event of events) {
          yield 'hook' in event ? event.hook : event.output;
        }
      },
    });
    expect(await iterated(whole.stream(input, { hooks: ['x'] }))).toEqual(['x', 'a of x']);
  });

  describe('of a model', () => {
    it('[8.3] The hooks of a model are its outputs, and a call without hooks gets only the fetched ones', async () => {
      const serving = await serve({ name: 'layered', model: { file: layered, fetches: ['y'] } });

      expect(await serving.batchedRun(x(1, 2))).toEqual({ y: x(4, 16) });
      expect(outputsOf(await iterated(serving.stream(x(1, 2))))).toEqual([{ y: x(4, 16) }]);
      expect(outputsOf(await iterated(serving.stream(x(1, 2), { hooks: ['h', 'y'] })))).toEqual([
        { h: x(2, 4) },
        { y: x(4, 16) },
        { y: x(4, 16) },
      ]);
    });

    it("[8.3] Each caller in a batch gets its own rows of a model's hooks, on any batch axis", async () => {
      const serving = await serve({
        name: 'layered',
        model: { file: layered, fetches: ['y'] },
        batchTimeout: 1,
        batchSize: [4],
      });

      const replies = await Promise.all([
        iterated(serving.stream(x(1, 2, 3, 4), { hooks: ['t'] })),
        iterated(serving.stream(x(5, 6), { hooks: ['h', 't'] })),
      ]);

      expect(replies.map(outputsOf)).toEqual([
        [{ t: floats([2, 2], [2, 6, 4, 8]) }, { y: x(4, 16, 36, 64) }],
        [{ t: floats([2, 1], [10, 12]) }, { h: x(10, 12) }, { y: x(100, 144) }],
      ]);
    });

    it('[8.3] A hook that is no output of the model is refused with the names of its outputs', async () => {
      const serving = await serve({ name: 'layered', model: { file: layered, fetches: ['y'] } });

      for (const inline of [false, true]) {
        const reading = iterated(serving.stream(x(1, 2), { hooks: ['h', 'logits'], inline }));
        await expect(reading).rejects.toThrow(
          new InvalidInputError(
            'The model of serving "layered" has no output "logits" that could be a hook; it has y, h, t',
          ),
        );
      }
    });

    it('[8.3] Fetching an output that the model does not have fails the boot', async () => {
      await expect(
        serve({ name: 'layered', model: { file: layered, fetches: ['logits'] } }),
      ).rejects.toThrow(InvalidServingError);
    });
  });
});
