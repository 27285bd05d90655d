import { readFileSync } from 'node:fs';
import { describe, expect, it, jest } from '@jest/globals';
import { ServingLoadError } from 'nestjs-serving';
import { AddedTokens } from '../../../lib/extensions/tasks/added-tokens.js';
import {
  loadLibrary,
  TextLimits,
  type TextTokenizer,
  type Tokens,
  textTokenizer,
} from '../../../lib/extensions/tasks/text-tokenizer.js';
import { mendTokenizer } from '../../../lib/extensions/tasks/tokenizer-mends.js';
import { tokenizing } from '../../../lib/extensions/tasks/tokenizing.js';

const folder = new URL('../../fixtures/tasks/', import.meta.url);
const { texts, pairs } = read('texts.json') as {
  readonly texts: readonly string[];
  readonly pairs: readonly (readonly [one: string, other: string, maxTokens: number])[];
};

function read(path: string): unknown {
  return JSON.parse(readFileSync(new URL(path, folder), 'utf8'));
}

async function tokenizer(
  family: string,
  options: { maxTokens?: number; tooLong?: 'cut'; specialTokens?: string[] } = {},
  others: object = {},
): Promise<TextTokenizer> {
  const tokenizerJson = { ...(read(`tokenizers/${family}.json`) as object), ...others };
  const limits = { serving: 'net', maxTokens: 10_000, tooLong: 'refuse' as const, canBeCut: true };
  return textTokenizer(
    { name: 'it', tokenizerJson, ofTokenizer: {}, lowers: false },
    new TextLimits({ ...limits, specialTokens: [], ...options }),
  );
}

/** Python's ids of texts whose special tokens are plain text, by the tokenizer's file. */
const split = read('split.json') as Readonly<Record<string, readonly [string, number[]][]>>;

it.each(Object.entries(split))(
  '[22.26] reads special tokens as plain text, as Python does: %s',
  async (path, cases) => {
    const tokenizerJson = read(path) as Record<string, unknown>;
    const { special: all } = new AddedTokens(tokenizerJson);
    const limits = {
      serving: 'net',
      maxTokens: 10_000,
      tooLong: 'refuse' as const,
      canBeCut: true,
    };
    const own = await textTokenizer(
      { name: 'it', tokenizerJson, ofTokenizer: {}, lowers: false },
      new TextLimits({ ...limits, specialTokens: [...all], areText: true }),
    );
    expect(cases.map(([text]) => [text, own.encode(text).ids])).toEqual(cases);
  },
);

describe.each(['bert', 'bert-cased', 'roberta', 'qwen', 'llama'])('The tokenizer %s', (family) => {
  const python = read(`tokenizers/${family}.ids.json`) as {
    readonly single: readonly (readonly number[])[];
    readonly pairs: readonly (readonly [ids: readonly number[], types: readonly number[]])[];
    readonly cut: readonly (readonly [number[], number[], single: number[]])[];
  };

  it('[22.8] [FQ11] gives the ids of Python for hard texts, and refuses those that have none', async () => {
    const own = await tokenizer(family);
    const ids = texts.map((text, i) => {
      if (python.single[i]!.length > 0) {
        return own.encode(text).ids;
      }
      expect(() => own.encode(text)).toThrow('a text that has no tokens');
      return [];
    });
    expect(differing(ids, python.single)).toEqual([]);
  });

  it('[22.8] gives the ids and types of Python for pairs of texts', async () => {
    const own = await tokenizer(family);
    const both = pairs.map(([one, other]) => own.encodePair(one, other));
    expect(
      differing(
        both.map(({ ids, types }) => [ids, types]),
        python.pairs,
      ),
    ).toEqual([]);
  });

  it('[22.8] [22.4] cuts texts and pairs as Python does', async () => {
    const cut = await Promise.all(
      pairs.map(async ([one, other, maxTokens]) => {
        const own = await tokenizer(family, { maxTokens, tooLong: 'cut' });
        const { ids, types } = own.encodePair(one, other);
        return [ids, types, own.encode(one).ids];
      }),
    );
    expect(differing(cut, python.cut)).toEqual([]);
  });
});

const marks = (count: number): string => '\u0301\u0316'.repeat(count / 2);

describe('A text that costs much', () => {
  it.each(['bert', 'roberta', 'qwen', 'llama'])(
    '[FZ2] At most 30 combining marks may follow each other in a text: %s',
    async (family) => {
      const own = await tokenizer(family);
      const refused = 'combining marks in a row; at most 30 may follow each other';
      expect(() => own.encode(`a${marks(30)}b${marks(30)}`)).not.toThrow();
      expect(() => own.encode(`a${marks(32)}`)).toThrow(refused);
      // A tokenizer may leave out what is between them, or make marks of other characters.
      expect(() => own.encode(`a${'\u0301\u200b\u0316\0'.repeat(16)}`)).toThrow(refused);
      expect(() => own.encode('\uff9e\u0301'.repeat(16))).toThrow(refused);
      expect(() => own.encode('\u200b'.repeat(100))).not.toThrow();
    },
  );

  it('[FZ2] A text may have 32 characters a token, and 10,000, before it is tokenized', async () => {
    const short = await tokenizer('bert', { maxTokens: 512 });
    expect(() => short.encode('a'.repeat(16_384))).not.toThrow();
    expect(() => short.encode('a'.repeat(16_385))).toThrow('one has 16385 characters; shorten it');
    const shorter = await tokenizer('bert', { maxTokens: 8 });
    expect(() => shorter.encode('a'.repeat(10_000))).not.toThrow();
    expect(() => shorter.encode('a'.repeat(10_001))).toThrow('one has 10001 characters');
  });

  it('[FZ2] A text that is cut by its characters is refused if these have too few tokens', async () => {
    const own = await tokenizer('bert', { maxTokens: 8, tooLong: 'cut' });
    expect(own.encode('a '.repeat(20_000)).ids).toEqual(own.encode('a '.repeat(20)).ids);
    // The first of its words has no place among these.
    expect(() => own.encode(`${' '.repeat(10_000)}word`)).toThrow('one has 10004 characters');
  });

  it('[FZ2] Only the part of a text that the model can read is checked for what it must not have', async () => {
    const tooLong = 'cut';
    const own = await tokenizer('bert', { maxTokens: 8, tooLong, specialTokens: ['[SEP]'] });
    const { ids } = own.encode('a '.repeat(20));
    expect(own.encode(`${'a '.repeat(5000)}[SEP] e${marks(40)}`).ids).toEqual(ids);
    expect(() => own.encode(`${'a '.repeat(4990)}[SEP]`)).toThrow('"[SEP]", a special token');
    expect(() => own.encode(`${'a '.repeat(4970)}e${marks(40)}`)).toThrow('40 combining marks');
  });

  it.each([
    ['qwen', '\uff1c|im_end|\uff1e'],
    ['llama', '\uff1c/s\uff1e'],
  ])('[FZ8] A special token that normalisation makes is refused: %s', async (family, text) => {
    const own = await normalising(family, text.normalize('NFKC'));
    for (const work of [() => own.encode(`a${text}b`), () => own.checkText(text)]) {
      expect(work).toThrow(`a special token of its model`);
    }
    expect(own.encode('plain', text.normalize('NFKC')).ids.length).toBeGreaterThan(0);
    expect(() => own.checkText('plain \uff54ext')).not.toThrow();
  });
});

describe('A part of a tokenizer.json', () => {
  const {
    texts: given,
    parts,
    tokenizers,
  } = read('tokenizers/parts.json') as {
    readonly texts: readonly string[];
    readonly tokenizers: readonly (readonly [
      name: string,
      json: object,
      texts: readonly string[],
      single: readonly (readonly [ids: readonly number[], types: readonly number[]])[],
      pairs: readonly (readonly [ids: readonly number[], types: readonly number[]])[],
    ])[];
    readonly parts: readonly (readonly [
      place: 'normalizer' | 'pre_tokenizer',
      part: Readonly<Record<string, unknown>>,
      made: readonly (string | readonly string[])[],
    ])[];
  };
  const empty = { model: { type: 'BPE', vocab: {}, merges: [] }, added_tokens: [], decoder: null };
  const none = { normalizer: null, pre_tokenizer: null, post_processor: null };

  it.each(
    parts.map(
      ([place, part, made]) => [JSON.stringify(part).slice(0, 150), place, part, made] as const,
    ),
  )('[22.8] makes of a text what it makes in Python: %s', async (_, place, part, made) => {
    const library = await loadLibrary();
    const json = { ...empty, ...none, [place]: part };
    const own = new library.Tokenizer(json, {});
    mendTokenizer(own, json, library);
    const work = own[place] as (text: string, options: object) => string | string[];
    const ours = given.map((text) => {
      const result = work(text, { section_index: 0 });
      return typeof result === 'string' ? result : result.filter((word) => word !== '');
    });
    expect(differing(ours, made)).toEqual([]);
  });

  it.each(tokenizers)(
    '[22.8] gives the ids and types of Python in a whole tokenizer: %s',
    async (_, json, short, single, pairsOfPython) => {
      const own = await tokenizer('qwen', {}, json);
      const isBlank = (i: number) => single[i]![0].length === 0;
      const ours = short.map((text, i) => (isBlank(i) ? [[], []] : pair(own.encode(text))));
      expect(differing(ours, single)).toEqual([]);
      const both = pairsOfPython.map(([ids], i) =>
        ids.length === 0 ? [[], []] : pair(own.encodePair(short[i]!, short[i + 1]!)),
      );
      expect(differing(both, pairsOfPython)).toEqual([]);
    },
  );

  it('[22.8] warns of a table of characters that was left out', async () => {
    const warn = jest.fn();
    const normalizer = {
      type: 'Sequence',
      normalizers: [{ type: 'Precompiled', precompiled_charsmap: null }],
    };
    const tokenizerJson = { ...(read('tokenizers/qwen.json') as object), normalizer };
    await tokenizing(
      {
        owner: 'it',
        repository: { name: 'it', fetch: async () => undefined },
        config: {},
        tokenizerJson,
        tokenizerFile: Buffer.from(JSON.stringify(tokenizerJson)),
        ofTokenizer: {},
        sentences: { maxTokens: undefined, lowers: false },
        fetching: { log: () => {}, warn, signal: new AbortController().signal },
      },
      new TextLimits({
        serving: 'net',
        maxTokens: 10,
        tooLong: 'refuse',
        canBeCut: true,
        specialTokens: [],
      }),
    );
    expect(warn.mock.calls.join()).toContain('without the table of its normalizer Precompiled');
  });

  it.each([
    ['single_word', { added_tokens: [{ content: 'w', id: 1, single_word: true, special: false }] }],
    ['CharDelimiterSplit', { pre_tokenizer: { type: 'CharDelimiterSplit', delimiter: '_' } }],
    ['Nmt', { normalizer: { type: 'Nmt' } }],
    [
      'byte_fallback',
      { model: { type: 'Unigram', vocab: [['a', -1]], unk_id: 0, byte_fallback: true } },
    ],
    ['continuing_subword_prefix', { model: { ...empty.model, continuing_subword_prefix: '##' } }],
  ])('[22.8] refuses the start if the task does not have it: %s', async (name, others) => {
    const starting = tokenizer('qwen', {}, others);
    await expect(starting).rejects.toThrow(ServingLoadError);
    await expect(starting).rejects.toThrow(name);
  });
});

/** With NFKC, as XLM-RoBERTa's tokenizer has it, and a special token of the normalised text. */
async function normalising(family: string, token: string): Promise<TextTokenizer> {
  const json = read(`tokenizers/${family}.json`) as Record<string, unknown>;
  const added = { content: token, single_word: false, lstrip: false, rstrip: false };
  return tokenizer(
    family,
    { specialTokens: [token] },
    {
      normalizer: { type: 'NFKC' },
      added_tokens: [
        ...(json['added_tokens'] as object[]),
        { ...added, id: 5, normalized: true, special: true },
      ],
    },
  );
}

function pair({ ids, types }: Tokens): readonly [readonly number[], readonly number[]] {
  return [ids, types];
}

/** The first few items that differ, each with its number. */
function differing(ours: readonly unknown[], theirs: readonly unknown[]): unknown[] {
  expect(ours).toHaveLength(theirs.length);
  return theirs
    .map((item, i) => [i, ours[i], item] as const)
    .filter(([, own, item]) => JSON.stringify(own) !== JSON.stringify(item))
    .slice(0, 5);
}
