import { readFileSync } from 'node:fs';
import { describe, expect, it } from '@jest/globals';
import {
  TextLimits,
  type TextTokenizer,
  textTokenizer,
  type Tokens,
} from '../../../lib/extensions/tasks/text-tokenizer.js';

const folder = new URL('../../fixtures/tasks/', import.meta.url);
const { texts, pairs } = read('texts.json') as {
  readonly texts: readonly string[];
  readonly pairs: readonly (readonly [one: string, other: string, maxTokens: number])[];
};
const fetching = { log: () => {}, warn: () => {}, signal: new AbortController().signal };

function read(path: string): unknown {
  return JSON.parse(readFileSync(new URL(path, folder), 'utf8'));
}

async function tokenizer(
  family: string,
  options: { maxTokens?: number; tooLong?: 'cut' } = {},
): Promise<TextTokenizer> {
  const files = {
    repository: { name: 'it', fetch: async () => undefined },
    config: {},
    tokenizerJson: read(`tokenizers/${family}.json`) as Record<string, unknown>,
    ofTokenizer: {},
    sentences: { maxTokens: undefined, lowers: false },
    fetching,
  };
  const limits = { serving: 'net', maxTokens: 10_000, tooLong: 'refuse' as const, canBeCut: true };
  return textTokenizer(files, new TextLimits({ ...limits, specialTokens: [], ...options }));
}

describe.each(['bert', 'bert-cased', 'roberta', 'qwen', 'llama'])('The tokenizer %s', (family) => {
  const python = read(`tokenizers/${family}.ids.json`) as {
    readonly single: readonly (readonly number[])[];
    readonly pairs: readonly (readonly [ids: readonly number[], types: readonly number[]])[];
    readonly cut: readonly (readonly [number[], number[], single: number[]])[];
  };

  it('[22.8] gives the ids of Python for hard texts', async () => {
    const own = await tokenizer(family);
    const ids = texts.map((text) => own.encode(text).ids);
    expect(differing(ids, python.single)).toEqual([]);
  });

  it('[22.8] gives the ids and types of Python for pairs of texts', async () => {
    const own = await tokenizer(family);
    const both = pairs.flatMap(([one, other]) => own.encodePairs(one, [other]));
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
        const [{ ids, types }] = own.encodePairs(one, [other]) as [Tokens];
        return [ids, types, own.encode(one).ids];
      }),
    );
    expect(differing(cut, python.cut)).toEqual([]);
  });
});

/** The first few items that differ, each with its number. */
function differing(ours: readonly unknown[], theirs: readonly unknown[]): unknown[] {
  expect(ours).toHaveLength(theirs.length);
  return theirs
    .map((item, i) => [i, ours[i], item] as const)
    .filter(([, own, item]) => JSON.stringify(own) !== JSON.stringify(item))
    .slice(0, 5);
}
