import {
  InvalidInputError,
  InvalidServingError,
  type PreprocessContext,
  RequestTooLargeError,
  type ServingDefinition,
  type TensorSignature,
} from '../../index.js';
import { flag, isRecord, oneOf, type Rules } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { checkLabels, type LabelScore } from './labels.js';
import {
  checkWidth,
  finite,
  floatsOf,
  type Labels,
  labelsIn,
  outputOf,
  type Outputs,
  readOutput,
  sigmoid,
  softmax,
} from './outputs.js';
import { pairsOf, tokenizingPairs } from './pairs.js';
import { isText, type TextFacts, TextModel, type TextTaskOptions } from './text-model.js';

/** Text, and labels of the call's own. */
export interface TextToLabel {
  /** Text, not empty. */
  readonly text: string;
  /** Labels, at least one, such as `['refund', 'delivery']`. */
  readonly labels: readonly string[];
  /**
   * Allows several labels: each score stands by itself. Otherwise they sum up to 1.
   *
   * @default the serving's
   */
  readonly multiLabel?: boolean;
}

/** Options of {@link zeroShotClassification} and of any serving. */
export interface ZeroShotOptions extends TextTaskOptions<TextToLabel, readonly LabelScore[]> {
  /**
   * Hypothesis about a text, with `{}` in the label's place.
   *
   * @default 'This example is {}.'
   */
  readonly template?: string;
  /**
   * Allows several labels: each score stands by itself. Otherwise they sum up to 1.
   *
   * @default false
   */
  readonly multiLabel?: boolean;
}

const PLACE = '{}';

const rules: Rules = {
  tooLong: oneOf('refuse', 'cut'),
  overlap: { check: () => false, allowed: 'nothing here: pairs have no windows' },
  template: {
    check: (value) => typeof value === 'string' && value.split(PLACE).length === 2,
    allowed: `a text with ${PLACE} once, in the label's place`,
  },
  multiLabel: flag,
};

/** Places of the labels that tell if a hypothesis holds. */
interface Facts {
  readonly labels: Labels;
  readonly entails: number;
  readonly contradicts: number;
}

/**
 * Serving that gives texts scores for labels that the call brings, best first, by a model for natural
 * language inference: how well the text entails a hypothesis about each label. Each label is a row,
 * and shares a batch with rows of similar length from other calls.
 *
 * Needs `@huggingface/tokenizers`.
 *
 * @throws InvalidServingError for an invalid option
 */
export function zeroShotClassification(
  options: ZeroShotOptions,
): ServingDefinition<TextToLabel, readonly LabelScore[]> {
  const { template = 'This example is {}.', multiLabel = false } = options;
  const own: ZeroShot = new TextModel('zeroShotClassification', options, rules, {
    tokenizer: (files, limits) =>
      tokenizingPairs(
        files,
        limits,
        'if its scores are poor, use a model with its own form of pairs, such as BERT',
      ),
    facts: async ({ repository: { name }, config }) => factsIn(own.owner, labelsIn(name, config)),
    output: (outputs, { own: facts }) => readLogits(own.owner, outputs, facts.labels),
  });
  const definition: Definition = {
    warmUp: [{ text: 'a text to warm up', labels: ['a label'] }],
    ...own.definition,
    async preprocess(input, context) {
      const { text, labels, multiLabel: areApart = multiLabel } = asked(own.owner, input);
      const hypotheses = labels.map((label) => template.replace(PLACE, () => label));
      await refuseCut(own.owner, context, hypotheses);
      const { batch } = await pairsOf(context, { text }, { labels: hypotheses });
      return { batch, info: { labels, areApart } };
    },
    postprocess(outputs, { info, facts }) {
      const logits = finite(own.owner, floatsOf(outputOf(own.owner, outputs, 'logits')));
      const width = logits.length / info.labels.length;
      checkWidth(own.owner, facts.own.labels, width);
      return scoresOf(logits, width, info, facts.own);
    },
  };
  return definition;
}

type ZeroShot = TextModel<TextToLabel, readonly LabelScore[], Facts>;

type Definition = ServingDefinition<
  TextToLabel,
  readonly LabelScore[],
  Outputs,
  Info,
  TextFacts<Facts>
>;

interface Info {
  readonly labels: readonly string[];
  readonly areApart: boolean;
}

/**
 * Follows Python's transformers:
 * https://github.com/huggingface/transformers/blob/main/src/transformers/pipelines/zero_shot_classification.py
 */
function scoresOf(
  logits: Float32Array,
  width: number,
  { labels, areApart }: Info,
  { entails, contradicts }: Facts,
): readonly LabelScore[] {
  const at = (label: number, kind: number): number => logits[label * width + kind]!;
  // Softmax over two is the sigmoid of their difference.
  const scores =
    areApart || labels.length === 1
      ? labels.map((_, i) => sigmoid(at(i, entails) - at(i, contradicts)))
      : softmax(labels.map((_, i) => at(i, entails)));
  return labels
    .map((label, i) => ({ label, score: scores[i]! }))
    .toSorted((one, other) => other.score - one.score);
}

/** @throws InvalidServingError for labels of another task */
function factsIn(owner: string, labels: Labels): Facts {
  const names = labels.map((name) => name.toLowerCase());
  const entails = names.findIndex((name) => name.startsWith('entail'));
  if (entails < 0) {
    throw new InvalidServingError(
      `${owner} needs a model for natural language inference, whose config.json has a label that begins ` +
        `with "entail"; this one's are ${names.map(formatValue).join(', ') || 'none'}`,
    );
  }
  // Python takes the first or the last, too.
  return { labels, entails, contradicts: entails === 0 ? names.length - 1 : 0 };
}

function readLogits(
  owner: string,
  outputs: readonly TensorSignature[],
  labels: Labels,
): TensorSignature {
  const output = readOutput(owner, outputs, ['logits'], 2);
  checkLabels(owner, outputs, labels, output.shape.at(-1));
  return output;
}

/**
 * A cut leaves out the longer text's end first, which must be the text's own.
 *
 * @throws RequestTooLargeError for a hypothesis that a cut could reach
 */
async function refuseCut(
  owner: string,
  context: PreprocessContext<TextFacts<Facts>>,
  hypotheses: readonly string[],
): Promise<void> {
  const { tokenizer } = context.facts;
  const most = Math.floor(tokenizer.limits.maxTokens / 2);
  for (const [i, hypothesis] of tokenizer.limits.isCut ? hypotheses.entries() : []) {
    const { length } = (await tokenizer.encode(context, hypothesis)).ids;
    if (length > most) {
      throw new RequestTooLargeError(
        `labels[${i}]: ${owner} reads hypotheses of at most ${most} tokens, half of a pair, and this one ` +
          `has ${length}; shorten the label`,
      );
    }
  }
}

function asked(owner: string, input: TextToLabel): TextToLabel {
  const { text, labels, multiLabel, ...others } = isRecord(input) ? input : ({} as TextToLabel);
  const isAsked =
    isText(text) &&
    Array.isArray(labels) &&
    labels.length > 0 &&
    labels.every(isText) &&
    (multiLabel === undefined || typeof multiLabel === 'boolean') &&
    Object.keys(others).length === 0;
  if (!isAsked) {
    throw new InvalidInputError(
      `${owner} takes { text, labels, multiLabel? } with a text and a list of at least one label, none ` +
        `of them empty, and was given ${formatValue(input)}`,
    );
  }
  return { text, labels, ...(multiLabel !== undefined && { multiLabel }) };
}
