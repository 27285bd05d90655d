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
  ) {}

  static async of(
    file: string,
    tokenizerJson: object,
    endTokens: readonly number[],
  ): Promise<GrammarEngine> {
    const library = await loadLibrary(file);
    const texts = textsIn(tokenizerJson);
    const vocabulary = await library.TokenizerInfo.createTokenizerInfo(
      texts,
      vocabularyTypeOf(tokenizerJson)!,
      false,
      texts.length,
      endTokens,
    );
    // Its own cache would keep all grammars.
    const compiler = await library.GrammarCompiler.createGrammarCompiler(vocabulary, false);
    return new GrammarEngine(library, compiler);
  }

  /**
   * @param endTokens may follow where the grammar ends
   * @throws PatternError for a pattern that answers can't be held to
   */
  async open(grammar: Grammar, endTokens: readonly number[]): Promise<Matcher> {
    return this.library.GrammarMatcher.createGrammarMatcher(await this.compile(grammar), endTokens);
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
