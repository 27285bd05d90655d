import { readFile } from 'node:fs/promises';
import { createRequire, Module } from 'node:module';
import type { Grammar } from './answer-form.js';
import type { Length } from './json-grammar.js';
import { withPatterns } from './text-patterns.js';
import {
  LengthCounter,
  marksOf,
  StringLengths,
  textsIn,
  vocabularyTypeOf,
  type VocabularyType,
  WholeCharacters,
  withLengths,
} from './token-texts.js';

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

interface CompiledForm {
  readonly compiled: Compiled;
  readonly lengths: readonly Length[];
}

/** Place in a grammar, behind an answer's tokens. */
export interface Matcher {
  /** False for a token that the grammar forbids. */
  acceptToken(token: number): boolean;
  /** A bit for each token, from the lowest of each number on: 1 allows it. */
  getNextTokenBitmask(): Promise<Int32Array>;
  dispose(): void;
}

/** Compiled grammars that stay; one unused for longest goes first. */
const MOST_COMPILED = 64;

/** Runs in the grammars' thread. */
export class GrammarEngine {
  private readonly compiled = new Map<string, CompiledForm>();
  private readonly characters: WholeCharacters;
  private lengths: StringLengths | undefined;

  private constructor(
    private readonly library: Library,
    private readonly compiler: Compiler,
    private readonly texts: readonly string[],
    private readonly type: VocabularyType,
  ) {
    this.characters = new WholeCharacters(texts, type);
  }

  static async of(
    file: string,
    tokenizerJson: object,
    endTokens: readonly number[],
  ): Promise<GrammarEngine> {
    const library = await loadLibrary(file);
    const type = vocabularyTypeOf(tokenizerJson)!;
    const texts = [...textsIn(tokenizerJson), ...marksOf(type)];
    const vocabulary = await library.TokenizerInfo.createTokenizerInfo(
      texts,
      type,
      false,
      texts.length,
      endTokens,
    );
    // Its own cache would keep all grammars.
    const compiler = await library.GrammarCompiler.createGrammarCompiler(vocabulary, false);
    return new GrammarEngine(library, compiler, texts, type);
  }

  /**
   * @param endTokens may follow where the grammar ends
   * @throws GrammarError for patterns and lengths that answers can't be held to
   */
  async open(grammar: Grammar, endTokens: readonly number[]): Promise<Matcher> {
    const { library, characters } = this;
    const { compiled, lengths } = await this.compile(grammar);
    const matcher = await library.GrammarMatcher.createGrammarMatcher(compiled, endTokens);
    const counter = lengths.length > 0 ? this.counterOf(lengths) : undefined;
    let last: number | undefined;
    return {
      acceptToken(token) {
        last = token;
        counter?.accept(token);
        return matcher.acceptToken(token);
      },
      async getNextTokenBitmask() {
        const mask = characters.among(await matcher.getNextTokenBitmask(), last);
        counter?.narrow(mask);
        return mask;
      },
      dispose: () => matcher.dispose(),
    };
  }

  private counterOf(lengths: readonly Length[]): LengthCounter {
    this.lengths ??= new StringLengths(this.texts, this.type);
    return new LengthCounter(this.lengths, lengths);
  }

  private async compile(grammar: Grammar): Promise<CompiledForm> {
    const { compiled } = this;
    const key = typeof grammar === 'string' ? grammar : JSON.stringify(grammar);
    const known = compiled.get(key);
    const made = known ?? (await this.compiledNow(grammar));
    compiled.delete(key);
    compiled.set(key, made);
    if (compiled.size > MOST_COMPILED) {
      const [[oldest, unused]] = compiled as unknown as [[string, CompiledForm]];
      compiled.delete(oldest);
      unused.compiled.dispose();
    }
    return made;
  }

  private async compiledNow(given: Grammar): Promise<CompiledForm> {
    const { grammar, lengths } = withLengths(await withPatterns(given));
    const compiled = await (typeof grammar === 'string'
      ? this.compiler.compileGrammar(grammar)
      : this.compiler.compileStructuralTag(grammar));
    return { compiled, lengths };
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
