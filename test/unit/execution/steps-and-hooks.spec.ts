import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  type BatchContext,
  type BatchEndEvent,
  DONE,
  InvalidOutputError,
  type LocalServing,
  type ServingDefinition,
} from 'nestjs-serving';
import { outputsOf } from '../../fixtures/async/streams.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { floats } from '../../fixtures/values/tensors.js';

type Steps = (rows: readonly unknown[], context: BatchContext) => unknown;

/** Reads a stream's outputs and hooks, then its error if it failed. */
async function readOf(stream: AsyncIterable<never>): Promise<unknown[]> {
  const events: never[] = [];
  try {
    for await (const event of stream) {
      events.push(event);
    }
  } catch (error) {
    return [...outputsOf(events), error];
  }
  return outputsOf(events);
}

const read = (serving: LocalServing, rows: readonly unknown[], hooks: readonly string[] = []) =>
  readOf(serving.stream(Batch.ofValues(rows), { hooks }) as AsyncIterable<never>);

describe('A batch of several callers', () => {
  const serve = useServings();
  const start = (steps: Steps, options: Partial<ServingDefinition> = {}): Promise<LocalServing> =>
    serve({
      name: 'runs',
      batchSize: 4,
      model: { useFactory: () => steps as never },
      ...options,
    });
  it('[8.3] lists each hook with consumers once, and gives each caller its own rows of its hooks', async () => {
    let seen: unknown;
    const serving = await start((rows, { emit, hooks }) => {
      seen = hooks;
      emit('x', [1, 2, 3, 4]);
      emit('y', floats([4, 2], [1, 2, 3, 4, 5, 6, 7, 8]));
      emit('w', [1, 2, 3, 4]);
      return rows;
    });

    const replies = await Promise.all([
      read(serving, ['a', 'b'], ['x', 'y']),
      read(serving, ['c']),
      read(serving, ['d'], ['y', 'z']),
    ]);

    expect(seen).toEqual(['x', 'y', 'z']);
    expect(replies).toEqual([
      [{ x: [1, 2] }, { y: floats([2, 2], [1, 2, 3, 4]) }, ['a', 'b']],
      [['c']],
      [{ y: floats([1, 2], [7, 8]) }, ['d']],
    ]);
  });

  it.each<[string, unknown]>([
    ['too few values', [1, 2]],
    ['too many values', [1, 2, 3, 4]],
    ['one value', 1],
    ['nothing', undefined],
    ['tensors with too few rows', floats([2], [1, 2])],
    [
      'tensors with a name that has too many',
      { x: floats([3], [1, 2, 3]), y: floats([4], [1, 2, 3, 4]) },
    ],
  ])('[8.3] A hook with %s is refused and reaches no caller', async (_, value) => {
    let refusal: unknown;
    const serving = await start((rows, { emit }) => {
      try {
        emit('x', value);
      } catch (error) {
        refusal = error;
      }
      return rows;
    });

    const replies = await Promise.all([
      read(serving, ['a', 'b'], ['x']),
      read(serving, ['c'], ['x']),
    ]);

    expect(refusal).toBeInstanceOf(InvalidOutputError);
    expect((refusal as Error).message).toContain('Hook "x": ');
    expect(replies).toEqual([[['a', 'b']], [['c']]]);
  });

  it.each<[string, unknown, string]>([
    ['too few values', [1, 2], 'the 3 rows of its batch; it yielded a list of 2'],
    ['too many values', [1, 2, 3, 4], 'it yielded a list of 4'],
    ['one value', 'abc', 'it yielded'],
    ['nothing', undefined, 'it yielded undefined'],
    ['tensors', floats([3], [1, 2, 3]), 'it yielded'],
  ])('[8.4] A step with %s fails its batch and reaches no caller', async (_, value, message) => {
    const serving = await start(async function* () {
      yield value;
    });

    const replies = await Promise.all([read(serving, ['a', 'b']), read(serving, ['c'])]);

    for (const [error, ...others] of replies) {
      expect(error).toBeInstanceOf(InvalidOutputError);
      expect((error as Error).message).toContain(message);
      expect(others).toEqual([]);
    }
  });

  it('[8.4] gives each caller its own rows of a step, and knows for each row whether one waits', async () => {
    const waiting: boolean[][] = [];
    const leave = new AbortController();
    const serving = await start(async function* (_, { isWaiting }) {
      const look = (): unknown => waiting.push([0, 1, 2, 3, -1].map((row) => isWaiting(row)));
      look();
      yield [1, DONE, 3];
      look();
      leave.abort(new Error('left'));
      look();
      yield [4, 5, DONE];
      look();
    });

    const stream = serving.stream('c', { signal: leave.signal }) as AsyncIterable<never>;
    const [ab, c] = await Promise.all([read(serving, ['a', 'b']), readOf(stream)]);

    expect(ab).toEqual([
      [1, undefined],
      [4, undefined],
    ]);
    expect(c).toEqual([3, new Error('left')]);
    expect(waiting).toEqual([
      [true, true, true, false, false],
      [true, false, true, false, false],
      [true, false, false, false, false],
      [true, false, false, false, false],
    ]);
  });

  it('[8.4] A step includes the padding rows, for which no caller waits', async () => {
    let ended: BatchEndEvent | undefined;
    let waiting: boolean[] = [];
    const serving = await start(
      async function* (_, { isWaiting }) {
        // Its warm-up has no callers.
        waiting = [isWaiting(2), isWaiting(3)];
        yield [1, 2, 3, DONE];
      },
      { batchSize: [4], warmUp: [floats([1], [0])] },
    );
    serving.eventsOf('batch:end').subscribe((event) => (ended = event));

    const rows = floats([3], [1, 2, 3]);
    const stream = serving.stream(rows) as AsyncIterable<never>;

    expect(await readOf(stream)).toEqual([[1, 2, 3]]);
    expect(waiting).toEqual([true, false]);
    expect(ended).toMatchObject({ rows: 3, padding: 1 });
  });

  it('[8.4] [6.1] that fails fails only the calls with rows that had not ended', async () => {
    const error = new Error('out of memory');
    const serving = await start(async function* () {
      yield [DONE, DONE, 'd1'];
      throw error;
    });

    const [ended, waits] = await Promise.all([read(serving, ['b', 'c']), read(serving, ['d'])]);

    expect(ended).toEqual([]);
    expect(waits).toEqual([
      ['d1'],
      expect.objectContaining({ cause: error, message: expect.stringContaining('out of memory') }),
    ]);
  });
});
