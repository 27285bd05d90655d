import { Batch, type PreprocessContext } from '../../index.js';
import { Turns } from '../../encoding/turns.js';
import { rowOf, type TextFacts } from './text-model.js';
import { placed } from './text-tokenizer.js';

/** Text, or texts, by their field's name. */
type Named<Value> = Readonly<Record<string, Value>>;

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
): Promise<Batch | readonly Batch[]> {
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
  const turns = new Turns();
  for (const [i, other] of texts.entries()) {
    if (turns.isOver) {
      await turns.next(context.signal);
    }
    const tokens = await encode(`${name}[${i}]`, other);
    batches.push(Batch.concatenate([rowOf(tokens, context.signature!)]));
  }
  return batches.length === 1 ? batches[0]! : batches;
}
