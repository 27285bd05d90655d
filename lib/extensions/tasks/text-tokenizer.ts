import { InvalidInputError, RequestTooLargeError, ServingLoadError } from '../../index.js';
import { type Fetching, formatValue, isRecord, messageOf } from '../../internal.js';

/** What happens to a text of more tokens than the model reads. */
export type TooLong = 'refuse' | 'cut';

/** Token ids, and for each the number of its text: 0, or 1 for the second text of a pair. */
export interface Tokens {
  readonly ids: readonly number[];
  readonly types: readonly number[];
}

interface TokenizerOptions {
  /** The serving, for errors. */
  readonly serving: string;
  /** Most tokens of a text or pair, special tokens included. */
  readonly maxTokens: number;
  readonly tooLong: TooLong;
  /** True if the serving has the option `tooLong`. */
  readonly canBeCut?: boolean;
  /** True if special tokens in a caller's text are read as such. */
  readonly allowsSpecialTokens: boolean;
}

/**
 * Characters per token beyond which we refuse a text, or cut it, before it is tokenized, since that
 * takes time on the event loop. No family that we know has longer tokens in ordinary text.
 */
const MOST_CHARACTERS = 250;

/** What we use of `@huggingface/tokenizers`, whose own types don't resolve under `nodenext`. */
interface Library {
  readonly Tokenizer: new (content: object, config: object) => Tokenizer;
  readonly BertNormalizer: new (...options: never[]) => BertNormalizer;
}

/** A tokenizer of `@huggingface/tokenizers`. */
export interface Tokenizer {
  readonly normalizer: unknown;
  readonly model: { readonly unk_token_id?: number } | null;
  readonly post_processor: PostProcessor | null;
  /** Without special tokens. */
  tokenize(text: string): string[];
  token_to_id(token: string): number | undefined;
  get_added_tokens_decoder(): ReadonlyMap<number, AddedToken>;
  encode(text: string, options: { readonly add_special_tokens: false }): { readonly ids: number[] };
  decode(
    ids: number[],
    options: {
      readonly skip_special_tokens: boolean;
      readonly clean_up_tokenization_spaces: boolean;
    },
  ): string;
}

interface AddedToken {
  readonly content: string;
  readonly special: boolean;
}

interface PostProcessor {
  (one: string[], other: string[] | null, addsSpecialTokens: boolean): Framed;
  readonly config: { readonly type?: string };
}

interface Framed {
  readonly tokens: string[];
  readonly tokens_pair?: string[] | null;
  readonly token_type_ids?: number[];
}

interface BertNormalizer {
  readonly config: {
    readonly clean_text?: boolean;
    readonly handle_chinese_chars?: boolean;
    readonly lowercase?: boolean;
    readonly strip_accents?: boolean | null;
  };
  normalize(text: string): string;
  clean_text(text: string): string;
  strip_accents(text: string): string;
}

/**
 * Turns texts into tokens as Python's tokenizers do: with their truncation, with the second text of
 * a pair, and with the mended normalizer of BERT.
 */
export class TextTokenizer {
  private readonly special: RegExp | undefined;
  /** Special tokens around one text, and around a pair. */
  private readonly around: { readonly single: number; readonly pair: number };

  constructor(
    private readonly tokenizer: Tokenizer,
    private readonly options: TokenizerOptions,
  ) {
    const added = [...tokenizer.get_added_tokens_decoder().values()];
    const special = added.filter((token) => token.special).map(({ content }) => content);
    this.special =
      special.length > 0 && !options.allowsSpecialTokens
        ? new RegExp(special.map(escaped).join('|'))
        : undefined;
    this.around = {
      single: this.framed([]).tokens.length,
      pair: this.framed([], []).tokens.length,
    };
  }

  get maxTokens(): number {
    return this.options.maxTokens;
  }

  /**
   * @throws InvalidInputError for special tokens in the text
   * @throws RequestTooLargeError if it has too many tokens, and is not to be cut
   */
  encode(text: string): Tokens {
    return this.cut(this.tokensOf(text));
  }

  /**
   * Encodes the text with each of the others, as pairs.
   *
   * @throws as `encode`
   */
  encodePairs(text: string, others: readonly string[]): Tokens[] {
    const one = this.tokensOf(text);
    return others.map((other) => this.cut(one, this.tokensOf(other)));
  }

  private cut(one: string[], other?: string[]): Tokens {
    const { maxTokens, tooLong } = this.options;
    const room = maxTokens - (other ? this.around.pair : this.around.single);
    const count = one.length + (other?.length ?? 0);
    if (count > room && tooLong === 'refuse') {
      throw this.tooLongError(`has ${count + maxTokens - room} tokens`);
    }
    const [keptOne, keptOther] = longestFirst(one.length, other?.length ?? 0, Math.max(0, room));
    const { tokens, types } = this.framed(one.slice(0, keptOne), other?.slice(0, keptOther));
    return { ids: tokens.map((token) => this.idOf(token)), types };
  }

  /**
   * Encodes a text that a template has written, special tokens included.
   *
   * @throws RequestTooLargeError if it has too many tokens
   */
  encodeWritten(text: string): readonly number[] {
    const { maxTokens } = this.options;
    if (text.length > MOST_CHARACTERS * maxTokens) {
      throw this.tooLongError(`has ${text.length} characters`);
    }
    const { ids } = this.tokenizer.encode(text, { add_special_tokens: false });
    if (ids.length > maxTokens) {
      throw this.tooLongError(`has ${ids.length} tokens`);
    }
    return ids;
  }

  /** @throws InvalidInputError for special tokens in a caller's text */
  refuseSpecialTokens(text: string): void {
    const found = this.special?.exec(text)?.[0];
    if (found !== undefined) {
      throw new InvalidInputError(
        `Serving "${this.options.serving}" was given a text with ${formatValue(found)}, a special ` +
          "token of its model; take it out, or allow such texts with specialTokens: 'accept'",
      );
    }
  }

  private tokensOf(text: string): string[] {
    const { maxTokens, tooLong } = this.options;
    this.refuseSpecialTokens(text);
    const most = MOST_CHARACTERS * maxTokens;
    if (text.length > most && tooLong === 'refuse') {
      throw this.tooLongError(`has ${text.length} characters`);
    }
    return this.tokenizer.tokenize(text.length > most ? text.slice(0, most) : text);
  }

  private tooLongError(size: string): RequestTooLargeError {
    const { serving, maxTokens, canBeCut = true } = this.options;
    return new RequestTooLargeError(
      `Serving "${serving}" reads texts of at most ${maxTokens} tokens, and one ${size}; ` +
        `shorten it${canBeCut ? ", or let the serving cut it with tooLong: 'cut'" : ''}`,
    );
  }

  /** The tokens between the special tokens of their model. */
  private framed(one: string[], other?: string[]): { tokens: string[]; types: readonly number[] } {
    const post = this.tokenizer.post_processor;
    if (!post) {
      const tokens = other ? [...one, ...other] : one;
      return { tokens, types: typesOf(one.length, other?.length) };
    }
    const framed = post(one, other ?? null, true);
    // Some processors return the second text apart, and the tokenizer then forgets it.
    const tokens = [...framed.tokens, ...(framed.tokens_pair ?? [])];
    const types =
      framed.token_type_ids ?? typesOf(framed.tokens.length, framed.tokens_pair?.length);
    // https://github.com/huggingface/tokenizers/blob/main/tokenizers/src/processors/roberta.rs
    return { tokens, types: post.config.type === 'RobertaProcessing' ? types.map(() => 0) : types };
  }

  private idOf(token: string): number {
    const { tokenizer } = this;
    const id = tokenizer.token_to_id(token) ?? tokenizer.model?.unk_token_id;
    if (id === undefined) {
      throw new InvalidInputError(
        `Serving "${this.options.serving}": its tokenizer has no token for ${formatValue(token)}`,
      );
    }
    return id;
  }
}

function escaped(text: string): string {
  return text.replaceAll(/[$()*+.?[\\\]^{|}]/g, '\\$&');
}

function typesOf(one: number, other = 0): readonly number[] {
  return [...Array<number>(one).fill(0), ...Array<number>(other).fill(1)];
}

/**
 * The tokens that each of two texts keeps, if the longer one is cut first, as in
 * https://github.com/huggingface/tokenizers/blob/main/tokenizers/src/utils/truncation.rs.
 */
function longestFirst(one: number, other: number, room: number): readonly [number, number] {
  if (one + other <= room) {
    return [one, other];
  }
  const shorter = Math.min(one, other);
  const longer = shorter > room ? shorter : Math.max(shorter, room - shorter);
  const [short, long] =
    shorter + longer > room
      ? [Math.floor(room / 2), Math.floor(room / 2) + (room % 2)]
      : [shorter, longer];
  return one > other ? [long, short] : [short, long];
}

/**
 * Makes a repository's tokenizer.
 *
 * @param name the repository's
 * @param content of tokenizer.json
 * @param config of tokenizer_config.json
 * @throws ServingLoadError if it cannot be used, or without the library
 */
export async function loadTokenizer(
  name: string,
  content: Record<string, unknown>,
  config: Record<string, unknown>,
  fetching: Fetching,
): Promise<Tokenizer> {
  const library = await loadLibrary();
  const begin = performance.now();
  try {
    const tokenizer = new library.Tokenizer(content, config);
    mendNormalizer(tokenizer.normalizer, library);
    const kind = isRecord(content['model']) ? content['model']['type'] : undefined;
    if (kind === 'Unigram') {
      fetching.warn(
        'has a tokenizer of the kind Unigram, which differs from Python for a few texts: zero-width ' +
          'joiners, and words whose splits are equally likely',
      );
    }
    fetching.log(`has the tokenizer of ${name}, after ${elapsed(begin)} ms`);
    return tokenizer;
  } catch (cause) {
    throw new ServingLoadError(`The tokenizer of ${name} cannot be used: ${messageOf(cause)}`, {
      cause,
    });
  }
}

function elapsed(begin: number): number {
  return Math.round(performance.now() - begin);
}

/** @throws ServingLoadError if the library isn't installed */
export async function loadLibrary(): Promise<Library> {
  try {
    return (await import('@huggingface/tokenizers')) as unknown as Library;
  } catch (cause) {
    throw new ServingLoadError(
      'A task on texts needs @huggingface/tokenizers, which cannot be loaded; install it: npm ' +
        'install @huggingface/tokenizers',
      { cause },
    );
  }
}

const IDEOGRAPHS =
  /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu;

/**
 * BERT's normalizer of version 0.2.0 misses ideographs beyond U+FFFF, and lowers a whole text at
 * once, which turns a final sigma into another letter. Python's lowers each character:
 * https://github.com/huggingface/tokenizers/blob/main/tokenizers/src/normalizers/bert.rs
 */
function mendNormalizer(normalizer: unknown, library: Library): void {
  if (normalizer instanceof library.BertNormalizer) {
    normalizer.normalize = (text) => normalizedAsBert(normalizer, text);
  } else if (isSequence(normalizer)) {
    normalizer.normalizers.forEach((each) => mendNormalizer(each, library));
  }
}

function isSequence(value: unknown): value is { readonly normalizers: readonly unknown[] } {
  return typeof value === 'function' && 'normalizers' in value && Array.isArray(value.normalizers);
}

function normalizedAsBert(normalizer: BertNormalizer, given: string): string {
  const { clean_text, handle_chinese_chars, lowercase, strip_accents } = normalizer.config;
  let text = clean_text ? normalizer.clean_text(given) : given;
  text = handle_chinese_chars ? text.replace(IDEOGRAPHS, ' $& ') : text;
  text = (strip_accents ?? lowercase) ? normalizer.strip_accents(text) : text;
  return lowercase ? Array.from(text, (each) => each.toLowerCase()).join('') : text;
}
