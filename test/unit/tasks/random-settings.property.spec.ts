import { beforeEach, describe, expect, it } from '@jest/globals';
import { Tokenizer } from '@huggingface/tokenizers';
import * as fc from 'fast-check';
import {
  createServing,
  isServingError,
  type LocalServing,
  type ServingError,
} from 'nestjs-serving';
import { type Embedding, textEmbedding, type TextToEmbed } from 'nestjs-serving/tasks';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { silenceLog } from '../../fixtures/silent-log.js';
import { readTiny } from '../../fixtures/tasks/tiny-models.js';
import { pooled, table, tokensAlone, withGraph } from '../../fixtures/tasks/written-models.js';

/**
 * Repositories with random settings, for a task that starts with one and is reloaded with others.
 * Each is refused in words if it asks for what the task lacks, and changes nothing then; else each text
 * has the vector that sentence-transformers computes for it alone, beside any others.
 */
describe('A repository with random settings', () => {
  beforeEach(() => silenceLog());

  it('[FQ1] [FQ2] [FQ6] [FQ7] is refused, or each text has the vector of Python, alone and beside others', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(settings, { minLength: 1, maxLength: 3 }), texts, play),
      { numRuns: process.env['SEED'] === undefined ? 60 : 500 },
    );
  });
});

const WIDTH = 8;
const [vectors, tokenizerJson] = [table(1200, WIDTH), readTiny('tokenizers/bert-cased.json')];
const tokenizer = new Tokenizer(JSON.parse(tokenizerJson.toString()) as object, {});

const texts = fc.array(
  fc
    .array(fc.constantFrom('The', 'rule', 'of', 'Rows', 'queue', 'and', 'sky'), {
      minLength: 1,
      maxLength: 30,
    })
    .map((words) => words.join(' ')),
  { minLength: 1, maxLength: 6 },
);

const PROMPT = 'A Rule: ';

/** Settings that the task lacks, by their files. */
const LACKING: readonly (readonly [file: string, content: object])[] = [
  ['sentence_bert_config.json', { tokenizer_args: { padding_side: 'left' } }],
  ['config_sentence_transformers.json', { model_type: 'SparseEncoder' }],
  ['config_sentence_transformers.json', { default_prompt_name: 'missing' }],
  ['modules.json', [{ type: 'sentence_transformers.models.WordWeights', path: '' }]],
  ['tokenizer_config.json', { tokenizer_class: 'BertTokenizer', do_lower_case: true }],
];

const settings = fc.record({
  graph: fc.constantFrom('tokens' as const, 'tokens' as const, 'pooled' as const),
  pooling: fc.constantFrom('mean', 'cls', 'lasttoken', 'max', 'weightedmean', 'mean and max'),
  /** Newer files name the mode. */
  namesMode: fc.boolean(),
  skipsPrompt: fc.boolean(),
  hasPrompt: fc.boolean(),
  normalizes: fc.boolean(),
  lowers: fc.boolean(),
  maxSeqLength: fc.constantFrom(undefined, 5, 9, 20),
  modelMaxLength: fc.constantFrom(undefined, 6, 15, 1e30),
  positions: fc.constantFrom(12, 64),
  side: fc.constantFrom(undefined, 'left', 'right'),
  padding: fc.constantFrom(undefined, 0, 3),
  lacking: fc.oneof(
    { weight: 4, arbitrary: fc.constant(undefined) },
    { weight: 1, arbitrary: fc.constantFrom(...LACKING) },
  ),
});

type Settings = typeof settings extends fc.Arbitrary<infer T> ? T : never;

/** A graph that pools may have any step of modules.json. */
function lackingIn({ graph, lacking }: Settings): Settings['lacking'] {
  return graph === 'pooled' && lacking?.[0] === 'modules.json' ? undefined : lacking;
}

const flag = (mode: string): string =>
  `pooling_mode_${mode}${mode === 'lasttoken' ? '' : mode === 'cls' ? '_token' : '_tokens'}`;

function modelOf(given: Settings) {
  const { pooling, namesMode, skipsPrompt } = given;
  const lacking = lackingIn(given);
  const modes = pooling.split(' and ');
  const steps = ['Transformer', 'Pooling', ...(given.normalizes ? ['Normalize'] : [])];
  const files: Record<string, object> = {
    '1_Pooling/config.json': {
      ...(namesMode
        ? { pooling_mode: modes.length > 1 ? modes : pooling }
        : Object.fromEntries(modes.map((mode) => [flag(mode), true]))),
      ...(skipsPrompt && { include_prompt: false }),
    },
    'modules.json': steps.map((type) => ({
      type: `sentence_transformers.models.${type}`,
      path: type === 'Pooling' ? '1_Pooling' : '',
    })),
    'sentence_bert_config.json': {
      do_lower_case: given.lowers,
      ...(given.maxSeqLength !== undefined && { max_seq_length: given.maxSeqLength }),
    },
    'config_sentence_transformers.json': given.hasPrompt
      ? { prompts: { own: PROMPT }, default_prompt_name: 'own' }
      : {},
    'tokenizer_config.json': {
      ...(given.modelMaxLength !== undefined && { model_max_length: given.modelMaxLength }),
      ...(given.side !== undefined && { truncation_side: given.side }),
    },
    'config.json': {
      max_position_embeddings: given.positions,
      ...(given.padding !== undefined && { pad_token_id: given.padding }),
    },
  };
  if (lacking) {
    const [file, content] = lacking;
    files[file] = Array.isArray(content) ? content : { ...files[file], ...content };
  }
  return withGraph(
    'embedder',
    given.graph === 'tokens' ? tokensAlone(WIDTH) : pooled('sentence_embedding', WIDTH),
    { ...files, 'tokenizer.json': tokenizerJson },
  );
}

/** True if the task lacks something that the settings ask for. */
function isLacking(given: Settings): boolean {
  const { graph, skipsPrompt, hasPrompt } = given;
  return lackingIn(given) !== undefined || (graph === 'pooled' && skipsPrompt && hasPrompt);
}

/** The vector of a text alone; undefined if the prompt leaves no token of it. */
function referenceOf(given: Settings, text: string): readonly number[] | undefined {
  const before = given.hasPrompt ? PROMPT : '';
  const idsOf = (part: string): number[] =>
    tokenizer.encode(given.lowers ? part.toLowerCase() : part).ids.slice(1, -1);
  const stated = [given.maxSeqLength, given.modelMaxLength].find((most) => most && most < 1e7);
  const room = Math.min(stated ?? Infinity, given.positions) - 2;
  const all = idsOf(before + text);
  const kept = given.side === 'left' ? all.slice(-room) : all.slice(0, room);
  const [cls, sep] = [tokenizer.encode('a').ids[0]!, tokenizer.encode('a').ids.at(-1)!];
  const ids = [cls, ...kept, sep];
  const rows = ids.map((id) =>
    Array.from((vectors.data as Float32Array).subarray(id * WIDTH, (id + 1) * WIDTH)),
  );
  const modes = given.graph === 'pooled' ? ['mean'] : modesOf(given);
  const skipped = given.skipsPrompt && before !== '' ? 1 + idsOf(before).length : 0;
  if (skipped >= rows.length && modes.some((mode) => mode !== 'lasttoken')) {
    return undefined;
  }
  const vector = modes.flatMap((mode) => pool(rows, mode, skipped));
  const length = given.normalizes ? Math.hypot(...vector) : 1;
  return vector.map((element) => element / length);
}

/** Flags have an order in sentence-transformers, whatever their order in the file. */
function modesOf({ pooling, namesMode }: Settings): readonly string[] {
  const modes = pooling.split(' and ');
  return namesMode ? modes : modes.toReversed();
}

/** Each number of a text's vector, by the numbers of its tokens at the same place. */
function pool(rows: readonly (readonly number[])[], mode: string, skipped: number) {
  return rows[0]!.map((_, i) => {
    const column = rows.map((row, at) => [row[i]!, at + 1] as const).slice(skipped);
    const weights = column.map(([, place]) => (mode === 'weightedmean' ? place : 1));
    const sum = column.reduce((total, [own], at) => total + own * weights[at]!, 0);
    const of: Readonly<Record<string, number>> = {
      max: Math.max(...column.map(([own]) => own)),
      cls: column[0]?.[0] ?? NaN,
      lasttoken: rows.at(-1)![i]!,
    };
    return of[mode] ?? sum / weights.reduce((total, weight) => total + weight, 0);
  });
}

type Serving = LocalServing<string | TextToEmbed, Embedding>;

async function play(all: readonly Settings[], asked: readonly string[]): Promise<void> {
  const [first, ...others] = all;
  const definition = textEmbedding({ name: 'net', model: modelOf(first!), tooLong: 'cut' });
  const serving: Serving = createServing(definition);
  try {
    const refusal = await failureOf(serving.start());
    expectRefusal(refusal, first!);
    if (refusal !== undefined) {
      return;
    }
    await expectVectors(serving, first!, asked);
    let active = first!;
    for (const other of others) {
      // A reload can't change the outputs.
      const next = { ...other, graph: active.graph };
      const rejection = await failureOf(serving.reload({ model: { from: modelOf(next).from } }));
      expectRefusal(rejection, next);
      active = rejection === undefined ? next : active;
      await expectVectors(serving, active, asked);
    }
  } finally {
    await serving.close();
  }
}

function expectRefusal(refusal: unknown, given: Settings): void {
  expect(refusal !== undefined).toBe(isLacking(given));
  if (refusal !== undefined) {
    expect(isServingError(refusal)).toBe(true);
    expect((refusal as ServingError).message).toMatch(
      /^Serving "net".*( has | ask |default prompt)/,
    );
  }
}

async function expectVectors(
  serving: Serving,
  given: Settings,
  asked: readonly string[],
): Promise<void> {
  const call = (text: string) =>
    serving.batchedRun(text).then(
      ({ vector }) => [...vector],
      (error: unknown) => error,
    );
  const alone: unknown[] = [];
  for (const text of asked) {
    alone.push(await call(text));
  }
  serving.pause();
  const together = asked.map(call);
  serving.resume();
  for (const [i, reply] of (await Promise.all(together)).entries()) {
    const reference = referenceOf(given, asked[i]!);
    for (const found of [reply, alone[i]]) {
      if (reference === undefined) {
        expect(found).toMatchObject({ code: 'SERVING_INVALID_INPUT' });
      } else {
        expect(found).toEqual(reference.map((element) => expect.closeTo(element, 4)));
      }
    }
  }
}
