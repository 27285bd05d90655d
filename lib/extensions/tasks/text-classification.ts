import { InvalidInputError, type ServingDefinition } from '../../index.js';
import { asTask } from '../../encoding/task-kind.js';
import { formatValue } from '../../doors/text.js';
import {
  bestOf,
  type LabelFacts,
  labelFactsIn,
  type LabelOptions,
  labelRules,
  type LabelScore,
  readLogits,
  scoresOf,
} from './labels.js';
import type { Outputs } from './outputs.js';
import { refuseUnknown } from './task-model.js';
import { isText, rowOf, type TextFacts, TextModel, type TextTaskOptions } from './text-model.js';
import type { Tokens } from './text-tokenizer.js';
import { tokenizing, withTokens } from './tokenizing.js';

/** Text, or a pair for a model that compares texts. */
export interface TextToClassify {
  /** Text, not empty. */
  readonly text: string;
  /** Second text of a pair. */
  readonly pair?: string;
  /**
   * Gives the best labels first, or all of them in the model's own order.
   *
   * @default 'score'
   */
  readonly order?: 'score' | 'model';
}

/** Options of {@link textClassification} and of any serving. */
export interface TextClassificationOptions
  extends TextTaskOptions<string | TextToClassify, readonly LabelScore[]>, LabelOptions {}

/**
 * Serving that gives texts labels with scores, best first, by a model for sequence classification.
 *
 * Needs `@huggingface/tokenizers`.
 *
 * @throws InvalidServingError for an invalid option
 */
export function textClassification(
  options: TextClassificationOptions,
): ServingDefinition<string | TextToClassify, readonly LabelScore[]> {
  const own: Classifier = new TextModel('textClassification', options, labelRules, {
    tokenizer: (files, limits) => tokenizing(files, limits),
    facts: labelFactsIn(options),
    output: (outputs, { own: facts }) => readLogits(own.owner, outputs, facts),
  });
  const definition: Definition = {
    warmUp: ['a text to warm up'],
    ...own.definition,
    preprocess(input, context) {
      const { tokenizer } = context.facts;
      const { text, pair, order } = asked(own.owner, input);
      const tokens =
        pair === undefined
          ? tokenizer.encode(context, text)
          : tokenizer.encodePair(context, text, pair);
      return withTokens(tokens, (all) => ({
        batch: rowOf(all, context.signature!),
        info: { weights: all.added, order },
      }));
    },
    postprocess: (outputs, { facts, info: { weights, order } }) => {
      const scores = scoresOf(own.owner, outputs, facts.own, weights);
      return order === 'model' ? scores : bestOf(scores, options);
    },
  };
  return asTask('text-classification', definition);
}

type Classifier = TextModel<string | TextToClassify, readonly LabelScore[], LabelFacts>;

type Definition = ServingDefinition<
  string | TextToClassify,
  readonly LabelScore[],
  Outputs,
  { readonly weights: Tokens['added'] } & Pick<TextToClassify, 'order'>,
  TextFacts<LabelFacts>
>;

function asked(owner: string, input: string | TextToClassify): TextToClassify {
  const given: Partial<TextToClassify> | null = typeof input === 'string' ? { text: input } : input;
  const isOrder = [undefined, 'score', 'model'].includes(given?.order);
  if (!isText(given?.text) || !(given.pair === undefined || isText(given.pair)) || !isOrder) {
    throw new InvalidInputError(
      `${owner} takes a text that is not empty, or { text, pair?, order?: "score" or "model" }, and ` +
        `was given ${formatValue(input)}`,
    );
  }
  refuseUnknown(owner, given, ['text', 'pair', 'order']);
  return { ...given, text: given.text };
}
