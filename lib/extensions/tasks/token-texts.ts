import { isRecord } from '../../doors/options.js';
import { type Grammar, GrammarError, mapTexts } from './answer-form.js';
import { LENGTH_RULE, type Length, OPENING } from './json-grammar.js';

/** Writing of bytes in a vocabulary. */
export type VocabularyType = 'byte_level' | 'byte_fallback';

/** Writing of a tokenizer's bytes; undefined for one that the grammars' library can't read. */
export function vocabularyTypeOf(tokenizerJson: object): VocabularyType | undefined {
  const { decoder, model } = tokenizerJson as Record<string, unknown>;
  const parts = isRecord(decoder) ? [decoder, ...[decoder['decoders'] ?? []].flat()] : [];
  const has = (type: string): boolean =>
    parts.some((part) => isRecord(part) && part['type'] === type);
  if (!isRecord(model) || !(isRecord(model['vocab']) || Array.isArray(model['vocab']))) {
    return undefined;
  }
  if (has('ByteLevel')) {
    return 'byte_level';
  }
  return has('ByteFallback') || has('Metaspace') ? 'byte_fallback' : undefined;
}

/** Texts of a model's tokens. Special tokens have none, since answers leave them out. */
export function textsIn(tokenizerJson: object): readonly string[] {
  const { model, added_tokens: added = [] } = tokenizerJson as {
    readonly model: { readonly vocab: Record<string, number> | readonly [string, number][] };
    readonly added_tokens?: readonly { id: number; content: string; special?: boolean }[];
  };
  const texts: string[] = [];
  if (Array.isArray(model.vocab)) {
    // Unigram's texts have a score each.
    texts.push(...model.vocab.map(([text]) => text as string));
  } else {
    for (const [text, id] of Object.entries(model.vocab)) {
      texts[id] = text;
    }
  }
  for (const { id, content, special } of added) {
    texts[id] = special === true ? '' : content;
  }
  return Array.from(texts, (text) => text ?? '');
}

/** Characters that stand for bytes in a vocabulary of bytes, as GPT-2 writes them. */
const BYTE_CHARACTERS: readonly string[] = (() => {
  let others = 0x100;
  return Array.from({ length: 0x100 }, (_, byte) => {
    const isShown = /[!-~\u00a1-\u00ac\u00ae-\u00ff]/.test(String.fromCodePoint(byte));
    return String.fromCodePoint(isShown ? byte : others++);
  });
})();
const BYTES: ReadonlyMap<string, number> = new Map(
  BYTE_CHARACTERS.map((character, byte) => [character, byte]),
);

/** Token's text of a byte. */
export function textOfByte(byte: number, type: VocabularyType): string {
  return type === 'byte_level'
    ? BYTE_CHARACTERS[byte]!
    : `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;
}

/** Bytes of a token. */
function bytesOf(text: string, type: VocabularyType): Uint8Array {
  if (type === 'byte_level') {
    const bytes = Array.from(text, (each) => BYTES.get(each));
    return bytes.every((byte) => byte !== undefined) ? Uint8Array.from(bytes) : Buffer.from(text);
  }
  const [, byte] = /^<0x([0-9a-f]{2})>$/i.exec(text) ?? [];
  return byte === undefined
    ? Buffer.from(text.replaceAll('\u2581', ' '))
    : Uint8Array.of(parseInt(byte, 16));
}

/** Bytes that may be second in a character behind these, where not all may: RFC 3629. */
const SECONDS: ReadonlyMap<number, readonly [least: number, most: number]> = new Map([
  [0xe0, [0xa0, 0xbf]],
  [0xed, [0x80, 0x9f]],
  [0xf0, [0x90, 0xbf]],
  [0xf4, [0x80, 0x8f]],
]);
/** Bytes of no character. */
const NEVER: ReadonlySet<number> = new Set([
  0xc0,
  0xc1,
  ...Array.from({ length: 11 }, (_, i) => 0xf5 + i),
]);

/**
 * Tokens that keep an answer's bytes characters. The library takes any byte that begins one, and then
 * as many as it asks for, such as halves of pairs; a text of them has other characters, and more.
 */
export class WholeCharacters {
  /** Last bytes of tokens. */
  private readonly last: ReadonlyMap<number, number>;
  /** Bits of tokens that no text has, and of those that do not follow a byte. */
  private readonly broken: Int32Array;
  private readonly behind: ReadonlyMap<number, Int32Array>;

  constructor(texts: readonly string[], type: VocabularyType) {
    // Other tokens have whole characters.
    const isAscii = type === 'byte_level' ? /^[!-~\u0100-\u0121]*$/ : /^(?!<0x..>$)/;
    const tokens = texts.flatMap((text, token) =>
      isAscii.test(text) ? [] : [{ token, bytes: bytesOf(text, type) }],
    );
    const bitsOf = (isOut: (bytes: Uint8Array) => boolean): Int32Array => {
      const bits = new Int32Array(Math.ceil(texts.length / 32));
      for (const { token, bytes } of tokens) {
        bits[token >> 5]! |= isOut(bytes) ? bitOf(token) : 0;
      }
      return bits;
    };
    this.last = new Map(tokens.map(({ token, bytes }) => [token, bytes.at(-1)!]));
    this.broken = bitsOf((bytes) =>
      bytes.some((byte, i) => NEVER.has(byte) || !mayFollow(byte, bytes[i + 1])),
    );
    this.behind = new Map(
      [...SECONDS.keys()].map((byte) => [byte, bitsOf(([next]) => !mayFollow(byte, next))]),
    );
  }

  /** Changes and returns the mask. */
  among(mask: Int32Array, last: number | undefined): Int32Array {
    const behind = this.behind.get(this.last.get(last ?? -1) ?? 0);
    for (let at = 0; at < mask.length; at++) {
      mask[at]! &= ~((this.broken[at] ?? 0) | (behind?.[at] ?? 0));
    }
    return mask;
  }
}

function mayFollow(byte: number, next: number | undefined): boolean {
  const [least, most] = SECONDS.get(byte) ?? [0, 0xff];
  return next === undefined || (next >= least && next <= most);
}

const bitOf = (token: number): number => 1 << (token & 31);

const allows = (mask: Int32Array, token: number): boolean =>
  (mask[token >> 5]! & bitOf(token)) !== 0;

/** Byte that a grammar allows in free text alone, since JSON has no control characters. */
const FREE = 0x1f;
/** Bytes that it allows within strings of a length, one for each. The frames of calls have the others. */
const WITHIN = Array.from({ length: FREE - 2 }, (_, i) => i + 2).filter(
  (byte) => !'\t\n\r'.includes(String.fromCharCode(byte)),
);
const MARKS = [FREE, OPENING, ...WITHIN];

const hex = (byte: number): string => String.raw`\x` + byte.toString(16).padStart(2, '0');

const RULE = new RegExp(`^(\\S+) ::= ${LENGTH_RULE}(.*)$`, 'gm');

/**
 * Grammar with a mark for each length of a string.
 *
 * @returns the lengths, too, in their marks' order
 * @throws GrammarError for too many different ones
 */
export function withLengths(grammar: Grammar): {
  readonly grammar: Grammar;
  readonly lengths: readonly Length[];
} {
  const found = new Map<string, Length>();
  const ruleOf = (_: string, name: string, length: string): string => {
    found.set(length, JSON.parse(length) as Length);
    const mark = WITHIN[[...found.keys()].indexOf(length)];
    if (mark === undefined) {
      throw new GrammarError(
        `was given JSON schemas with more than ${WITHIN.length} different lengths of strings; give ` +
          'some the same minLength and maxLength',
      );
    }
    const characters = String.raw`[^"\\\x00-${hex(mark - 1)}${hex(mark + 1)}-\x1f]`;
    return String.raw`${name} ::= "\"" | ${characters} ${name} | "\\" escape ${name}`;
  };
  const marked = mapTexts(grammar, (text) => text.replaceAll(RULE, ruleOf));
  return { grammar: marked, lengths: [...found.values()] };
}

/** Texts of tokens that the library needs in addition to the model's. */
export function marksOf(type: VocabularyType): readonly string[] {
  return MARKS.map((byte) => textOfByte(byte, type));
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
/** Begins an escape whose digits may be half a character. */
const U = 0x75;

/** Flags of a token's step within a string, which has a character for each of the other bits. */
const CLOSES = 0x2000;
const ESCAPES = 0x4000;
const charactersIn = (step: number): number => step & ~(CLOSES | ESCAPES);

/**
 * @param isBehindBackslash whether the token begins there
 * @returns -1 for a token that may not stand there
 */
function stepOf(bytes: Uint8Array, isBehindBackslash: boolean): number {
  let characters = 0;
  let isEscaped = isBehindBackslash;
  for (const byte of bytes) {
    if (isEscaped) {
      if (byte === U) {
        return -1;
      }
      isEscaped = false;
    } else if (byte === QUOTE) {
      return characters | CLOSES;
    } else {
      isEscaped = byte === BACKSLASH;
      // Other bytes of a character begin with these bits.
      characters += (byte & 0xc0) === 0x80 ? 0 : 1;
    }
  }
  return characters | (isEscaped ? ESCAPES : 0);
}

/** Tokens of a vocabulary by what they do to a string's length, which a grammar can't count. */
export class StringLengths {
  /** Lowest token of {@link marksOf}. */
  readonly first: number;
  /** Bits of tokens with a mark. */
  readonly marked: Int32Array;
  /** Bits of tokens that open a string behind other characters, and have some of its own. */
  readonly opening: Int32Array;
  /** Bits of tokens that begin with a quote, and have more. */
  readonly quoted: Int32Array;
  /** Steps of tokens within a string, and behind its backslash. */
  readonly steps: Int16Array;
  readonly escapedSteps: Int16Array;

  /** @param texts the model's, and {@link marksOf} */
  constructor(texts: readonly string[], type: VocabularyType) {
    const bytes = texts.map((text) => bytesOf(text, type));
    const characters = bytes.map((each) => Buffer.from(each).toString('latin1'));
    const bitsOf = (pattern: RegExp): Int32Array => {
      const bits = new Int32Array(Math.ceil(texts.length / 32));
      characters.forEach((each, token) => {
        bits[token >> 5]! |= pattern.test(each) ? bitOf(token) : 0;
      });
      return bits;
    };
    this.first = texts.length - MARKS.length;
    // oxlint-disable-next-line no-control-regex -- The marks.
    this.marked = bitsOf(/[\x01-\x08\x0b\x0c\x0e-\x1f]/);
    // Tokens may begin within a string, also behind a backslash, and have whole ones.
    this.opening = bitsOf(
      /^(?:[^]?(?:[^"\\]|\\[^])*")?(?:[^"]*"(?:[^"\\]|\\[^])*")*[^"]*(?<=^\s+|[,:[{]\s*)"[^]/,
    );
    this.quoted = bitsOf(/^"[^]/);
    this.steps = Int16Array.from(bytes, (each) => stepOf(each, false));
    this.escapedSteps = Int16Array.from(bytes, (each) => stepOf(each, true));
  }
}

/** Counts the characters of an answer's strings, where a length holds them. */
export class LengthCounter {
  /** Characters so far; undefined outside such a string. */
  private count: number | undefined;
  private isEscaped = false;
  private least = 0;
  private most = Infinity;

  /** @param lengths by their index in the grammar */
  constructor(
    private readonly tokens: StringLengths,
    private readonly lengths: readonly Length[],
  ) {}

  accept(token: number): void {
    if (this.count !== undefined) {
      const step = this.stepsNow[token]!;
      this.isEscaped = (step & ESCAPES) !== 0;
      this.count = (step & CLOSES) !== 0 ? undefined : this.count + charactersIn(step);
    }
  }

  /** Takes tokens out of the mask that the grammar gives. */
  narrow(mask: Int32Array): void {
    const { first, marked, opening, quoted } = this.tokens;
    if (allows(mask, first)) {
      return;
    }
    const within = this.lengths.filter((_, i) => allows(mask, first + 2 + i));
    if (within.length > 0) {
      this.count ??= 0;
      this.least = Math.max(...within.map(({ least }) => least));
      this.most = Math.min(...within.map(({ most = Infinity }) => most));
    }
    const mayOpen = allows(mask, first + 1);
    for (let at = 0; at < mask.length; at++) {
      mask[at]! &= ~(marked[at]! | opening[at]! | (mayOpen ? quoted[at]! : 0));
    }
    if (this.count !== undefined) {
      this.keep(mask, this.count);
    }
  }

  private keep(mask: Int32Array, count: number): void {
    const { least, most, stepsNow } = this;
    for (let at = 0; at < mask.length; at++) {
      for (let left = mask[at]!; left !== 0; left &= left - 1) {
        const bit = 31 - Math.clz32(left & -left);
        const step = stepsNow[at * 32 + bit]!;
        const length = count + charactersIn(step);
        if (step < 0 || length > most || (length < least && (step & CLOSES) !== 0)) {
          mask[at]! &= ~(1 << bit);
        }
      }
    }
  }

  private get stepsNow(): Int16Array {
    return this.isEscaped ? this.tokens.escapedSteps : this.tokens.steps;
  }
}
