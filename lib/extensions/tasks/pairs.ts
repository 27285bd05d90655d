import { Batch, type PreprocessContext } from '../../index.js';
import { Turns } from '../../encoding/turns.js';
import { rowOf, type TextFacts } from './text-model.js';
import { placed, type TextFiles, type TextLimits } from './text-tokenizer.js';
import { tokenizing, type Tokenizing } from './tokenizing.js';

/** Text, or texts, by their field's name. */
type Named<Value> = Readonly<Record<string, Value>>;

/** Warns if the tokenizer writes the texts of a pair as one, as few models read them. */
export async function tokenizingPairs(
  files: TextFiles,
  limits: TextLimits,
  advice: string,
): Promise<Tokenizing> {
  const tokenizer = await tokenizing(files, limits);
  if (!limits.limits.pair && !tokenizer.separatesPairs) {
    files.fetching.warn(
      `has a tokenizer that puts nothing between two texts, as those of language models; ${advice}`,
    );
  }
  return tokenizer;
}

/** Rows of a call, and the number of tokens in each. */
export interface Pairs {
  readonly batch: Batch | readonly Batch[];
  readonly tokens: readonly number[];
}

/**
 * Rows of a text with each of several others. They run as several batches, since they differ in
 * length.
 *
 * @throws InvalidInputError and RequestTooLargeError with a text's place
 */
export async function pairsOf(
  context: PreprocessContext<TextFacts<unknown>>,
  one: Named<string>,
  others: Named<readonly string[]>,
): Promise<Pairs> {
  const { tokenizer } = context.facts;
  const [[field, text]] = Object.entries(one) as [[string, string]];
  const [[name, texts]] = Object.entries(others) as [[string, readonly string[]]];
  const encode = async (place: string, other: string) => {
    try {
      return await tokenizer.encodePair(context, text, other);
    } catch (cause) {
      throw placed(place, cause);
    }
  };
  await encode(field, '');
  const batches: Batch[] = [];
  const counts: number[] = [];
  const turns = new Turns();
  for (const [i, other] of texts.entries()) {
    if (turns.isOver) {
      await turns.next(context.signal);
    }
    const tokens = await encode(`${name}[${i}]`, other);
    batches.push(Batch.concatenate([rowOf(tokens, context.signature!)]));
    counts.push(tokens.ids.length);
  }
  return { batch: batches.length === 1 ? batches[0]! : batches, tokens: counts };
}
