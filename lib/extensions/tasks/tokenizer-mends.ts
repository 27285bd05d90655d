import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { addedTokensIn } from './added-tokens.js';

/**
 * Mends `@huggingface/tokenizers` 0.2.0 to tokenize as Python does:
 * https://github.com/huggingface/tokenizers/tree/main/tokenizers/src
 */

/** Parts of `@huggingface/tokenizers` that we use; its own types don't resolve under `nodenext`. */
export interface Library {
  readonly Tokenizer: new (content: object, config: object) => Tokenizer;
  readonly BertNormalizer: new (...options: never[]) => BertNormalizer;
  readonly WordPiece: new (...options: never[]) => WordPiece;
  readonly Unigram: new (...options: never[]) => Unigram;
}

export interface Tokenizer {
  readonly normalizer: ((text: string) => string) | null;
  readonly pre_tokenizer: object | null;
  readonly model: { readonly unk_token_id?: number; readonly unk_token?: string } | null;
  readonly post_processor: PostProcessor | null;
  /** Adds no special tokens. */
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
  /** Parts of the kind Sequence. */
  readonly processors?: readonly { readonly config?: { readonly type?: string } }[];
}

interface Framed {
  readonly tokens: string[];
  readonly tokens_pair?: string[] | null;
  readonly token_type_ids?: number[];
}

interface WordPiece {
  readonly tokens_to_ids: ReadonlyMap<string, number>;
  readonly unk_token: string;
  readonly max_input_chars_per_word: number;
  readonly config: { readonly continuing_subword_prefix?: string };
  encode(words: readonly string[]): string[];
}

interface Unigram {
  readonly tokens_to_ids: ReadonlyMap<string, number>;
  readonly scores: readonly number[];
  readonly unk_score: number;
  readonly trie: {
    common_prefix_search(characters: readonly string[], start: number): Iterable<string>;
  };
  tokenize(word: string): string[];
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

/** Part of a tokenizer.json, with a `type`. */
type Part = Readonly<Record<string, unknown>>;

/** @throws Error for what the library ignores silently */
export function mendTokenizer(
  tokenizer: Tokenizer,
  json: Readonly<Record<string, unknown>>,
  library: Library,
): void {
  const { normalizer, pre_tokenizer: words, model } = tokenizer;
  checkParts(json);
  mendNormalizer(normalizer, json['normalizer'], library);
  mendWords(words, json['pre_tokenizer']);
  mendUnknown(model, json);
  mendWordPiece(model, library);
  if (model instanceof library.Unigram) {
    model.tokenize = (word) => likeliest(word, model);
  }
  mendSpecial(tokenizer);
}

function checkParts(json: Readonly<Record<string, unknown>>): void {
  const { model } = json;
  const { type, byte_fallback, continuing_subword_prefix: prefix } = isRecord(model) ? model : {};
  const word = addedTokensIn(json).find(
    (token) => token['single_word'] === true && token['special'] !== true,
  );
  const lacking =
    type === 'Unigram' && byte_fallback === true
      ? 'its model Unigram has byte_fallback'
      : type === 'BPE' && typeof prefix === 'string' && prefix !== ''
        ? `its model BPE has continuing_subword_prefix ${formatValue(prefix)}`
        : word && `its added token ${formatValue(word['content'])} has single_word`;
  if (lacking !== undefined) {
    throw new Error(`${lacking}, which Python obeys and this task does not have`);
  }
}

/** Method by which the library calls a model. */
const CALL = '_call';

/**
 * Joins consecutive unknown tokens within a word only. Without an unknown token, first drops
 * unknown characters, so that the others meet.
 */
function mendUnknown(
  model: unknown,
  { model: part, pre_tokenizer: words }: Readonly<Record<string, unknown>>,
): void {
  if (typeof model !== 'function' || !(CALL in model) || !isRecord(part)) {
    return;
  }
  const { type, vocab, unk_token: unknown, byte_fallback: fallsBack } = part;
  const encode = (model[CALL] as (words: readonly string[]) => string[]).bind(model);
  if (part['fuse_unk'] === true || type === 'Unigram') {
    Object.assign(model, {
      [CALL]: (all: readonly string[]) => all.flatMap((word) => encode([word])),
    });
  } else if (type === 'WordLevel' && isRecord(vocab)) {
    Object.assign(model, { unk_token: unknown, unk_token_id: vocab[String(unknown)] });
  } else if (
    type === 'BPE' &&
    isRecord(vocab) &&
    !unknown &&
    fallsBack !== true &&
    !hasBytes(words)
  ) {
    const known = (word: string): string =>
      Array.from(word)
        .filter((character) => Object.hasOwn(vocab, character))
        .join('');
    Object.assign(model, { [CALL]: (all: readonly string[]) => encode(all.map(known)) });
  }
}

/** True for a pre-tokenizer that knows each character by its bytes. */
function hasBytes(words: unknown): boolean {
  const { type, pretokenizers: parts } = isRecord(words) ? words : {};
  return type === 'ByteLevel' || (Array.isArray(parts) && parts.some(hasBytes));
}

/**
 * Likeliest pieces of a word. The library rounds sums differently, so it splits some words
 * differently:
 * https://github.com/huggingface/tokenizers/blob/main/tokenizers/src/models/unigram/model.rs
 */
function likeliest(
  word: string,
  { tokens_to_ids: ids, scores, unk_score, trie }: Unigram,
): string[] {
  const characters = Array.from(word);
  const best: { readonly start: number; readonly score: number }[] = [{ start: 0, score: 0 }];
  for (let start = 0; start < characters.length; start++) {
    const before = best[start]!.score;
    const reach = (end: number, score: number): void => {
      const found = best[end];
      if (!found || before + score > found.score) {
        best[end] = { start, score: before + score };
      }
    };
    let isKnown = false;
    for (const token of trie.common_prefix_search(characters, start)) {
      const count = Array.from(token).length;
      reach(start + count, scores[ids.get(token)!]!);
      isKnown ||= count === 1;
    }
    if (!isKnown) {
      reach(start + 1, unk_score);
    }
  }
  const pieces: string[] = [];
  for (let end = characters.length; end > 0; end = best[end]!.start) {
    pieces.push(characters.slice(best[end]!.start, end).join(''));
  }
  return pieces.toReversed();
}

/** Removes ByteLevel, which only changes tokens' places and forgets the numbers of their texts. */
function mendSpecial(tokenizer: Tokenizer): void {
  const { post_processor: post } = tokenizer;
  if (post?.processors) {
    const processors = post.processors.filter(({ config }) => config?.type !== 'ByteLevel');
    const [only, ...others] = processors;
    Object.assign(post, { processors });
    Object.assign(tokenizer, only && others.length === 0 && { post_processor: only });
  }
}

function mendNormalizer(normalizer: unknown, part: unknown, library: Library): void {
  if (!isRecord(part) || typeof normalizer !== 'function') {
    return;
  }
  if (normalizer instanceof library.BertNormalizer) {
    normalizer.normalize = (text) => normalizedAsBert(normalizer, text);
    return;
  }
  if (Array.isArray(part['normalizers']) && 'normalizers' in normalizer) {
    const own = normalizer.normalizers as readonly unknown[];
    part['normalizers'].forEach((each, i) => mendNormalizer(own[i], each, library));
    return;
  }
  const mended = normalizing(part, 'pattern' in normalizer ? normalizer.pattern : undefined);
  if (mended) {
    Object.assign(normalizer, { normalize: mended });
  }
}

/** Mended function, if the kind needs one. */
function normalizing(part: Part, pattern: unknown): Normalize | undefined {
  const { type, strip_left: left, strip_right: right, content, precompiled_charsmap: map } = part;
  switch (type) {
    case 'Lowercase':
      return lowered;
    case 'Strip':
      return (text) =>
        text
          .replace(left === true ? /^\p{White_Space}+/u : '', '')
          .replace(right === true ? /\p{White_Space}+$/u : '', '');
    case 'Replace':
      // Its content has no references to groups.
      return pattern instanceof RegExp
        ? (text) => text.replaceAll(pattern, () => String(content))
        : undefined;
    case 'Prepend':
      return (text) => (text === '' ? '' : String(part['prepend']) + text);
    case 'Precompiled':
      return typeof map === 'string' && map !== ''
        ? charsmap(Buffer.from(map, 'base64'))
        : undefined;
    default:
      return undefined;
  }
}

type Normalize = (text: string) => string;

/** Lowers each character by itself, so that sigma has no final form. */
function lowered(text: string): string {
  return Array.from(text, (each) => each.toLowerCase()).join('');
}

/** Lowers texts before all else. Special tokens stay, since they aren't normalized. */
export function lowerFirst(tokenizer: Tokenizer): void {
  const { normalizer } = tokenizer;
  const normalize: Normalize = (text) => normalizer?.(lowered(text)) ?? lowered(text);
  Object.assign(tokenizer, { normalizer: normalize });
}

const IDEOGRAPHS =
  /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu;

/**
 * BERT's normalizer misses ideographs beyond U+FFFF, and lowers whole texts, which changes a final
 * sigma.
 */
function normalizedAsBert(normalizer: BertNormalizer, given: string): string {
  const { clean_text, handle_chinese_chars, lowercase, strip_accents } = normalizer.config;
  let text = clean_text ? normalizer.clean_text(given) : given;
  text = handle_chinese_chars ? text.replace(IDEOGRAPHS, ' $& ') : text;
  text = (strip_accents ?? lowercase) ? normalizer.strip_accents(text) : text;
  return lowercase ? lowered(text) : text;
}

/**
 * Character table of a SentencePiece model, a trie in an array, instead of the library's guess:
 * https://github.com/huggingface/spm_precompiled/blob/master/src/lib.rs
 */
function charsmap(table: Buffer): Normalize {
  const begin = 4 + table.readUInt32LE(0);
  const unitAt = (place: number): number => table.readUInt32LE(4 + 4 * place);
  /** Replacement of the text's shortest prefix in the table. */
  const replaced = (text: string): string | undefined => {
    let place = offsetIn(unitAt(0));
    for (const byte of Buffer.from(text)) {
      place ^= byte;
      const unit = unitAt(place);
      if (byte === 0 || (unit & 0x8000_00ff) !== byte) {
        return undefined;
      }
      place ^= offsetIn(unit);
      if ((unit & 0x100) !== 0) {
        const start = begin + (unitAt(place) & 0x7fff_ffff);
        return table.toString('utf8', start, table.indexOf(0, start));
      }
    }
    return undefined;
  };
  const ofGrapheme = (grapheme: string): string =>
    (Buffer.byteLength(grapheme) < 6 ? replaced(grapheme) : undefined) ??
    Array.from(grapheme, (each) => replaced(each) ?? each).join('');
  const known = new Map<string, string>();
  const ofCharacter = (character: string): string => {
    const found = known.get(character) ?? replaced(character) ?? character;
    if (known.size < MOST_KNOWN) {
      known.set(character, found);
    }
    return found;
  };
  return (text) =>
    text.replace(CLUSTERS, (cluster) =>
      cluster.length <= 2 && Array.from(cluster).length === 1
        ? ofCharacter(cluster)
        : Array.from(GRAPHEMES.segment(cluster), ({ segment }) => ofGrapheme(segment)).join(''),
    );
}

/**
 * Characters that may belong to one grapheme, or any other alone. Segmenting a whole text takes
 * fifty times as long: https://unicode.org/reports/tr29/#Grapheme_Cluster_Boundary_Rules
 */
const CLUSTERS =
  /.?(?:[\r\p{M}\p{Cf}\p{Grapheme_Extend}\p{Emoji_Modifier}\p{Regional_Indicator}\u1100-\u11ff\ua960-\ua97c\ud7b0-\ud7fb\u0e33\u0eb3]+.?)+|./gsu;
const GRAPHEMES = new Intl.Segmenter('und', { granularity: 'grapheme' });
function offsetIn(unit: number): number {
  return (unit >>> 10) << ((unit & 0x200) >>> 6);
}

/** Replacements that we keep. */
const MOST_KNOWN = 10_000;

/** Use of a text's matches, as in `SplitDelimiterBehavior`. */
type Behavior = 'Removed' | 'Isolated' | 'MergedWithPrevious' | 'MergedWithNext' | 'Contiguous';

const PUNCTUATION = /[\p{P}$+<=>^`|~]/gu;
const WORDS_OF_BERT = /[^\p{White_Space}\p{P}$+<=>^`|~]+|[\p{P}$+<=>^`|~]/gu;
const WORD = String.raw`\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}`;
const WORDS = new RegExp(`[${WORD}]+|[^${WORD}\\p{White_Space}]+`, 'gu');

function mendWords(words: unknown, part: unknown): void {
  if (!isRecord(part) || typeof words !== 'function') {
    return;
  }
  if (Array.isArray(part['pretokenizers']) && 'tokenizers' in words) {
    const own = words.tokenizers as readonly unknown[];
    part['pretokenizers'].forEach((each, i) => mendWords(own[i], each));
  } else if (
    part['type'] === 'ByteLevel' &&
    'pattern' in words &&
    words.pattern instanceof RegExp
  ) {
    const source = words.pattern.source.replaceAll(/\\s/gi, (each) =>
      each === '\\s' ? '\\p{White_Space}' : '\\P{White_Space}',
    );
    Object.assign(words, { pattern: new RegExp(source, 'gu') });
  } else {
    const mended = wording(part, words as unknown as Words);
    Object.assign(words, mended && { pre_tokenize_text: mended });
  }
}

interface Words {
  readonly pattern?: RegExp | null;
  pre_tokenize_text(text: string, options?: object): string[];
}

/** Mended function, if the kind needs one. */
function wording(part: Part, words: Words): Words['pre_tokenize_text'] | undefined {
  const behavior = part['behavior'] as Behavior;
  switch (part['type']) {
    case 'BertPreTokenizer':
      return (text) => text.match(WORDS_OF_BERT) ?? [];
    case 'Whitespace':
      return (text) => text.match(WORDS) ?? [];
    case 'WhitespaceSplit':
      return (text) => text.match(/\P{White_Space}+/gu) ?? [];
    case 'Punctuation':
      return (text) => split(text, PUNCTUATION, behavior);
    case 'Digits':
      return (text) =>
        split(text, /\p{N}/gu, part['individual_digits'] === true ? 'Isolated' : 'Contiguous');
    case 'FixedLength':
      return (text) => split(text, new RegExp(`.{1,${Number(part['length'])}}`, 'gsu'), 'Isolated');
    case 'Split':
      return words.pattern
        ? (text) => split(text, words.pattern!, behavior, part['invert'] === true)
        : undefined;
    case 'Metaspace': {
      const spaced = words.pre_tokenize_text.bind(words);
      const mark = `\\u{${String(part['replacement']).codePointAt(0)!.toString(16)}}`;
      const each = new RegExp(`${mark}[^${mark}]*|[^${mark}]+`, 'gu');
      return part['split'] === false
        ? undefined
        : (text, options) => spaced(text, options).flatMap((all) => all.match(each) ?? []);
    }
    default:
      return undefined;
  }
}

/** Follows `split` of https://github.com/huggingface/tokenizers/blob/main/tokenizers/src/tokenizer/normalizer.rs */
function split(text: string, pattern: RegExp, behavior: Behavior, isInverted = false): string[] {
  const parts: { readonly text: string; readonly isFound: boolean }[] = [];
  let end = 0;
  const add = (each: string, isFound: boolean): void => {
    if (each !== '') {
      parts.push({ text: each, isFound: isFound !== isInverted });
    }
  };
  for (const { 0: found, index } of text.matchAll(pattern)) {
    add(text.slice(end, index), false);
    add(found, true);
    end = index + found.length;
  }
  add(text.slice(end), false);
  if (behavior === 'Removed') {
    return parts.filter(({ isFound }) => !isFound).map((each) => each.text);
  }
  const isBackwards = behavior === 'MergedWithNext';
  const joined: string[] = [];
  let before = false;
  for (const each of isBackwards ? parts.toReversed() : parts) {
    const joins =
      behavior === 'Contiguous'
        ? each.isFound === before
        : behavior !== 'Isolated' && each.isFound && !before;
    const last = joins ? joined.pop() : undefined;
    joined.push(isBackwards ? each.text + (last ?? '') : (last ?? '') + each.text);
    before = each.isFound;
  }
  return isBackwards ? joined.toReversed() : joined;
}

/** WordPiece tries all parts of a word, in cubic time; only parts as long as a token can be one. */
function mendWordPiece(model: unknown, library: Library): void {
  if (model instanceof library.WordPiece) {
    const ofTokens = Array.from(model.tokens_to_ids.keys(), (token) => Array.from(token).length);
    const lengths = [...new Set(ofTokens)].toSorted((one, other) => other - one);
    model.encode = (words) => words.flatMap((word) => piecesOf(word, model, lengths));
  }
}

function piecesOf(word: string, model: WordPiece, lengths: readonly number[]): readonly string[] {
  const { tokens_to_ids: tokens, unk_token: unknown, max_input_chars_per_word: most } = model;
  const { continuing_subword_prefix: continuing = '' } = model.config;
  const characters = Array.from(word);
  if (characters.length > most) {
    return [unknown];
  }
  const pieces: string[] = [];
  for (let start = 0; start < characters.length;) {
    const before = start > 0 ? continuing : '';
    const count = lengths
      .map((length) => length - before.length)
      .find(
        (length) =>
          length > 0 &&
          start + length <= characters.length &&
          tokens.has(before + characters.slice(start, start + length).join('')),
      );
    if (count === undefined) {
      return [unknown];
    }
    pieces.push(before + characters.slice(start, start + count).join(''));
    start += count;
  }
  return pieces;
}
