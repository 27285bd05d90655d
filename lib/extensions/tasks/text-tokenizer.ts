import { InvalidInputError, RequestTooLargeError, ServingLoadError } from '../../index.js';
import { formatValue, isRecord, messageOf } from '../../internal.js';
import type { SentenceSettings } from './python-settings.js';
import type { LoadingFiles } from './task-model.js';

/** What happens to a text of more tokens than the model reads. */
export type TooLong = 'refuse' | 'cut';

/** Token ids, and for each the number of its text: 0, or 1 for the second text of a pair. */
export interface Tokens {
  readonly ids: readonly number[];
  readonly types: readonly number[];
}

/** What a text model's files say, as far as they have it. */
export interface TextFiles extends LoadingFiles {
  readonly tokenizerJson: Record<string, unknown>;
  /** Of tokenizer_config.json. */
  readonly ofTokenizer: Record<string, unknown>;
  /** What sentence-transformers reads. */
  readonly sentences: SentenceSettings;
}

/** What a serving's options say about its texts. */
interface Limits {
  /** The serving, for errors. */
  readonly serving: string;
  /** Most tokens of a text or pair, special tokens included. */
  readonly maxTokens: number;
  readonly tooLong: TooLong;
  /** True if the beginning of a longer text is cut, and not its end. */
  readonly cutsBeginning?: boolean;
  /** True if the serving has the option `tooLong`. */
  readonly canBeCut: boolean;
  /** Those that a caller's text must not have. */
  readonly specialTokens: readonly string[];
}

/**
 * Characters per token beyond which we refuse a text, or cut it, before it is tokenized, since that
 * takes time on the event loop. No family that we know has longer tokens in ordinary text.
 */
const MOST_CHARACTERS = 250;

/** Refuses the texts that a model can't read. */
export class TextLimits {
  private readonly special: RegExp | undefined;

  constructor(private readonly limits: Limits) {
    const { specialTokens } = limits;
    this.special =
      specialTokens.length > 0 ? new RegExp(specialTokens.map(escaped).join('|')) : undefined;
  }

  get serving(): string {
    return this.limits.serving;
  }

  get maxTokens(): number {
    return this.limits.maxTokens;
  }

  get isCut(): boolean {
    return this.limits.tooLong === 'cut';
  }

  get cutsBeginning(): boolean {
    return this.limits.cutsBeginning === true;
  }

  /** The first of a list or text, or the last if the beginning is cut. */
  kept<Part extends string | readonly string[]>(whole: Part, count: number): Part {
    const { length } = whole;
    const isCutFirst = this.limits.cutsBeginning && length > count;
    return (isCutFirst ? whole.slice(length - count) : whole.slice(0, count)) as Part;
  }

  /** @throws InvalidInputError for special tokens in a caller's text */
  refuseSpecialTokens(text: string): void {
    const found = this.special?.exec(text)?.[0];
    if (found !== undefined) {
      throw new InvalidInputError(
        `Serving "${this.serving}" was given a text with ${formatValue(found)}, a special ` +
          "token of its model; take it out, or allow such texts with specialTokens: 'accept'",
      );
    }
  }

  /**
   * The text, or as much of it as can have the most tokens. What stands `before` it is not a caller's,
   * and may have special tokens.
   *
   * @throws InvalidInputError for special tokens in the text
   * @throws RequestTooLargeError if it has too many characters, and is not to be cut
   */
  readable(text: string, before = ''): string {
    this.refuseSpecialTokens(text);
    const whole = before + text;
    this.checkCharacters(whole);
    return this.kept(whole, MOST_CHARACTERS * this.maxTokens);
  }

  /** @throws RequestTooLargeError for a text of too many characters, if it is not to be cut */
  checkCharacters({ length }: string): void {
    if (length > MOST_CHARACTERS * this.maxTokens && !this.isCut) {
      throw this.tooLong(length, 'characters');
    }
  }

  /** @throws RequestTooLargeError if a text has too many tokens, and is not to be cut */
  checkTokens(count: number): void {
    if (count > this.maxTokens && !this.isCut) {
      throw this.tooLong(count, 'tokens');
    }
  }

  private tooLong(count: number, unit: 'tokens' | 'characters'): RequestTooLargeError {
    return new RequestTooLargeError(
      `Serving "${this.serving}" reads texts of at most ${this.maxTokens} tokens, and one has ` +
        `${count} ${unit}; shorten it` +
        (this.limits.canBeCut ? ", or let the serving cut it with tooLong: 'cut'" : ''),
    );
  }
}

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
  encode(text: string, options: { readonly add_special_tokens: false }): { readonly ids: number[] };
  decode(
    ids: number[],
    options: {
      readonly skip_special_tokens: boolean;
      readonly clean_up_tokenization_spaces: boolean;
    },
  ): string;
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
  /** Special tokens around one text, and around a pair. */
  private readonly around: { readonly single: number; readonly pair: number };
  /** Special tokens behind a text. */
  private readonly behind: number;

  constructor(
    private readonly tokenizer: Tokenizer,
    readonly limits: TextLimits,
  ) {
    this.around = {
      single: this.framed([]).tokens.length,
      pair: this.framed([], []).tokens.length,
    };
    const marked = this.framed(['\0']).tokens;
    this.behind = marked.length - 1 - marked.indexOf('\0');
  }

  /**
   * @param before the serving's own text before that of a caller
   * @throws InvalidInputError for special tokens in the text
   * @throws RequestTooLargeError if it has too many tokens, and is not to be cut
   */
  encode(text: string, before?: string): Tokens {
    return this.cut(this.tokensOf(text, before));
  }

  /** The tokens with which a text begins that has the other before it, special ones included. */
  lengthBefore(text: string): number {
    const { tokens } = this.framed(this.tokenizer.tokenize(text));
    return tokens.length - this.behind;
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
    const around = other ? this.around.pair : this.around.single;
    this.limits.checkTokens(one.length + (other?.length ?? 0) + around);
    const room = Math.max(0, this.limits.maxTokens - around);
    const [keptOne, keptOther] = longestFirst(one.length, other?.length ?? 0, room);
    const { tokens, types } = this.framed(
      this.limits.kept(one, keptOne),
      other && this.limits.kept(other, keptOther),
    );
    if (tokens.length === 0) {
      throw new InvalidInputError(
        `Serving "${this.limits.serving}" was given a text that has no tokens; give one that is not blank`,
      );
    }
    return { ids: tokens.map((token) => this.idOf(token)), types };
  }

  private tokensOf(text: string, before?: string): string[] {
    return this.tokenizer.tokenize(this.limits.readable(text, before));
  }

  /**
   * Encodes a text that a template has written, special tokens included.
   *
   * @throws RequestTooLargeError if it has too many tokens
   */
  encodeWritten(text: string): readonly number[] {
    this.limits.checkCharacters(text);
    const { ids } = this.tokenizer.encode(text, { add_special_tokens: false });
    this.limits.checkTokens(ids.length);
    return ids;
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
        `Serving "${this.limits.serving}": its tokenizer has no token for ${formatValue(token)}`,
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
 * Makes the tokenizer of a model's files.
 *
 * @throws ServingLoadError if it cannot be used, or without the library
 */
export async function textTokenizer(
  { repository: { name }, tokenizerJson, ofTokenizer, fetching }: TextFiles,
  limits: TextLimits,
): Promise<TextTokenizer> {
  const library = await loadLibrary();
  const begin = performance.now();
  try {
    const tokenizer = new library.Tokenizer(tokenizerJson, ofTokenizer);
    mendNormalizer(tokenizer.normalizer, library);
    const kind = isRecord(tokenizerJson['model']) ? tokenizerJson['model']['type'] : undefined;
    if (kind === 'Unigram') {
      fetching.warn(
        'has a tokenizer of the kind Unigram, which differs from Python for a few texts: zero-width ' +
          'joiners, and words whose splits are equally likely',
      );
    }
    fetching.log(`has the tokenizer of ${name}, after ${elapsed(begin)} ms`);
    return new TextTokenizer(tokenizer, limits);
  } catch (cause) {
    throw new ServingLoadError(`The tokenizer of ${name} cannot be used: ${messageOf(cause)}`, {
      cause,
    });
  }
}

function elapsed(begin: number): number {
  return Math.round(performance.now() - begin);
}

/**
 * Turns tokens into their text, in a thread that gets the tokenizer's files as objects.
 *
 * @param tokenizer the content of tokenizer.json
 * @param config the content of tokenizer_config.json
 * @throws ServingLoadError without the library
 */
export async function textDecoder(
  tokenizer: object,
  config: object,
): Promise<(ids: readonly number[]) => string> {
  const { Tokenizer } = await loadLibrary();
  const words = new Tokenizer(tokenizer, config);
  return (ids) =>
    ids.length === 0
      ? ''
      : words.decode([...ids], { skip_special_tokens: true, clean_up_tokenization_spaces: false });
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
