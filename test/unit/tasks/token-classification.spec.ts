import { describe, expect, it } from '@jest/globals';
import {
  InvalidInputError,
  InvalidServingError,
  type LocalServing,
  RequestTooLargeError,
} from 'nestjs-serving';
import {
  type EntityAggregation,
  type TextEntity,
  tokenClassification,
  type TokenClassificationOptions,
} from '../../../lib/extensions/tasks/index.js';
import { useTypedServings } from '../../fixtures/serving/use-servings.js';
import { readTiny, tinyModel } from '../../fixtures/tasks/tiny-models.js';

const TAGGERS = ['tagger', 'tagger-bytes'] as const;
type Tagger = (typeof TAGGERS)[number];

/** What Python finds: offsets in code points. */
type Found = readonly [label: string, score: number, start: number, end: number];

const { texts, entities } = JSON.parse(readTiny('entities.json').toString()) as {
  readonly texts: readonly string[];
  readonly entities: Readonly<Record<Tagger, Record<EntityAggregation, readonly Found[][]>>>;
};

const begin = useTypedServings();

function launch(
  tagger: Tagger,
  options: Partial<TokenClassificationOptions> = {},
): Promise<LocalServing<string, readonly TextEntity[]>> {
  return begin(
    tokenClassification({
      name: 'net',
      model: tinyModel(tagger),
      tooLong: 'cut',
      specialTokens: 'accept',
      ...options,
    }),
  );
}

function isClose(one: number, other: number): boolean {
  return Math.abs(one - other) < 1e-5;
}

describe.each(TAGGERS)('tokenClassification with %s', (tagger) => {
  it.each(['none', 'simple', 'first', 'average', 'max'] as const)(
    "[22.15] finds Python's entities of hard texts, by aggregation %s",
    async (aggregation) => {
      const serving = await launch(tagger, { aggregation });
      const replies = await Promise.all(texts.map((text) => serving.batchedRun(text)));
      const wrong = texts.flatMap((text, i) => {
        const points = Array.from(text);
        const unit = (place: number): number => points.slice(0, place).join('').length;
        const found = entities[tagger][aggregation][i]!;
        const isEqual =
          replies[i]!.length === found.length &&
          found.every(([label, score, start, end], j) => {
            const ours = replies[i]![j]!;
            const isSame = ours.label === label && isClose(ours.score, score);
            return isSame && ours.start === unit(start) && ours.end === unit(end);
          });
        return isEqual ? [] : [{ text, ours: replies[i], found }];
      });
      expect(wrong).toEqual([]);
    },
  );

  it('[22.15] gives each entity its part of the text, in UTF-16 units', async () => {
    const serving = await launch(tagger);
    const replies = await Promise.all(texts.map((text) => serving.batchedRun(text)));
    const parts = replies.flatMap((found, i) =>
      found.map(({ text, start, end }) => [text, texts[i]!.slice(start, end)]),
    );
    expect(parts.length).toBeGreaterThan(100);
    expect(parts.filter(([part, slice]) => part !== slice)).toEqual([]);
  });
});

describe('tokenClassification', () => {
  it('[22.15] gives a batched text the entities of the text alone', async () => {
    const serving = await launch('tagger');
    const together = await Promise.all(texts.map((text) => serving.batchedRun(text)));
    const apart: unknown[] = [];
    for (const text of texts) {
      apart.push(await serving.batchedRun(text));
    }
    expect(together).toEqual(apart);
  });

  it('[22.15] leaves out the labels of ignoredLabels alone', async () => {
    const [text] = texts;
    const all = await (await launch('tagger', { ignoredLabels: [] })).batchedRun(text!);
    const some = await (await launch('tagger', { ignoredLabels: ['LOC'] })).batchedRun(text!);
    expect(all.map(({ label }) => label)).toEqual(expect.arrayContaining(['LOC', 'O']));
    expect(some).toEqual(all.filter(({ label }) => label !== 'LOC'));
  });

  it.each(TAGGERS)(
    '[22.26] reads special tokens as plain text, with places: %s',
    async (tagger) => {
      const text = 'Ann [SEP] </s> <|endoftext|> met Bob in Rome';
      const plain = await launch(tagger, { specialTokens: 'text', aggregation: 'none' });
      const read = await launch(tagger, { aggregation: 'none' });
      const [found, other] = [await plain.batchedRun(text), await read.batchedRun(text)];
      for (const entity of found) {
        expect(text.slice(entity.start, entity.end)).toBe(entity.text);
      }
      expect(found).not.toEqual(other);
    },
  );

  it('[22.15] refuses what it cannot read, for its caller alone', async () => {
    const serving = await launch('tagger', { tooLong: 'refuse', specialTokens: 'refuse' });
    const long = 'word '.repeat(100);
    const replies = await Promise.allSettled(
      ['', 7, null, 'a [SEP] b', long, long.repeat(400), 'Ada lives in London'].map((text) =>
        serving.batchedRun(text as string),
      ),
    );
    const reasons = replies.map((reply) =>
      reply.status === 'rejected' ? (reply.reason as object).constructor : 'fulfilled',
    );
    expect(reasons).toEqual([
      InvalidInputError,
      InvalidInputError,
      InvalidInputError,
      InvalidInputError,
      RequestTooLargeError,
      RequestTooLargeError,
      'fulfilled',
    ]);
  });

  it('[22.15] cuts a text to the most tokens, special tokens included', async () => {
    const serving = await launch('tagger', {
      maxTokens: 6,
      aggregation: 'none',
      ignoredLabels: [],
    });
    await expect(serving.batchedRun('a b c d e f g h')).resolves.toHaveLength(4);
  });

  it('[22.15] names the labels by their numbers if the files name none', async () => {
    const files = {
      'config.json': JSON.stringify({ max_position_embeddings: 64 }),
      'tokenizer.json': readTiny('tagger/tokenizer.json'),
      'onnx/model.onnx': readTiny('tagger/onnx/model.onnx'),
    };
    const serving = await launch('tagger', { model: { from: files, isolation: 'none' } });
    const found = await serving.batchedRun(texts[0]!);
    expect(found.map(({ label }) => label)).toContain('LABEL_4');
  });

  it.each([
    [{ aggregation: 'all' }, /option "aggregation" is "all"/],
    [{ ignoredLabels: 'O' }, /option "ignoredLabels" is "O"/],
  ])('[22.15] refuses the options %j', (options, message) => {
    const make = () => tokenClassification({ name: 'net', model: '.', ...(options as object) });
    expect(make).toThrow(InvalidServingError);
    expect(make).toThrow(message);
  });

  it('[22.15] says at the start that a tokenizer cannot be used', async () => {
    const files = {
      'config.json': JSON.stringify({ max_position_embeddings: 64 }),
      'tokenizer.json': JSON.stringify({ model: { type: 'none' } }),
      'onnx/model.onnx': readTiny('tagger/onnx/model.onnx'),
    };
    const starting = launch('tagger', { model: { from: files, isolation: 'none' } });
    await expect(starting).rejects.toThrow(/The tokenizer of the given files cannot be used: /);
  });
});
