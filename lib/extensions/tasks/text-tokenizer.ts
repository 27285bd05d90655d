import { InvalidInputError, RequestTooLargeError, ServingLoadError } from '../../index.js';
import { formatValue, messageOf } from '../../doors/text.js';
import { AddedTokens, withoutSpecial } from './added-tokens.js';
import type { SentenceSettings } from './python-settings.js';
import type { LoadingFiles } from './task-model.js';
import { type Library, lowerFirst, mendTokenizer, type Tokenizer } from './tokenizer-mends.js';

/** Treatment of a text with more tokens than the model reads. */
export type TooLong = 'refuse' | 'cut' | 'window';

/** Token ids, and each one's text: 0, or 1 for a pair's second. */
export interface Tokens {
  readonly ids: readonly number[];
  readonly types: readonly number[];
  /** Windows behind this one, of the same length, if the text has several. */
  readonly more?: readonly Tokens[];
  /** Tokens of the text that each window adds to those before it. */
  readonly added?: readonly number[];
}

export interface TextFiles extends LoadingFiles {
  readonly owner: string;
  readonly tokenizerJson: Record<string, unknown>;
  readonly tokenizerFile: Uint8Array;
  /** Content of tokenizer_config.json. */
  readonly ofTokenizer: Record<string, unknown>;
  readonly sentences: SentenceSettings;
}

export interface LimitsOfTexts {
  readonly serving: string;
  /** Most tokens of a text or pair, including special tokens. */
  readonly maxTokens: number;
  readonly tooLong: TooLong;
  /** Tokens that neighbouring windows share. */
  readonly overlap?: number;
  /** Cuts the beginning of longer texts, not their end. */
  readonly cutsBeginning?: boolean;
  /** True if the serving may have `tooLong: 'cut'` and `specialTokens: 'text'`. */
  readonly canBeCut: boolean;
  /** Tokens that a caller's text must not have or become. */
  readonly specialTokens: readonly string[];
  /** Reads them as plain text. */
  readonly areText?: boolean;
  /** Form of pairs, in place of the tokenizer's. */
  readonly pair?: PairTemplate | undefined;
}

/** The serving's own text around a pair, with special tokens. */
export interface PairTemplate {
  readonly head: string;
  readonly middle: string;
  readonly tail: string;
}

/**
 * Characters per token beyond which we refuse or cut texts before they are tokenized, which takes
 * time on the event loop. Ordinary text has 2 to 8. Short limits are rounded up.
 */
const MOST_CHARACTERS = 32;
const LEAST_LIMIT = 10_000;

/** Windows of a text. Each is a row of its call. */
const MOST_WINDOWS = 64;

/**
 * Most marks in a row: Unicode's normalisation sorts them in quadratic time:
 * https://unicode.org/reports/tr15/#Stream_Safe_Text_Format
 */
const MOST_MARKS = 30;
/** Marks, also with characters between them that a tokenizer may drop first. */
const MARKS = /(?<![\p{M}\p{C}\uff9e\uff9f])[\p{M}\p{C}\uff9e\uff9f]{31,}/gu;

/** Refuses texts that a model can't read. */
export class TextLimits {
  private readonly special: RegExp | undefined;

  constructor(readonly limits: LimitsOfTexts) {
    const { specialTokens, areText } = limits;
    this.special =
      specialTokens.length > 0 && !areText
        ? new RegExp(specialTokens.map(escaped).join('|'))
        : undefined;
  }

  get serving(): string {
    return this.limits.serving;
  }

  get maxTokens(): number {
    return this.limits.maxTokens;
  }

  get specialTokens(): readonly string[] {
    return this.limits.specialTokens;
  }

  get isCut(): boolean {
    return this.limits.tooLong === 'cut';
  }

  /** Tokens that neighbouring windows share; undefined without windows. */
  get overlap(): number | undefined {
    const { tooLong, overlap = 0 } = this.limits;
    return tooLong === 'window' ? overlap : undefined;
  }

  get cutsBeginning(): boolean {
    return this.limits.cutsBeginning === true;
  }

  /** Beginning, or the end if the beginning is cut. */
  kept<Part extends string | readonly string[]>(whole: Part, count: number): Part {
    const { length } = whole;
    const isCutFirst = this.limits.cutsBeginning && length > count;
    return (isCutFirst ? whole.slice(length - count) : whole.slice(0, count)) as Part;
  }

  /** @throws InvalidInputError for special tokens, or too many marks in a row */
  checkText(text: string): void {
    const found = this.special?.exec(text)?.[0];
    if (found !== undefined) {
      throw this.specialToken(found);
    }
    for (const [run] of text.matchAll(MARKS)) {
      const count = Array.from(run.replaceAll(/\p{C}/gu, '')).length;
      if (count > MOST_MARKS) {
        throw new InvalidInputError(
          `Serving "${this.serving}" was given a text with ${count} combining marks in a row; ` +
            `at most ${MOST_MARKS} may follow each other, as in Unicode's Stream-Safe Text Format`,
        );
      }
    }
  }

  specialToken(token: string): InvalidInputError {
    return new InvalidInputError(
      `Serving "${this.serving}" was given a text with ${formatValue(token)}, a special ` +
        'token of its model; take it out' +
        (this.limits.canBeCut
          ? ", or let the serving read such texts with specialTokens: 'text'"
          : ''),
    );
  }

  /**
   * The text, or as much of it as can have the most tokens: no model reads the rest, so we don't
   * check it. `before` is not a caller's, and may have special tokens.
   *
   * @throws InvalidInputError as `checkText`
   * @throws RequestTooLargeError as `checkCharacters`
   */
  readable(text: string, before = ''): string {
    const whole = before + text;
    this.checkCharacters(whole.length);
    this.checkText(this.kept(text, this.mostCharacters));
    return this.kept(whole, this.mostCharacters);
  }

  /** @throws RequestTooLargeError for too many characters, unless the text is cut */
  checkCharacters(count: number): void {
    if (count > this.mostCharacters && !this.isCut) {
      throw this.tooLong(count, 'characters');
    }
  }

  /**
   * @throws RequestTooLargeError if the readable part of a longer text has too few tokens for a cut
   */
  checkReadable(text: string, readable: string, tokens: number): void {
    if (readable.length < text.length && tokens < this.maxTokens) {
      throw this.tooLong(text.length, 'characters');
    }
  }

  private get mostCharacters(): number {
    const ofWindow = Math.max(LEAST_LIMIT, MOST_CHARACTERS * this.maxTokens);
    return this.overlap === undefined ? ofWindow : MOST_WINDOWS * ofWindow;
  }

  /**
   * Beginnings of windows. All have `room` tokens: the last one overlaps more.
   *
   * @throws RequestTooLargeError for too many windows
   */
  windowsOf(count: number, room: number): readonly number[] {
    const step = room - this.overlap!;
    const windows = step > 0 ? 1 + Math.ceil((count - room) / step) : Infinity;
    if (windows > MOST_WINDOWS) {
      throw this.tooManyWindows(`${count} tokens`);
    }
    return Array.from({ length: windows }, (_, i) => Math.min(i * step, count - room));
  }

  /** @throws RequestTooLargeError for too many tokens, unless the text is cut */
  checkTokens(count: number): void {
    if (count > this.maxTokens && !this.isCut) {
      throw this.tooLong(count, 'tokens');
    }
  }

  private tooManyWindows(size: string): RequestTooLargeError {
    return new RequestTooLargeError(
      `Serving "${this.serving}" reads at most ${MOST_WINDOWS} windows of a text, of ${this.maxTokens} ` +
        `tokens each, and one has ${size}; shorten it, or split it`,
    );
  }

  private tooLong(count: number, unit: 'tokens' | 'characters'): RequestTooLargeError {
    if (this.overlap !== undefined && unit === 'characters') {
      return this.tooManyWindows(`${count} characters`);
    }
    return new RequestTooLargeError(
      `Serving "${this.serving}" reads texts of at most ${this.maxTokens} tokens, and one has ` +
        `${count} ${unit}; shorten it` +
        (this.limits.canBeCut && !this.isCut
          ? ", or let the serving cut it with tooLong: 'cut'"
          : ''),
    );
  }
}

/**
 * Tokenizes as Python's tokenizers do, with their truncation, pairs, and BERT's mended normalizer.
 */
export class TextTokenizer {
  /** Text of tokens, without special ones. */
  readonly decode: (ids: readonly number[]) => string;
  /** Special tokens around a text, and around a pair. */
  private readonly around: { readonly single: number; readonly pair: number };
  /** Special tokens behind a text. */
  private readonly behind: number;
  /** First text of the last pair. */
  private first: { readonly text: string; readonly tokens: string[] } | undefined;
  /** Tokens that a caller's text must not become; unknown words may. */
  private readonly special: ReadonlySet<string>;

  constructor(
    private readonly tokenizer: Tokenizer,
    readonly limits: TextLimits,
    /** Numbers of added tokens, which the tokenizer may not know. */
    private readonly added: ReadonlyMap<string, number> = new Map(),
  ) {
    this.decode = decoderOf(tokenizer);
    this.around = {
      single: this.framed([]).tokens.length,
      pair: this.framed([], []).tokens.length,
    };
    const unknown = tokenizer.model?.unk_token;
    this.special = new Set(limits.specialTokens.filter((token) => token !== unknown));
    const marked = this.framed(['\0']).tokens;
    this.behind = marked.length - 1 - marked.indexOf('\0');
  }

  /**
   * @param before the serving's own text before a caller's
   * @throws InvalidInputError for special tokens
   * @throws RequestTooLargeError for too many tokens, unless the text is cut
   */
  encode(text: string, before = ''): Tokens {
    const tokens = this.tokensOf(text, before);
    const { overlap, maxTokens } = this.limits;
    if (overlap === undefined || tokens.length + this.around.single <= maxTokens) {
      return this.cut(tokens);
    }
    const own = before === '' ? [] : this.tokenizer.tokenize(before);
    const differs = own.findIndex((token, i) => token !== tokens[i]);
    return this.windows(tokens, differs < 0 ? own.length : differs);
  }

  /** Windows that each have the text's first tokens, which are the serving's own. */
  private windows(tokens: readonly string[], own: number): Tokens {
    const { limits, around } = this;
    const text = tokens.slice(own);
    const room = limits.maxTokens - around.single - own;
    const starts = limits.windowsOf(text.length, room);
    const [first, ...more] = starts.map((start) =>
      this.cut([...tokens.slice(0, own), ...text.slice(start, start + room)]),
    );
    const added = starts.map((start, i) => (i === 0 ? room : start - starts[i - 1]!));
    return { ...first!, more, added };
  }

  /** Number of tokens of the text before another one, special tokens included. */
  lengthBefore(text: string): number {
    const { tokens } = this.framed(this.tokenizer.tokenize(text));
    return tokens.length - this.behind;
  }

  /**
   * Encodes a pair, whose first text is often the previous pair's.
   *
   * @throws as `encode`
   */
  encodePair(text: string, other: string): Tokens {
    const { pair } = this.limits.limits;
    if (pair) {
      return this.filled(pair, text, other);
    }
    if (this.first?.text !== text) {
      this.first = { text, tokens: this.tokensOf(text) };
    }
    return this.cut(this.first.tokens, this.tokensOf(other));
  }

  /** True if a pair's texts get tokens between them. */
  get separatesPairs(): boolean {
    return this.around.pair > this.around.single;
  }

  /** Both texts join the template's words next to them; only the second one is cut. */
  private filled({ head, middle, tail }: PairTemplate, text: string, other: string): Tokens {
    const before = head + text + middle;
    if (this.first?.text !== before) {
      this.checkText(text);
      this.first = { text: before, tokens: this.tokenizer.tokenize(before) };
    }
    const end = this.tokenizer.tokenize(tail);
    const { serving, maxTokens } = this.limits;
    const room = maxTokens - end.length;
    if (this.first.tokens.length >= room) {
      throw new RequestTooLargeError(
        `Serving "${serving}" reads texts of at most ${maxTokens} tokens, and its template has ` +
          `${this.first.tokens.length + end.length} with this text; shorten it`,
      );
    }
    const tokens = this.tokensOf(other, before, this.first.tokens);
    this.limits.checkTokens(tokens.length + end.length);
    const ids = [...tokens.slice(0, room), ...end].map((token) => this.idOf(token));
    return { ids, types: typesOf(ids.length) };
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

  private tokensOf(text: string, before = '', ofBefore?: readonly string[]): string[] {
    const { limits, tokenizer } = this;
    const readable = limits.readable(text, before);
    const tokens = tokenizer.tokenize(readable);
    limits.checkReadable(before + text, readable, tokens.length);
    const special = tokens.filter((token) => this.special.has(token));
    const own = ofBefore ?? (special.length > 0 && before !== '' ? tokenizer.tokenize(before) : []);
    // Normalisation makes them of other characters, such as full-width ones.
    if (special.length > own.filter((token) => this.special.has(token)).length) {
      throw limits.specialToken(special.at(-1)!);
    }
    return tokens;
  }

  /**
   * Checks a text for a template.
   *
   * @throws InvalidInputError for special tokens, also after normalisation
   */
  checkText(text: string): void {
    this.limits.checkText(text);
    const normalised = this.tokenizer.normalizer?.(text) ?? text;
    const found = normalised === text ? undefined : this.specialIn(normalised);
    if (found !== undefined) {
      throw this.limits.specialToken(found);
    }
  }

  private specialIn(text: string): string | undefined {
    return this.limits.specialTokens.find((token) => text.includes(token));
  }

  /**
   * Encodes a template's text, including special tokens.
   *
   * @throws RequestTooLargeError for too many tokens
   */
  encodeWritten(text: string): readonly number[] {
    this.limits.checkCharacters(text.length);
    const { ids } = this.tokenizer.encode(text, { add_special_tokens: false });
    this.limits.checkTokens(ids.length);
    return ids;
  }

  /** Tokens with the model's special tokens around them. */
  private framed(one: string[], other?: string[]): { tokens: string[]; types: readonly number[] } {
    const post = this.tokenizer.post_processor;
    if (!post) {
      const tokens = other ? [...one, ...other] : one;
      return { tokens, types: typesOf(one.length, other?.length) };
    }
    const framed = post(one, other ?? null, true);
    // Some processors return the second text apart, and the library forgets it.
    const tokens = [...framed.tokens, ...(framed.tokens_pair ?? [])];
    const types =
      framed.token_type_ids ?? typesOf(framed.tokens.length, framed.tokens_pair?.length);
    // https://github.com/huggingface/tokenizers/blob/main/tokenizers/src/processors/roberta.rs
    return { tokens, types: post.config.type === 'RobertaProcessing' ? types.map(() => 0) : types };
  }

  private idOf(token: string): number {
    const { tokenizer } = this;
    const id =
      tokenizer.token_to_id(token) ?? this.added.get(token) ?? tokenizer.model?.unk_token_id;
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
 * Tokens that each text keeps if the longer one is cut first, as in
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

export interface TokenizerParts {
  readonly name: string;
  readonly tokenizerJson: Record<string, unknown>;
  readonly ofTokenizer: Record<string, unknown>;
  readonly lowers: boolean;
}

/** @throws ServingLoadError if the tokenizer is unusable, or without the library */
export async function textTokenizer(
  { name, tokenizerJson, ofTokenizer, lowers }: TokenizerParts,
  limits: TextLimits,
): Promise<TextTokenizer> {
  const library = await loadLibrary();
  try {
    const content = limits.limits.areText ? withoutSpecial(tokenizerJson) : tokenizerJson;
    const tokenizer = new library.Tokenizer(content, ofTokenizer);
    mendTokenizer(tokenizer, content, library);
    if (lowers) {
      lowerFirst(tokenizer);
    }
    return new TextTokenizer(tokenizer, limits, new AddedTokens(tokenizerJson).ids);
  } catch (cause) {
    throw new ServingLoadError(`The tokenizer of ${name} cannot be used: ${messageOf(cause)}`, {
      cause,
    });
  }
}

/**
 * Decodes tokens in a thread, by the contents of tokenizer.json and tokenizer_config.json.
 *
 * @throws ServingLoadError without the library
 */
export async function textDecoder(
  tokenizer: object,
  config: object,
): Promise<(ids: readonly number[]) => string> {
  const { Tokenizer } = await loadLibrary();
  const words = new Tokenizer(tokenizer, config);
  return decoderOf(words);
}

function decoderOf(tokenizer: Tokenizer): (ids: readonly number[]) => string {
  const options = { skip_special_tokens: true, clean_up_tokenization_spaces: false };
  return (ids) => (ids.length === 0 ? '' : tokenizer.decode([...ids], options));
}

/** @throws ServingLoadError without the library */
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

/** Puts a text's place before its refusal. */
export function placed(place: string, cause: unknown): unknown {
  const Refusal = [InvalidInputError, RequestTooLargeError].find((each) => cause instanceof each);
  return Refusal ? new Refusal(`${place}: ${messageOf(cause)}`, { cause }) : cause;
}
