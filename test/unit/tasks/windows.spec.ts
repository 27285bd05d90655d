import { describe, expect, it } from '@jest/globals';
import { InvalidServingError, RequestTooLargeError } from 'nestjs-serving';
import {
  rerank,
  textClassification,
  textEmbedding,
  tokenClassification,
} from 'nestjs-serving/tasks';
import { useTypedServings } from '../../fixtures/serving/use-servings.js';
import { tinyModel } from '../../fixtures/tasks/tiny-models.js';

const start = useTypedServings();

/** Words of one token each, so that windows of six tokens have four of them. */
const WORDS = ['rows', 'batch', 'for', 'that', 'serving', 'call', 'one', 'run', 'its', 'key'];
const windowed = { name: 'net', maxTokens: 6, tooLong: 'window' as const };
const text = (from: number, to: number): string => WORDS.slice(from, to).join(' ');
const mean = (rows: readonly ArrayLike<number>[], weights: readonly number[]): number[] => {
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return Array.from(rows[0]!, (_, at) =>
    rows.reduce((total, row, i) => total + (row[at]! * weights[i]!) / sum, 0),
  );
};
const close = (values: readonly number[]): unknown[] =>
  values.map((value) => expect.closeTo(value, 5));

const placesOf = ({ start: from, end }: { readonly start: number; readonly end: number }) => [
  from,
  end,
];

describe("tooLong: 'window'", () => {
  it('[22.27] A vector is the mean of the vectors of windows, by the tokens that each adds', async () => {
    const model = tinyModel('embedder');
    const whole = await start(textEmbedding({ name: 'whole', model, normalize: false }));
    const own = await start(textEmbedding({ ...windowed, model, normalize: false, overlap: 1 }));
    const all = await Promise.all(
      [text(0, 4), text(3, 7), text(6, 10)].map((part) => whole.batchedRun(part)),
    );
    const { vector, tokens, windows } = await own.batchedRun(WORDS.join(' '));
    expect([...vector]).toEqual(
      close(
        mean(
          all.map((each) => each.vector),
          [4, 3, 3],
        ),
      ),
    );
    expect([tokens, windows]).toEqual([18, 3]);

    // The last window begins earlier, and adds less.
    const eight = await own.batchedRun(text(0, 8));
    const parts = [text(0, 4), text(3, 7), text(4, 8)].map((part) => whole.batchedRun(part));
    const vectors = (await Promise.all(parts)).map((each) => each.vector);
    expect([...eight.vector]).toEqual(close(mean(vectors, [4, 3, 1])));

    const short = await own.batchedRun(text(0, 4));
    expect(short).toEqual(await whole.batchedRun(text(0, 4)));
  });

  it('[22.27] Each window has the prompt', async () => {
    const options = { model: tinyModel('embedder'), normalize: false, prompts: { query: 'key ' } };
    const whole = await start(textEmbedding({ name: 'whole', ...options }));
    const own = await start(textEmbedding({ ...windowed, ...options, overlap: 0 }));
    const { vector, windows } = await own.batchedRun({ text: text(0, 6), prompt: 'query' });
    const parts = await Promise.all(
      [text(0, 3), text(3, 6)].map((part) => whole.batchedRun({ text: part, prompt: 'query' })),
    );
    expect(windows).toBe(2);
    expect([...vector]).toEqual(
      close(
        mean(
          parts.map((part) => part.vector),
          [3, 3],
        ),
      ),
    );
  });

  it('[22.27] Scores of labels are the mean of the windows', async () => {
    const model = tinyModel('classifier');
    const whole = await start(textClassification({ name: 'whole', model }));
    const own = await start(textClassification({ ...windowed, model, overlap: 0 }));
    const parts = await Promise.all([text(0, 4), text(4, 8)].map((part) => whole.batchedRun(part)));
    const scoreOf = (label: string, i: number): number =>
      parts[i]!.find((each) => each.label === label)!.score;
    const found = await own.batchedRun(text(0, 8));
    for (const { label, score } of found) {
      expect(score).toBeCloseTo((scoreOf(label, 0) + scoreOf(label, 1)) / 2, 5);
    }
    expect(found.map(({ score }) => score)).toEqual(
      found.map(({ score }) => score).toSorted((a, b) => b - a),
    );

    const pair = own.batchedRun({ text: text(0, 4), pair: text(4, 8) });
    await expect(pair).rejects.toThrow(RequestTooLargeError);
  });

  it.each(['tagger', 'tagger-bytes'] as const)(
    '[22.27] Each token is labelled once, in the window in which most tokens surround it: %s',
    async (name) => {
      const options = { model: tinyModel(name), aggregation: 'none' as const, ignoredLabels: [] };
      const whole = await start(tokenClassification({ name: 'whole', ...options }));
      const own = await start(
        tokenClassification({ ...windowed, ...options, maxTokens: 12, overlap: 4 }),
      );
      const long = 'Ann met Bob 😀 in Rome, and Émile went to Paris with Zoë.';
      const [all, found] = [await whole.batchedRun(long), await own.batchedRun(long)];
      expect(found.map(placesOf)).toEqual(all.map(placesOf));
      expect(found.every((each) => long.slice(each.start, each.end) === each.text)).toBe(true);
      expect(await own.batchedRun('Ann')).toEqual(await whole.batchedRun('Ann'));
    },
  );

  it('[22.27] Long texts are tokenized in a thread, and have at most 64 windows', async () => {
    const own = await start(
      textEmbedding({ ...windowed, model: tinyModel('embedder'), overlap: 0 }),
    );
    expect((await own.batchedRun('rows '.repeat(256))).windows).toBe(64);
    const refused = own.batchedRun('rows '.repeat(257));
    await expect(refused).rejects.toThrow(RequestTooLargeError);
    await expect(refused).rejects.toThrow('reads at most 64 windows of a text, of 6 tokens each');
    await expect(own.batchedRun('rows '.repeat(130_000))).rejects.toThrow(
      'reads at most 64 windows of a text, of 6 tokens each, and one has 650000 characters; ' +
        'shorten it, or split it',
    );
  });

  it.each([
    [{ tooLong: 'window', overlap: 3 }, 'overlap is 3, and a window has 6 tokens; give less'],
    [{ tooLong: 'cut', overlap: 1 }, "overlap does nothing without tooLong: 'window'"],
    [{ overlap: -1 }, 'overlap'],
  ] as const)('[22.27] An unusable overlap fails the start: %j', async (options, message) => {
    const failed = (async () =>
      start(
        textEmbedding({ name: 'net', model: tinyModel('embedder'), maxTokens: 6, ...options }),
      ))();
    await expect(failed).rejects.toThrow(InvalidServingError);
    await expect(failed).rejects.toThrow(message);
  });

  it('[22.27] Pairs to rank have no windows', () => {
    const options = { name: 'net', model: tinyModel('reranker'), tooLong: 'window' as never };
    expect(() => rerank(options)).toThrow('option "tooLong" is "window"');
  });
});
