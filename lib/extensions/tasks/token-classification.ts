import { InvalidInputError, type ServingDefinition, ServingLoadError } from '../../index.js';
import { isRecord, oneOf, type Rules } from '../../doors/options.js';
import { formatValue, messageOf } from '../../doors/text.js';
import { withoutSpecial } from './added-tokens.js';
import { checkLabels } from './labels.js';
import {
  checkWidth,
  finite,
  floatsOf,
  labelOf,
  type Labels,
  labelsIn,
  outputOf,
  type Outputs,
  readOutput,
  softmax,
} from './outputs.js';
import { isText, rowOf, type TextFacts, TextModel, type TextTaskOptions } from './text-model.js';
import type { TextFiles, TextLimits, Tokens } from './text-tokenizer.js';

/** Labelled part of a text. */
export interface TextEntity {
  /** Label in config.json, without `B-` or `I-` if tokens are joined. */
  readonly label: string;
  /** Mean of its tokens or words, from 0 to 1. */
  readonly score: number;
  /** Text of the part. */
  readonly text: string;
  /** Beginning, in UTF-16 units: `text.slice(start, end)`. */
  readonly start: number;
  /** End, in UTF-16 units. */
  readonly end: number;
}

/**
 * Ways to join tokens to entities, named as in Python's pipeline. `none`: each token is one.
 * `simple`: neighbours with the same label are one. The others first give a word's tokens one
 * label: by the `first` token, the `average` scores, or the highest score (`max`).
 */
export type EntityAggregation = 'none' | 'simple' | 'first' | 'average' | 'max';

/** Options of {@link tokenClassification} and of any serving. */
export interface TokenClassificationOptions extends TextTaskOptions<string, readonly TextEntity[]> {
  /**
   * Joins tokens to entities. Words need a tokenizer with a prefix within words, such as BERT's
   * `##`; otherwise a word ends at a space.
   *
   * @default 'simple'
   */
  readonly aggregation?: EntityAggregation;
  /**
   * Labels that the reply leaves out.
   *
   * @default ['O']
   */
  readonly ignoredLabels?: readonly string[];
}

const AGGREGATIONS: readonly EntityAggregation[] = ['none', 'simple', 'first', 'average', 'max'];

const rules: Rules = {
  aggregation: {
    ...oneOf(...AGGREGATIONS),
    allowed: AGGREGATIONS.map(formatValue).join(', '),
  },
  ignoredLabels: {
    check: (value) => Array.isArray(value) && value.every((each) => typeof each === 'string'),
    allowed: 'a list of labels',
  },
};

/**
 * Serving that finds entities of texts, such as names, by a model for token classification.
 *
 * Needs `tokenizers`, which gives each token's place.
 *
 * @throws InvalidServingError for an invalid option
 */
export function tokenClassification(
  options: TokenClassificationOptions,
): ServingDefinition<string, readonly TextEntity[]> {
  const { aggregation = 'simple', ignoredLabels = ['O'] } = options;
  const own: Tagger = new TextModel('tokenClassification', options, rules, {
    tokenizer: locatingTokenizer,
    facts: async ({ repository, config }) => labelsIn(repository.name, config),
    output(outputs, { own: labels }) {
      const output = readOutput(own.owner, outputs, ['logits'], 3);
      checkLabels(own.owner, outputs, labels, output.shape.at(-1));
      return output;
    },
  });
  const definition: Definition = {
    warmUp: ['a text to warm up'],
    ...own.definition,
    async preprocess(text, { signature, facts: { tokenizer } }) {
      if (!isText(text)) {
        throw new InvalidInputError(
          `${own.owner} takes a text that is not empty, and was given ${formatValue(text)}`,
        );
      }
      const tokens = await tokenizer.encode(text);
      return { batch: rowOf(windowsOf(tokens), signature!), info: tokens };
    },
    postprocess(outputs, { info, facts }) {
      const given = finite(own.owner, floatsOf(outputOf(own.owner, outputs, 'logits')));
      const logits = joinedLogits(given, info);
      checkWidth(own.owner, facts.own, logits.length / info.ids.length);
      const tokens = scoredTokens(logits, info);
      return entitiesOf(tokens, facts.own, aggregation)
        .filter(({ label }) => !ignoredLabels.includes(label))
        .map(({ label, score, start, end }) => {
          const [from, to] = [info.unitOf(start), info.unitOf(end)];
          return { label, score, text: info.text.slice(from, to), start: from, end: to };
        });
    },
  };
  return definition;
}

type Tagger = TextModel<string, readonly TextEntity[], Labels, LocatingTokenizer>;

type Definition = ServingDefinition<
  string,
  readonly TextEntity[],
  Outputs,
  LocatedTokens,
  TextFacts<Labels, LocatingTokenizer>
>;

/** Tokens with their places, in code points. */
interface LocatedTokens extends Tokens {
  readonly text: string;
  readonly places: readonly (readonly [start: number, end: number])[];
  /** True for tokens that a tokenizer adds, such as `[CLS]`. */
  readonly isAdded: readonly boolean[];
  /** True for tokens that continue the previous one's word. */
  readonly isWithin: readonly boolean[];
  /** UTF-16 unit at which a code point begins. */
  readonly unitOf: (codePoint: number) => number;
  /** Windows of a long text. */
  readonly windows?: Windows | undefined;
}

interface Windows {
  /** Tokens of the text before each. */
  readonly starts: readonly number[];
  /** Tokens of the text in each. */
  readonly room: number;
  /** Added tokens before and behind each. */
  readonly before: number;
  readonly behind: number;
}

function windowsOf({ ids, types, windows }: LocatedTokens): Tokens {
  if (!windows) {
    return { ids, types };
  }
  const { starts, room, before, behind } = windows;
  const part = (all: readonly number[], start: number): readonly number[] => [
    ...all.slice(0, before),
    ...all.slice(before + start, before + start + room),
    ...all.slice(all.length - behind),
  ];
  const [first, ...more] = starts.map((start) => ({
    ids: part(ids, start),
    types: part(types, start),
  }));
  return { ...first!, more };
}

/** Logits of each token, from the window where most tokens stand around it. */
function joinedLogits(logits: Float32Array, { ids, windows }: LocatedTokens): Float32Array {
  if (!windows) {
    return logits;
  }
  const { starts, room, before, behind } = windows;
  const length = before + room + behind;
  const labels = logits.length / (starts.length * length);
  const all = new Float32Array(ids.length * labels);
  const margins = new Int32Array(ids.length).fill(-1);
  for (const [window, start] of starts.entries()) {
    for (let place = 0; place < room; place++) {
      const token = before + start + place;
      const margin = Math.min(place, room - 1 - place);
      if (margin > margins[token]!) {
        margins[token] = margin;
        const from = (window * length + before + place) * labels;
        all.set(logits.subarray(from, from + labels), token * labels);
      }
    }
  }
  return all;
}

interface Library {
  readonly Tokenizer: { fromString(json: string): NativeTokenizer };
}

interface NativeTokenizer {
  encode(text: string): Promise<NativeEncoding>;
  setTruncation(maxTokens: number): void;
  disableTruncation(): void;
  disablePadding(): void;
}

interface NativeEncoding {
  getIds(): number[];
  getTypeIds(): number[];
  getTokens(): string[];
  getOffsets(): [start: number, end: number][];
  getSpecialTokensMask(): number[];
}

/** Tokenizes as Python does, with each token's place, in its own threads. */
class LocatingTokenizer {
  constructor(
    private readonly tokenizer: NativeTokenizer,
    private readonly limits: TextLimits,
    /** Prefix of tokens within a word, possibly empty. */
    private readonly prefix: string,
    private readonly unknownToken: string | undefined,
  ) {
    tokenizer.disablePadding();
    tokenizer.disableTruncation();
    if (limits.isCut && limits.cutsBeginning) {
      throw new Error(
        "it cuts the beginning of long texts (truncation_side); give tooLong: 'refuse'",
      );
    }
    if (limits.isCut) {
      tokenizer.setTruncation(limits.maxTokens);
    }
  }

  /**
   * @throws InvalidInputError for special tokens
   * @throws RequestTooLargeError for too many tokens, unless the text is cut
   */
  async encode(given: string): Promise<LocatedTokens> {
    const text = this.limits.readable(given);
    const encoding = await this.tokenizer.encode(text);
    const ids = encoding.getIds();
    const isAdded = encoding.getSpecialTokensMask().map((mask) => mask === 1);
    const windows = this.windowsIn(isAdded);
    if (!windows) {
      this.limits.checkTokens(ids.length);
    }
    this.limits.checkReadable(given, text, ids.length);
    const places = encoding.getOffsets();
    const unitOf = unitsOf(text);
    return {
      ids,
      types: encoding.getTypeIds(),
      text,
      places,
      isAdded,
      windows,
      isWithin: encoding
        .getTokens()
        .map((token, i) => this.isWithin(token, places[i]!, text, unitOf)),
      unitOf,
    };
  }

  /** @throws RequestTooLargeError for too many windows */
  private windowsIn(isAdded: readonly boolean[]): Windows | undefined {
    const { overlap, maxTokens } = this.limits;
    if (overlap === undefined || isAdded.length <= maxTokens) {
      return undefined;
    }
    const before = isAdded.indexOf(false);
    const behind = isAdded.length - 1 - isAdded.lastIndexOf(false);
    const room = maxTokens - before - behind;
    const starts = this.limits.windowsOf(isAdded.length - before - behind, room);
    return { starts, room, before, behind };
  }

  /** Decides as Python's pipeline does. */
  private isWithin(
    token: string,
    [start, end]: readonly [start: number, end: number],
    text: string,
    unitOf: LocatedTokens['unitOf'],
  ): boolean {
    if (token === this.unknownToken) {
      return false;
    }
    return this.prefix === ''
      ? start > 0 && !text.slice(unitOf(start - 1), unitOf(start + 1)).includes(' ')
      : Array.from(token).length !== end - start;
  }
}

async function locatingTokenizer(
  { repository: { name }, tokenizerJson, ofTokenizer }: TextFiles,
  limits: TextLimits,
): Promise<LocatingTokenizer> {
  const { Tokenizer } = await loadLibrary();
  const { model } = tokenizerJson;
  const { continuing_subword_prefix: prefix, unk_token: unknown } = isRecord(model) ? model : {};
  const named = ofTokenizer['unk_token'] ?? unknown;
  try {
    return new LocatingTokenizer(
      Tokenizer.fromString(
        JSON.stringify(limits.limits.areText ? withoutSpecial(tokenizerJson) : tokenizerJson),
      ),
      limits,
      typeof prefix === 'string' ? prefix : '',
      String(isRecord(named) ? named['content'] : named),
    );
  } catch (cause) {
    throw new ServingLoadError(`The tokenizer of ${name} cannot be used: ${messageOf(cause)}`, {
      cause,
    });
  }
}

async function loadLibrary(): Promise<Library> {
  try {
    const library = (await import('tokenizers')) as unknown as Library & { default?: Library };
    return library.default ?? library;
  } catch (cause) {
    throw new ServingLoadError(
      'tokenClassification needs the package tokenizers, which cannot be loaded; install it: npm ' +
        'install tokenizers',
      { cause },
    );
  }
}

/** Code points above U+FFFF, which the tokenizer counts, are two units in JavaScript. */
function unitsOf(text: string): (codePoint: number) => number {
  if (!/[\ud800-\udfff]/.test(text)) {
    return (codePoint) => codePoint;
  }
  const units = [0];
  for (const each of text) {
    units.push(units.at(-1)! + each.length);
  }
  return (codePoint) => units[codePoint]!;
}

/** Token of the text itself, with each label's probability. */
interface ScoredToken {
  readonly scores: readonly number[];
  readonly start: number;
  readonly end: number;
  readonly isWithin: boolean;
}

/** Labelled part of a text; places in code points. */
interface Entity {
  readonly label: string;
  readonly score: number;
  readonly start: number;
  readonly end: number;
}

function scoredTokens(logits: Float32Array, tokens: LocatedTokens): ScoredToken[] {
  const { places, isAdded, isWithin } = tokens;
  const labels = logits.length / places.length;
  const scored = places.map(([start, end], i) => ({
    scores: softmax(Array.from(logits.subarray(i * labels, (i + 1) * labels))),
    start,
    end,
    isWithin: isWithin[i]!,
  }));
  return scored.filter((_, i) => !isAdded[i]);
}

/**
 * Follows Python's transformers:
 * https://github.com/huggingface/transformers/blob/main/src/transformers/pipelines/token_classification.py
 */
function entitiesOf(
  tokens: readonly ScoredToken[],
  labels: Labels,
  aggregation: EntityAggregation,
): readonly Entity[] {
  const labelled = ({ scores, start, end }: ScoredToken): Entity => {
    const score = Math.max(...scores);
    return { label: labelOf(labels, scores.indexOf(score)), score, start, end };
  };
  if (aggregation === 'none') {
    return tokens.map(labelled);
  }
  const parts =
    aggregation === 'simple' ? tokens : wordsIn(tokens).map((word) => merged(word, aggregation));
  return joined(parts.map(labelled));
}

function wordsIn(tokens: readonly ScoredToken[]): ScoredToken[][] {
  const words: ScoredToken[][] = [];
  for (const token of tokens) {
    if (token.isWithin && words.length > 0) {
      words.at(-1)!.push(token);
    } else {
      words.push([token]);
    }
  }
  return words;
}

function merged(
  word: readonly ScoredToken[],
  aggregation: 'first' | 'average' | 'max',
): ScoredToken {
  const [first] = word;
  const { end } = word.at(-1)!;
  if (aggregation === 'average') {
    const sums = first!.scores.map((_, i) => word.reduce((sum, { scores }) => sum + scores[i]!, 0));
    return { ...first!, end, scores: sums.map((sum) => sum / word.length) };
  }
  const best = word.reduce((one, other) =>
    Math.max(...other.scores) > Math.max(...one.scores) ? other : one,
  );
  return { ...first!, end, scores: (aggregation === 'first' ? first! : best).scores };
}

/** Joins neighbours of one kind to an entity; `B-` begins another. */
function joined(parts: readonly Entity[]): Entity[] {
  const groups: Entity[][] = [];
  for (const part of parts) {
    const previous = groups.at(-1);
    if (
      previous &&
      !part.label.startsWith('B-') &&
      kindOf(part.label) === kindOf(previous.at(-1)!.label)
    ) {
      previous.push(part);
    } else {
      groups.push([part]);
    }
  }
  return groups.map((group) => ({
    label: kindOf(group[0]!.label),
    score: group.reduce((sum, { score }) => sum + score, 0) / group.length,
    start: group[0]!.start,
    end: group.at(-1)!.end,
  }));
}

function kindOf(label: string): string {
  return label.replace(/^[BI]-/, '');
}
