import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';

type Refuse = (what: string) => Error;

/** True for a token's number, or an added token's text. */
export function isToken(value: unknown): value is number | string {
  return typeof value === 'string'
    ? value !== ''
    : Number.isInteger(value) && (value as number) >= 0;
}

export function addedTokensIn({
  added_tokens: added,
}: Readonly<Record<string, unknown>>): readonly Readonly<Record<string, unknown>>[] {
  return Array.isArray(added) ? added.filter((token) => isRecord(token)) : [];
}

/**
 * tokenizer.json that reads special tokens in texts as plain text, as `split_special_tokens` of
 * Python's transformers. Unigram's are also pieces of its vocabulary, where sentencepiece never finds
 * them, so others take their places.
 */
export function withoutSpecial(tokenizerJson: Record<string, unknown>): Record<string, unknown> {
  const added = addedTokensIn(tokenizerJson);
  const special = new Set(new AddedTokens(tokenizerJson).special);
  const { model } = tokenizerJson;
  const isUnigram = isRecord(model) && Array.isArray(model['vocab']);
  return {
    ...tokenizerJson,
    added_tokens: added.filter((token) => token['special'] !== true),
    ...(isUnigram && {
      model: {
        ...model,
        vocab: (model['vocab'] as readonly (readonly [string, number])[]).map(([text, score]) => [
          special.has(text) ? `\0${text}` : text,
          score,
        ]),
      },
    }),
  };
}

export class AddedTokens {
  readonly ids: ReadonlyMap<string, number>;
  /** Tokens that no answer's text has. */
  readonly special: ReadonlySet<string>;

  /** @param count of all tokens that the model can write, if stated */
  constructor(
    tokenizerJson: Record<string, unknown>,
    private readonly count?: unknown,
  ) {
    const tokens = addedTokensIn(tokenizerJson);
    this.ids = new Map(tokens.map(({ content, id }) => [String(content), Number(id)]));
    const special = tokens.filter((token) => token['special'] === true);
    this.special = new Set(special.map(({ content }) => String(content)));
  }

  /** @throws the error of `refuse` for an unknown token */
  idOf(token: number | string, refuse: Refuse): number {
    const { ids, count } = this;
    const id = typeof token === 'string' ? ids.get(token) : token;
    if (id === undefined) {
      throw refuse(
        `was given the end token ${formatValue(token)}, and its tokenizer has no added token with ` +
          "that text; give the token's number",
      );
    }
    if (typeof count === 'number' && id >= count) {
      throw refuse(`was given the end token ${id}, and its model has ${count} tokens, from 0 on`);
    }
    return id;
  }

  /**
   * Splits stop strings into texts of answers and special tokens.
   *
   * @throws the error of `refuse` for a special token within a longer string
   */
  endsOf(
    stops: readonly string[],
    refuse: Refuse,
  ): { readonly texts: readonly string[]; readonly tokens: readonly number[] } {
    const texts = stops.filter((stop) => !this.special.has(stop));
    for (const stop of texts) {
      const within = [...this.special].find((token) => stop.includes(token));
      if (within !== undefined) {
        throw refuse(
          `was given stop ${formatValue(stop)}, which no text of an answer has, since it leaves out ` +
            `special tokens; give ${formatValue(within)} alone`,
        );
      }
    }
    const tokens = stops.filter((stop) => this.special.has(stop));
    return { texts, tokens: tokens.map((token) => this.ids.get(token)!) };
  }
}
