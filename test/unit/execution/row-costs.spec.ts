import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  InvalidInputError,
  type LocalServing,
  RequestTooLargeError,
  type ServingOptions,
  Tensor,
} from 'nestjs-serving';
import { outcomeOf } from '../../fixtures/async/outcome-of.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { floats } from '../../fixtures/values/tensors.js';

describe('batchSize.cost', () => {
  useVirtualTime();
  const startServing = useServings();

  /** A serving of texts that cost their length, and the batches that it ran. */
  async function start(
    options: Partial<ServingOptions> = {},
  ): Promise<[LocalServing, readonly (readonly string[])[]]> {
    const batches: string[][] = [];
    const serving = await startServing<unknown>({
      name: 'texts',
      batchSize: { cost: { of: (text: string) => text.length, most: 8 } },
      ...options,
      model: { useFactory: () => (texts: string[]) => (batches.push(texts), texts) },
    });
    return [serving, batches];
  }

  it('[14.2] Each row of a call has a cost of its own, computed once', async () => {
    const asked: string[] = [];
    const [serving, batches] = await start({
      batchSize: { cost: { of: (text: string) => (asked.push(text), text.length), most: 8 } },
    });
    const replies = [
      serving.batchedRun(Batch.stack(['aaaa', 'bbbb', 'c'])),
      serving.batchedRun('dddddd'),
    ];
    await later();

    expect(await Promise.all(replies)).toEqual([['aaaa', 'bbbb', 'c'], 'dddddd']);
    expect(batches).toEqual([
      ['aaaa', 'bbbb'],
      ['c', 'dddddd'],
    ]);
    expect(asked).toEqual(['aaaa', 'bbbb', 'c', 'dddddd']);
  });

  it('[14.2] A call of run is cut into batches within the budget, too', async () => {
    const [serving, batches] = await start();
    const reply = serving.run(Batch.stack(['aaaa', 'bbbb', 'c', 'dddddd']));
    await later();

    expect(await reply).toEqual(['aaaa', 'bbbb', 'c', 'dddddd']);
    expect(batches).toEqual([
      ['aaaa', 'bbbb'],
      ['c', 'dddddd'],
    ]);
  });

  it('[14.2] The row of a cost is a batch of it alone: tensors have one row', async () => {
    const shapes: unknown[] = [];
    const serving = await startServing<unknown>({
      name: 'tensors',
      batchSize: {
        cost: {
          of: ({ data, dims }: Tensor) => (shapes.push([dims, ...(data as Float32Array)]), 1),
          most: 8,
        },
      },
      model: { useFactory: () => (rows: Tensor) => rows },
    });
    const reply = serving.batchedRun(floats([2, 2], [1, 2, 3, 4]));
    await later();

    expect(await reply).toEqual(floats([2, 2], [1, 2, 3, 4]));
    expect(shapes).toEqual([
      [[1, 2], 1, 2],
      [[1, 2], 3, 4],
    ]);
  });

  it.each([
    [0, '0'],
    [-1, '-1'],
    [NaN, 'NaN'],
    [Infinity, 'Infinity'],
    ['3', '"3"'],
    [undefined, 'undefined'],
  ])('[14.2] A cost of %s fails its own call alone', async (cost, shown) => {
    const [serving] = await start({
      batchSize: {
        cost: { of: (text: string) => (text === 'bad' ? (cost as number) : 1), most: 8 },
      },
    });
    const bad = outcomeOf(serving.batchedRun('bad'));
    const good = outcomeOf(serving.batchedRun('good'));
    await later();

    expect(bad.outcome).toBeInstanceOf(InvalidInputError);
    expect(bad.outcome).toMatchObject({
      message:
        `Serving "texts": batchSize.cost.of returned ${shown} for row 0; allowed is a finite number ` +
        'above 0',
    });
    expect(good.outcome).toBe('good');
    expect(serving.queued).toBe(0);
  });

  it('[E9] [14.2] An error in the cost function fails its own call alone, as an invalid input', async () => {
    const [serving] = await start({
      batchSize: {
        cost: {
          of: (text: string) => {
            if (text === 'bad') {
              throw new RangeError('no cost');
            }
            return 1;
          },
          most: 8,
        },
      },
    });
    const calls = ['bad', 'good'].map((text) => outcomeOf(serving.batchedRun(text)));
    await later();

    const [bad, good] = calls.map(({ outcome }) => outcome);
    expect(bad).toBeInstanceOf(InvalidInputError);
    expect(bad).toMatchObject({
      message: 'Serving "texts": batchSize.cost.of failed for row 0: no cost',
      cause: new RangeError('no cost'),
    });
    expect(good).toBe('good');
  });

  it('[14.2] A row that alone costs more than a batch may is refused', async () => {
    const [serving] = await start();
    const call = outcomeOf(serving.batchedRun(Batch.stack(['fine', 'too expensive'])));
    await later();

    expect(call.outcome).toBeInstanceOf(RequestTooLargeError);
    expect(call.outcome).toMatchObject({
      message:
        'Serving "texts" runs batches that cost at most 8, and row 1 costs 13; shorten it, or ' +
        'raise batchSize.cost.most',
    });
    expect(serving.queued).toBe(0);
  });

  it('[14.2] A call with hooks, which runs whole, is refused if it costs more than a batch may', async () => {
    const [serving] = await start();
    const events = serving.stream(Batch.stack(['aaaa', 'bbbbb']), { hooks: ['any'] });

    await expect(events[Symbol.asyncIterator]().next()).rejects.toThrow(
      'Serving "texts": a call with hooks is never split, and its rows cost 9, more than the 8 ' +
        'of a batch',
    );
  });

  it('[14.2] Examples of warmUp run in batches within the budget', async () => {
    const [, batches] = await start({ warmUp: ['aaa'] });

    expect(batches).toEqual([['aaa', 'aaa']]);
  });

  it.each([
    [{ most: 8 }, 'option "batchSize.cost.of" is undefined; allowed is a function'],
    [{ of: () => 1 }, 'option "batchSize.cost.most" is undefined; allowed is a number above 0'],
    [{ of: () => 1, most: 0 }, 'option "batchSize.cost.most" is 0; allowed is a number above 0'],
    [
      { of: () => 1, most: 8, similar: { overtaking: 2 } },
      'batchSize.cost.similar chooses rows that need little padding, and needs batchSize.cost.padded: true',
    ],
    [
      { of: () => 1, most: 8, padded: true, similar: { overtaking: 0 } },
      'option "batchSize.cost.similar.overtaking" is 0; allowed is a whole number from 1 to 1000000',
    ],
    [
      { of: () => 1, most: 8, padded: true, similar: {} },
      'option "batchSize.cost.similar.overtaking" is undefined; allowed is a whole number from 1 to',
    ],
  ])('[14.2] [14.3] The options %j fail at boot', async (cost, message) => {
    await expect(start({ batchSize: { cost } } as Partial<ServingOptions>)).rejects.toThrow(
      message,
    );
  });

  it('[14.2] A budget beside allowed sizes, whose padding it would not count, fails at boot', async () => {
    const cost = { of: () => 1, most: 8 };
    const batchSize = { rows: [1, 4], cost } as never;
    await expect(start({ batchSize })).rejects.toThrow(
      'the allowed sizes 1, 4 add rows to a batch, which batchSize.cost does not count; leave one of them out',
    );
  });
});
