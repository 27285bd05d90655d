import { InvalidInputError, type ServingDefinition } from '../../index.js';
import { flag, formatValue, type Rules, whole } from '../../internal.js';
import {
  floatsOf,
  labelOf,
  type Labels,
  labelsIn,
  outputOf,
  type Outputs,
  sigmoid,
  softmax,
} from './outputs.js';
import { isText, TextModel, type TextTaskOptions } from './text-model.js';
import { type TextFiles, textTokenizer } from './text-tokenizer.js';

/** A text, or a pair of texts for a model that compares them. */
export interface TextToClassify {
  /** Not empty. */
  readonly text: string;
  /** The second text of a pair. */
  readonly pair?: string;
}

/** A label of a text. */
export interface LabelScore {
  /** As config.json names it. */
  readonly label: string;
  /** From 0 to 1. */
  readonly score: number;
}

/** The options of {@link textClassification}, beside those of any serving. */
export interface TextClassificationOptions extends TextTaskOptions<
  string | TextToClassify,
  readonly LabelScore[]
> {
  /**
   * How many of the best labels the reply has.
   *
   * @default all
   */
  readonly top?: number;
  /**
   * Whether a text may have several labels: then each score stands by itself, and otherwise they
   * sum up to 1.
   *
   * @default as config.json says; true for a model with one label
   */
  readonly multiLabel?: boolean;
}

/** What the model's files say about its labels. */
interface Facts {
  readonly labels: Labels;
  readonly multiLabel: boolean | undefined;
}

const rules: Rules = { top: whole(1, 2 ** 20), multiLabel: flag };

/**
 * A serving that gives texts labels with scores, the best first, by a model for sequence
 * classification.
 *
 * Needs `@huggingface/tokenizers`.
 *
 * @throws InvalidServingError for an invalid option
 */
export function textClassification(
  options: TextClassificationOptions,
): ServingDefinition<string | TextToClassify, readonly LabelScore[]> {
  const { top, multiLabel } = options;
  const own = new TextModel('textClassification', options, rules, {
    tokenizer: textTokenizer,
    facts: factsIn,
  });
  const definition: ServingDefinition<string | TextToClassify, readonly LabelScore[], Outputs> = {
    warmUp: ['a text to warm up'],
    ...own.definition,
    preprocess(input, { signature }) {
      const { text, pair } = asked(own.owner, input);
      const { tokenizer } = own;
      const [tokens] =
        pair === undefined ? [tokenizer.encode(text)] : tokenizer.encodePairs(text, [pair]);
      return { batch: own.rowOf(tokens!, signature!) };
    },
    postprocess(outputs) {
      const { labels, multiLabel: stated } = own.facts;
      const logits = Array.from(floatsOf(outputOf(own.owner, outputs, 'logits')));
      const isApart = multiLabel ?? stated ?? logits.length === 1;
      const scores = isApart ? logits.map(sigmoid) : softmax(logits);
      return scores
        .map((score, i) => ({ label: labelOf(labels, i), score }))
        .toSorted((one, other) => other.score - one.score)
        .slice(0, top);
    },
  };
  return definition;
}

function asked(owner: string, input: string | TextToClassify): TextToClassify {
  const given: Partial<TextToClassify> | null = typeof input === 'string' ? { text: input } : input;
  if (!isText(given?.text) || !(given.pair === undefined || isText(given.pair))) {
    throw new InvalidInputError(
      `${owner} takes a text that is not empty, or { text, pair? }, and was given ` +
        formatValue(input),
    );
  }
  return { ...given, text: given.text };
}

async function factsIn({ config }: TextFiles): Promise<Facts> {
  const { problem_type: type } = config;
  return {
    labels: labelsIn(config),
    multiLabel: typeof type === 'string' ? type === 'multi_label_classification' : undefined,
  };
}
