import { readFile } from 'node:fs/promises';
import { createRequire, Module } from 'node:module';
import { isRecord } from '../../doors/options.js';
import type { Grammar } from './answer-form.js';
import { withPatterns } from './text-patterns.js';

/** Package that holds answers to grammars. */
export const GRAMMAR_PACKAGE = '@mlc-ai/web-xgrammar';

/** Parts of the library that we use. Each object lives in WebAssembly's memory until disposed. */
interface Library {
  readonly TokenizerInfo: {
    createTokenizerInfo(
      texts: readonly string[],
      type: VocabularyType,
      prependsSpace: boolean,
      size: number,
      endTokens: readonly number[],
    ): Promise<object>;
  };
  readonly GrammarCompiler: {
    createGrammarCompiler(vocabulary: object, isCached: boolean): Promise<Compiler>;
  };
  readonly GrammarMatcher: {
    createGrammarMatcher(grammar: Compiled, endTokens: readonly number[]): Promise<Matcher>;
  };
}

interface Compiler {
  compileGrammar(text: string): Promise<Compiled>;
  compileStructuralTag(tag: object): Promise<Compiled>;
}

interface Compiled {
  dispose(): void;
}

/** Place in a grammar, behind an answer's tokens. */
export interface Matcher {
  /** False for a token that the grammar forbids. */
  acceptToken(token: number): boolean;
  /** A bit for each token, from the lowest of each number on: 1 allows it. */
  getNextTokenBitmask(): Promise<Int32Array>;
  dispose(): void;
}

type VocabularyType = 'byte_level' | 'byte_fallback';

/** Compiled grammars that stay; one unused for longest goes first. */
const MOST_COMPILED = 64;

/** Runs in the grammars' thread. */
export class GrammarEngine {
  private readonly compiled = new Map<string, Compiled>();

  private constructor(
    private readonly library: Library,
    private readonly compiler: Compiler,
    private readonly characters: WholeCharacters,
  ) {}

  static async of(
    file: string,
    tokenizerJson: object,
    endTokens: readonly number[],
  ): Promise<GrammarEngine> {
    const library = await loadLibrary(file);
    const texts = textsIn(tokenizerJson);
    const type = vocabularyTypeOf(tokenizerJson)!;
    const vocabulary = await library.TokenizerInfo.createTokenizerInfo(
      texts,
      type,
      false,
      texts.length,
      endTokens,
    );
    // Its own cache would keep all grammars.
    const compiler = await library.GrammarCompiler.createGrammarCompiler(vocabulary, false);
    return new GrammarEngine(library, compiler, new WholeCharacters(texts, type));
  }

  /**
   * @param endTokens may follow where the grammar ends
   * @throws PatternError for a pattern that answers can't be held to
   */
  async open(grammar: Grammar, endTokens: readonly number[]): Promise<Matcher> {
    const { library, characters } = this;
    const compiled = await this.compile(grammar);
    const matcher = await library.GrammarMatcher.createGrammarMatcher(compiled, endTokens);
    let last: number | undefined;
    return {
      acceptToken(token) {
        last = token;
        return matcher.acceptToken(token);
      },
      async getNextTokenBitmask() {
        return characters.among(await matcher.getNextTokenBitmask(), last);
      },
      dispose: () => matcher.dispose(),
    };
  }

  private async compile(grammar: Grammar): Promise<Compiled> {
    const { compiled } = this;
    const key = typeof grammar === 'string' ? grammar : JSON.stringify(grammar);
    const known = compiled.get(key);
    const made = known ?? (await this.compiledNow(await withPatterns(grammar)));
    compiled.delete(key);
    compiled.set(key, made);
    if (compiled.size > MOST_COMPILED) {
      const [[oldest, unused]] = compiled as unknown as [[string, Compiled]];
      compiled.delete(oldest);
      unused.dispose();
    }
    return made;
  }

  private compiledNow(grammar: Grammar): Promise<Compiled> {
    return typeof grammar === 'string'
      ? this.compiler.compileGrammar(grammar)
      : this.compiler.compileStructuralTag(grammar);
  }
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
class WholeCharacters {
  /** Last bytes of tokens. */
  private readonly last: ReadonlyMap<number, number>;
  /** Bits of tokens that no text has, and of those that do not follow a byte. */
  private readonly broken: Int32Array;
  private readonly behind: ReadonlyMap<number, Int32Array>;

  constructor(texts: readonly string[], type: VocabularyType) {
    const tokens = texts.flatMap((text, token) => {
      const bytes = bytesOf(text, type);
      return bytes.length > 0 ? [{ token, bytes }] : [];
    });
    const bitsOf = (isOut: (bytes: readonly number[]) => boolean): Int32Array => {
      const bits = new Int32Array(Math.ceil(texts.length / 32));
      for (const { token, bytes } of tokens) {
        bits[token >> 5]! |= isOut(bytes) ? 1 << (token & 31) : 0;
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

/** Bytes by the characters that stand for them in a vocabulary of bytes, as GPT-2 writes them. */
const BYTES: ReadonlyMap<string, number> = new Map(
  (() => {
    let others = 0x100;
    return Array.from({ length: 0x100 }, (_, byte) => {
      const isShown = /[!-~\u00a1-\u00ac\u00ae-\u00ff]/.test(String.fromCodePoint(byte));
      return [String.fromCodePoint(isShown ? byte : others++), byte] as const;
    });
  })(),
);

/** Bytes of a token that has some beyond ASCII; those of whole characters may be left out. */
function bytesOf(text: string, type: VocabularyType): readonly number[] {
  if (type === 'byte_fallback') {
    const [, byte] = /^<0x([0-9a-f]{2})>$/i.exec(text) ?? [];
    return byte === undefined ? [] : [parseInt(byte, 16)];
  }
  if (/^[!-~\u0100-\u0121]*$/.test(text)) {
    return [];
  }
  const bytes = Array.from(text, (each) => BYTES.get(each));
  return bytes.every((byte) => byte !== undefined) ? bytes : [];
}

/** Path of the library's module; undefined without it. */
export function grammarLibrary(): string | undefined {
  try {
    return createRequire(import.meta.url).resolve(GRAMMAR_PACKAGE);
  } catch {
    return undefined;
  }
}

/** Compiles a CommonJS module, as Node does for `require`. */
interface CompilingModule {
  readonly exports: unknown;
  _compile(source: string, file: string): void;
}

/** Loads the library, whose package calls a CommonJS file an ES module: Node can't import it. */
async function loadLibrary(file: string): Promise<Library> {
  const module = new Module(file) as unknown as CompilingModule;
  // oxlint-disable-next-line no-underscore-dangle -- Its name in Node.
  module._compile(await readFile(file, 'utf8'), file);
  return module.exports as Library;
}

/** Writing of a tokenizer's bytes; undefined for one that the library can't read. */
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
function textsIn(tokenizerJson: object): readonly string[] {
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
