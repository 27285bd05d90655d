import type { CharRange, CharSet, DFA as Automaton, Element, NoParent } from 'refa';
import { formatValue, messageOf } from '../../doors/text.js';
import { type Grammar, GrammarError, mapTexts } from './answer-form.js';
import { PATTERN_RULE, type PatternTexts } from './json-grammar.js';

type Library = typeof import('refa');

/** Limit of a pattern's parts, and of its automaton's states: it takes a quarter of a second. */
const MOST_PARTS = 1000;
/** Different patterns of a grammar. */
const MOST_PATTERNS = 32;
/** States, of all patterns together, with many next characters: each takes up to 30 ms to compile. */
const MOST_BROAD = 128;
const LONGEST_RULES = 2 ** 19;

const RULE = new RegExp(`^(\\S+) ::= ${PATTERN_RULE}(.*)$`, 'gm');

/** A pattern that answers can't be held to. */
class PatternError extends GrammarError {
  constructor(place: string, what: string) {
    super(`was given a JSON schema whose ${place} ${what}`);
  }
}

/**
 * Grammar with the rules of its patterns.
 *
 * @throws PatternError for a pattern that answers can't be held to
 */
export async function withPatterns(grammar: Grammar): Promise<Grammar> {
  if (!JSON.stringify(grammar).includes(PATTERN_RULE)) {
    return grammar;
  }
  const library = await loadLibrary();
  const sums = { known: new Map<string, readonly TextState[]>(), broad: 0, length: 0 };
  return mapTexts(grammar, (text) =>
    text.replaceAll(RULE, (_, name: string, texts: string) =>
      rulesOf(library, name, JSON.parse(texts) as PatternTexts, sums),
    ),
  );
}

/** Undefined without it. */
async function loadLibrary(): Promise<Library | undefined> {
  try {
    return await import('refa');
  } catch {
    return undefined;
  }
}

/** Sums over a grammar's patterns. */
interface Sums {
  readonly known: Map<string, readonly TextState[]>;
  broad: number;
  length: number;
}

function rulesOf(
  library: Library | undefined,
  name: string,
  { place, pattern, least, most }: PatternTexts,
  sums: Sums,
): string {
  if (!library) {
    throw new PatternError(
      place,
      'is a keyword that needs the package refa; install it (npm install refa), or leave the keyword out',
    );
  }
  const key = JSON.stringify([pattern, least, most]);
  let states: readonly TextState[];
  try {
    states = sums.known.get(key) ?? statesOf(library, pattern, least, most);
  } catch (cause) {
    const why = messageOf(cause);
    throw new PatternError(
      place,
      `is ${formatValue(pattern)}, which answers cannot be held to: ${why}`,
    );
  }
  if (states.length === 0) {
    throw new PatternError(
      place,
      `is ${formatValue(pattern)}, and no text fits it and the lengths`,
    );
  }
  const rules = states.map(({ isEnd, steps }, i) => {
    const ways = steps.map(([characters, next]) => `${characters} ${name}-${next}`);
    return `${name}-${i} ::= ${[...(isEnd ? [END] : []), ...ways].join(' | ')}`;
  });
  sums.known.set(key, states);
  sums.broad += states.filter(({ isBroad }) => isBroad).length;
  sums.length += rules.reduce((sum, rule) => sum + rule.length, 0);
  const isTooMuch = sums.known.size > MOST_PATTERNS || sums.length > LONGEST_RULES;
  if (isTooMuch || sums.broad > MOST_BROAD) {
    throw new PatternError(place, 'makes the patterns of all strings too large; leave some out');
  }
  return rules.join('\n');
}

/** Closing quote. */
const END = String.raw`"\""`;

/** State of a pattern's automaton. */
export interface TextState {
  /** True if a text may end here. */
  readonly isEnd: boolean;
  /** Next characters and the state behind them. */
  readonly steps: readonly (readonly [characters: string, state: number])[];
  /** True if many characters may follow. */
  readonly isBroad: boolean;
}

/**
 * States of the texts that the pattern matches somewhere, as JSON Schema says, with a length between
 * both bounds; the first state begins. Of control characters they have those with a short escape.
 * Empty if there is no such text.
 *
 * @throws Error for a pattern that is too large, or that no finite automaton follows
 */
export function statesOf(
  library: Library,
  pattern: string,
  least: number,
  most: number | undefined,
): readonly TextState[] {
  const { DFA } = library;
  const flags = isUnicode(pattern) ? 'u' : '';
  let whole = automatonOf(library, pattern, flags);
  whole.minimize();
  if (least > 0 || most !== undefined) {
    const ofLength = automatonOf(library, `^[^]{${least},${most ?? ''}}$`, flags);
    whole = DFA.fromIntersection(whole, ofLength, new DFA.LimitedNodeFactory(MOST_PARTS));
    whole.minimize();
  }
  return statesIn(whole);
}

/** JSON Schema reads patterns with Unicode; some are valid only without. */
function isUnicode(pattern: string): boolean {
  try {
    return new RegExp(pattern, 'u').unicode;
  } catch {
    return false;
  }
}

function automatonOf(
  { JS, NFA, DFA, CharSet, Transformers, transform }: Library,
  source: string,
  flags: string,
): Automaton {
  const { expression, maxCharacter } = JS.Parser.fromLiteral({ source, flags }).parse();
  const characters = CharSet.all(maxCharacter);
  // Without an anchor, the text goes on before and behind the match.
  const alternatives = expression.alternatives.map(({ elements }) => {
    const begins = isAnchor(elements[0], 'behind');
    const ends = isAnchor(elements.at(-1), 'ahead');
    const parts = [
      ...(begins ? [] : [anyOf(characters)]),
      ...elements.slice(begins ? 1 : 0, ends ? -1 : undefined),
      ...(ends ? [] : [anyOf(characters)]),
    ];
    return { type: 'Concatenation', elements: parts } as const;
  });
  const whole = transform(Transformers.applyAssertions(), { type: 'Expression', alternatives });
  const nfa = NFA.fromRegex(whole, { maxCharacter }, {}, new NFA.LimitedNodeFactory(MOST_PARTS));
  return DFA.fromFA(nfa, new DFA.LimitedNodeFactory(MOST_PARTS));
}

function anyOf(characters: CharSet): NoParent<Element> {
  const one = { type: 'CharacterClass', characters } as const;
  return {
    type: 'Quantifier',
    min: 0,
    max: Infinity,
    lazy: false,
    alternatives: [{ type: 'Concatenation', elements: [one] }],
  };
}

/** True for `^` and `$`, which the library reads as a look at any character. */
function isAnchor(element: Element | undefined, kind: 'ahead' | 'behind'): boolean {
  if (element?.type !== 'Assertion' || element.kind !== kind || !element.negate) {
    return false;
  }
  const [only, ...others] = element.alternatives;
  const [first, ...more] = only?.elements ?? [];
  const isAlone = others.length === 0 && more.length === 0;
  return isAlone && first?.type === 'CharacterClass' && first.characters.isAll;
}

type State = Automaton['initial'];

/**
 * States that are not dead ends.
 *
 * @throws Error for characters that a grammar can't tell apart
 */
function statesIn({ initial, finals }: Automaton): readonly TextState[] {
  const steps = new Map<State, ReadonlyMap<State, Characters>>();
  const open = [initial];
  for (let state = open.pop(); state; state = open.pop()) {
    if (!steps.has(state)) {
      steps.set(state, stepsFrom(state));
      open.push(...steps.get(state)!.keys());
    }
  }
  const good = new Set([...steps.keys()].filter((state) => finals.has(state)));
  let count: number;
  do {
    count = good.size;
    steps.forEach((own, state) => {
      if ([...own.keys()].some((next) => good.has(next))) {
        good.add(state);
      }
    });
  } while (good.size > count);
  if (!good.has(initial)) {
    return [];
  }
  const order = [...new Set([initial, ...good])];
  const numbers = new Map(order.map((state, number) => [state, number]));
  return order.map((state) => {
    const own = [...steps.get(state)!].filter(([next]) => good.has(next));
    return {
      isEnd: finals.has(state),
      isBroad: own.some(([, { isBroad }]) => isBroad),
      steps: own.map(([next, { text }]) => [text, numbers.get(next)!] as const),
    };
  });
}

function stepsFrom({ out }: State): ReadonlyMap<State, Characters> {
  const ranges = new Map<State, CharRange[]>();
  out.forEach((next, range) => ranges.set(next, [...(ranges.get(next) ?? []), range]));
  const steps = [...ranges].map(([next, own]) => [next, charactersIn(own)] as const);
  return new Map(steps.filter(([, { text }]) => text !== ''));
}

/** Characters as a grammar writes them within JSON. */
interface Characters {
  /** Empty without any. */
  readonly text: string;
  readonly isBroad: boolean;
}

/** Characters that JSON escapes in two characters, with their escapes. */
const ESCAPES = Array.from('\b\f\n\r\t"\\').map(
  (character) => [character.codePointAt(0)!, JSON.stringify(character).slice(1, -1)] as const,
);
/** ASCII without an escape. */
const PLAIN = [
  [0x20, 0x21],
  [0x23, 0x5b],
  [0x5d, 0x7f],
] as const;
/** Characters beyond ASCII; halves of pairs are none. */
const BEYOND = [
  [0x80, 0xd7ff],
  [0xe000, 0x10ffff],
] as const;
/** Each of these characters is an alternative of its own. */
const MOST_BEYOND = 512;

/**
 * Writes single characters beyond ASCII, or all of them: the library's classes have no ranges there.
 * All but some spaces count as all.
 *
 * @throws Error for other characters beyond ASCII
 */
function charactersIn(ranges: readonly CharRange[]): Characters {
  const has = (code: number): boolean => ranges.some(({ min, max }) => min <= code && code <= max);
  const within = (parts: typeof PLAIN | typeof BEYOND) =>
    ranges.flatMap(({ min, max }) =>
      parts
        .map(([from, to]) => ({ min: Math.max(from, min), max: Math.min(to, max) }))
        .filter((part) => part.min <= part.max),
    );
  const plain = within(PLAIN).map(({ min, max }) => `${codeOf(min)}-${codeOf(max)}`);
  const beyond = within(BEYOND);
  const count = beyond.reduce((sum, { min, max }) => sum + max - min + 1, 0);
  const missing = SPACES.filter((code) => !has(code)).length;
  const isAll = ALL.includes(count + missing);
  if (!isAll && count > MOST_BEYOND) {
    throw new Error(
      `beyond ASCII a place may have all characters, or at most ${MOST_BEYOND}, and one has ${count}`,
    );
  }
  const singles = isAll
    ? []
    : beyond.flatMap(({ min, max }) =>
        Array.from({ length: max - min + 1 }, (_, i) => String.fromCodePoint(min + i)),
      );
  const escapes = ESCAPES.filter(([code]) => has(code)).map(([, escape]) => escape);
  const parts = [
    ...(plain.length > 0 ? [`[${plain.join('')}]`] : []),
    ...(isAll ? [String.raw`[^\x00-\x7f]`] : []),
    ...[...escapes, ...singles].map((text) => JSON.stringify(text)),
  ];
  return { text: parts.length > 1 ? `(${parts.join(' | ')})` : parts.join(''), isBroad: isAll };
}

/** Spaces and ends of lines beyond ASCII, which `\s` and `.` know. */
const SPACES = Array.from({ length: 0xff80 }, (_, i) => 0x80 + i).filter((code) =>
  /\s/.test(String.fromCodePoint(code)),
);
/** Counts of all characters beyond ASCII, with and without Unicode. */
const ALL = [0x10ffff - 0x7f - 0x800, 0xffff - 0x7f - 0x800];

function codeOf(code: number): string {
  return String.raw`\x` + code.toString(16);
}
