import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { describe, expect, it } from '@jest/globals';
import { combinations, combinationsOfKeys } from '../../lib/core/definition/combinations.js';
import { features } from '../../lib/features/features.js';
import { importsOf, type SourceFile, sourceFiles } from '../fixtures/house/source.js';

/**
 * How large the house may be. A commit that needs more raises a ceiling and says why; a commit that
 * makes something smaller lowers it. See CONTRIBUTING.
 */
const CEILINGS = {
  'files of lib': 344,
  'thousand characters of code in lib': 1588.2,
  'files of the core, its features and its Nest module': 136,
  'thousand characters of code in the core': 445.7,
  'thousand characters of code in the core, its features and its Nest module': 669.1,
  'thousand words of comments': 52,
  'names of the doors that are not public': 137,
  'names of the doors that only one extension imports': 95,
  'functions with a name that only forward': 152,
  'options of a definition': 17,
  'rules that refuse combinations of options': 29,
  'type parameters of defineServing': 7,
  'files of a warm call of a model': 32,
  'functions of a warm call of a model': 275,
  'files of a warm call over TCP, both ends': 59,
  'unit specs that import what is inside core, features or nest': 59,
  'comments in 100 that begin without noun and verb': 0.1,
  '"the X of the Y" in 1,000 words': 2.5,
  '"of which" in 1,000 words': 0.42,
  '"that of" in 1,000 words': 0.3,
  '"beside", "at once", "goes on", ", else" in 1,000 words': 0.3,
} as const;

/** Each extension's ceiling, in thousand characters of code. */
const EXTENSIONS: Readonly<Record<string, number>> = {
  board: 24.4,
  cli: 48.8,
  distribution: 226.5,
  'http-tensors': 2.9,
  hub: 27.3,
  'inference-protocol': 142.9,
  openai: 79.4,
  opentelemetry: 15.3,
  tasks: 292.9,
  terminus: 1.5,
  testing: 13.5,
};

/**
 * How many files of the core and of nest name an optional capability. Files that define it don't
 * count, nor do words that mean something else.
 */
const CAPABILITIES: Readonly<Record<string, Capability>> = {
  sessions: {
    words: /session/i,
    not: /InferenceSession|SessionOptions|SessionProviders|onnx-session|createSession/,
    ceiling: 8,
  },
  sequences: {
    words: /sequence/i,
    not: /lazy sequence|sequence without batches|sequenceType|sequences and maps/i,
    ceiling: 1,
  },
  'latency targets': {
    words: /latency-?target|planned|run-?times/i,
    own: /run-times/,
    ceiling: 10,
  },
  tenants: { words: /tenant/i, ceiling: 13 },
  'canary and shadow': { words: /canary|shadow/i, ceiling: 0 },
  'similar rows': { words: /similar/i, own: /similar-rows/, ceiling: 3 },
  deduplication: { words: /dedup|singleFlight|shared-?calls/i, not: /npm dedupe/, ceiling: 2 },
  'inline runs': { words: /inline/i, ceiling: 9 },
  'streams and hooks': {
    words: /stream|hook/i,
    not: /^(?:Readable|Writable|Transform)Stream|ShutdownHooks|^node:/,
    own: /\/streaming\/|stream-request/,
    ceiling: 27,
  },
};

const ceilings = Object.keys(CEILINGS) as (keyof typeof CEILINGS)[];

interface Capability {
  readonly words: RegExp;
  readonly not?: RegExp;
  readonly own?: RegExp;
  readonly ceiling: number;
}

const VERBS =
  /\b(?:is|are|was|were|be|has|have|had|does|do|can|cannot|may|might|must|will|would|\w+(?:ed|[^aious]s)|[gm]ets?|give|run|lie|take|need|share|come)\b/;

describe('The house', () => {
  const all = sourceFiles();
  const measured = measure(all);

  it('has a ceiling for each extension', () => {
    const found = new Set(all.flatMap(({ path }) => /^extensions\/([^/]+)/.exec(path)?.[1] ?? []));
    expect([...found].toSorted()).toEqual(Object.keys(EXTENSIONS));
  });

  it.each(Object.entries(EXTENSIONS))(
    'has in the extension %s at most %d thousand characters of code',
    (name, ceiling) => {
      const files = all.filter(({ path }) => path.startsWith(`extensions/${name}/`));
      expect(charactersOf(files) / 1000).toBeLessThanOrEqual(ceiling);
    },
  );

  it.each(ceilings.map((what) => [CEILINGS[what], what] as const))(
    'has at most %d %s',
    (ceiling, what) => {
      expect(measured[what]).toBeLessThanOrEqual(ceiling);
    },
  );

  it.each(Object.entries(CAPABILITIES))(
    'names %s in few files outside their own',
    (_name, { words, not, own, ceiling }) => {
      const naming = all
        .filter(({ path }) => /^(?:core|nest)\//.test(path) && !own?.test(path))
        .filter((file) => file.words.some((word) => words.test(word) && !not?.test(word)));
      expect(naming.map(({ path }) => path).slice(ceiling)).toEqual([]);
    },
  );
});

function measure(files: readonly SourceFile[]): Record<keyof typeof CEILINGS, number> {
  const core = files.filter(({ path }) => /^(core|features|nest)\//.test(path));
  const call = warmCalls();
  const comments = files.map((file) => file.comments).join('\n');
  const words = comments.match(/[A-Za-z'’-]{2,}/g)!.length;
  const rate = (pattern: RegExp): number => (1000 * (comments.match(pattern) ?? []).length) / words;
  return {
    'files of lib': files.length,
    'thousand characters of code in lib': charactersOf(files) / 1000,
    'files of the core, its features and its Nest module': core.length,
    'thousand characters of code in the core':
      charactersOf(core.filter(({ path }) => path.startsWith('core/'))) / 1000,
    'thousand characters of code in the core, its features and its Nest module':
      charactersOf(core) / 1000,
    'thousand words of comments': words / 1000,
    'names of the doors that are not public': privateNames(files),
    'names of the doors that only one extension imports': namesOfOneExtension(files),
    'functions with a name that only forward': files.reduce(
      (sum, { tree }) => sum + forwarders(tree),
      0,
    ),
    'options of a definition': optionsOfDefinitions(),
    'rules that refuse combinations of options':
      combinations.length + features.combinations.length + combinationsOfKeys.length,
    'type parameters of defineServing': typeParameters(files),
    'files of a warm call of a model': call.ofModel.files,
    'functions of a warm call of a model': call.ofModel.functions,
    'files of a warm call over TCP, both ends': call.overTcp.files,
    'unit specs that import what is inside core, features or nest': specsOfInternals(),
    'comments in 100 that begin without noun and verb': fragments(files),
    '"the X of the Y" in 1,000 words': rate(/\bthe [\w`-]+ of (?:the|a|an|its|their|all|each)\b/gi),
    '"of which" in 1,000 words': rate(/\b(?:of|to|for|from|in|by|with|at|on) (?:which|whom)\b/gi),
    '"that of" in 1,000 words': rate(/\b(?:that|those) of\b/gi),
    '"beside", "at once", "goes on", ", else" in 1,000 words': rate(
      /\bbeside\b|\bat once\b|\bgo(?:es)? on\b|, else\b/gi,
    ),
  };
}

/** A guess: the first word promises no noun, and no word of the sentence looks like a verb. */
function fragments(files: readonly SourceFile[]): number {
  const openings = files.flatMap((file) => file.openings);
  const found = openings
    .filter((opening) => /^(?:Of|Those|As|By|In|For|None|What|Where|Whether)\b/.test(opening))
    .filter(
      (opening) => !/n't\b|\b(?:we|you|they|it) [a-z]/i.test(opening) && !VERBS.test(opening),
    );
  return (100 * found.length) / openings.length;
}

function charactersOf(files: readonly SourceFile[]): number {
  return files.reduce((sum, { characters }) => sum + characters, 0);
}

function privateNames(files: readonly SourceFile[]): number {
  const namesIn = (barrels: RegExp): readonly string[] =>
    files
      .filter(({ path }) => barrels.test(path))
      .flatMap((file) => importsOf(file).map((each) => each.join()));
  const published = new Set(namesIn(/^index\.ts$/));
  return namesIn(/^doors\//).filter((name) => !published.has(name)).length;
}

function namesOfOneExtension(files: readonly SourceFile[]): number {
  const users = new Map<string, Set<string>>();
  for (const file of files) {
    const [, extension] = /^extensions\/([^/]+)/.exec(file.path) ?? [];
    const doors = importsOf(file).filter(([from]) => extension && from.startsWith('doors/'));
    for (const [, name] of doors) {
      users.set(name, (users.get(name) ?? new Set()).add(extension!));
    }
  }
  return [...users.values()].filter(({ size }) => size === 1).length;
}

/** Counts functions whose only statement is a call with just their parameters, in their order. */
function forwarders(tree: ts.SourceFile): number {
  let found = 0;
  const visit = (node: ts.Node): void => {
    found += isForwarder(node, tree) ? 1 : 0;
    ts.forEachChild(node, visit);
  };
  visit(tree);
  return found;
}

function isForwarder(node: ts.Node, tree: ts.SourceFile): boolean {
  const isNamed = ts.isFunctionDeclaration(node) || ts.isMethodDeclaration(node);
  const isAssigned =
    ts.isArrowFunction(node) &&
    (ts.isVariableDeclaration(node.parent) ||
      ts.isPropertyDeclaration(node.parent) ||
      ts.isPropertyAssignment(node.parent));
  if (!isNamed && !isAssigned && !ts.isAccessor(node)) {
    return false;
  }
  const { body, parameters } = node;
  const [only, other] = body && ts.isBlock(body) ? body.statements : [body];
  let call: ts.Node | undefined = other ? undefined : only;
  while (call && (isWrapper(call) || ts.isReturnStatement(call))) {
    call = call.expression;
  }
  return (
    call !== undefined &&
    ts.isCallExpression(call) &&
    isPath(call.expression) &&
    call.arguments.map((each) => each.getText(tree)).join() ===
      parameters
        .map(({ dotDotDotToken, name }) => (dotDotDotToken ? '...' : '') + name.getText(tree))
        .join()
  );
}

function isWrapper(
  node: ts.Node,
): node is
  | ts.ExpressionStatement
  | ts.AwaitExpression
  | ts.VoidExpression
  | ts.ParenthesizedExpression
  | ts.AsExpression {
  return (
    ts.isExpressionStatement(node) ||
    ts.isAwaitExpression(node) ||
    ts.isVoidExpression(node) ||
    ts.isParenthesizedExpression(node) ||
    ts.isAsExpression(node)
  );
}

/** True for `a`, `this.a.b` and `a?.b!.c`: a way to a function that calls nothing itself. */
function isPath(node: ts.Node): boolean {
  return ts.isPropertyAccessExpression(node) || ts.isNonNullExpression(node)
    ? isPath(node.expression)
    : ts.isIdentifier(node) ||
        [ts.SyntaxKind.ThisKeyword, ts.SyntaxKind.SuperKeyword].includes(node.kind);
}

/** The rows of the tables of the manual: a test holds these to the types. */
function optionsOfDefinitions(): number {
  const page = readFileSync(
    fileURLToPath(new URL('../../docs/options.md', import.meta.url)),
    'utf8',
  );
  const [, table] = page.split('<!-- options: ServingDefinition -->');
  return table!.split('<!-- end -->')[0]!.match(/^\| `\w+`/gm)!.length;
}

function typeParameters(files: readonly SourceFile[]): number {
  const { tree } = files.find(({ path }) => path === 'core/definition/serving-definition.ts')!;
  const [, parameters] = /export function defineServing<([\s\S]*?)>\(/.exec(tree.text)!;
  return parameters!.match(/^ {2}\w/gm)!.length;
}

/** A promise of BEHAVIOURS.md is tested by what the package exports; an algorithm may be by its own interface. */
function specsOfInternals(): number {
  const folder = fileURLToPath(new URL('.', import.meta.url));
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.spec.ts'))
    .filter((path) =>
      /'[./]+lib\/(?:core|features|nest)\//.test(readFileSync(`${folder}/${path}`, 'utf8')),
    ).length;
}

interface Walk {
  readonly files: number;
  readonly functions: number;
}

/** A call in an application of its own, which imports the built package. */
function warmCalls(): { readonly ofModel: Walk; readonly overTcp: Walk } {
  const script = fileURLToPath(new URL('../fixtures/house/warm-call.mjs', import.meta.url));
  const model = fileURLToPath(new URL('../../sample/01-digits/model/digits.onnx', import.meta.url));
  const output = execFileSync(process.execPath, [script, JSON.stringify({ model })], {
    encoding: 'utf8',
  });
  return JSON.parse(output) as { ofModel: Walk; overTcp: Walk };
}
