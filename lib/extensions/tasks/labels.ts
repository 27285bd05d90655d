import { flag, type Rules, whole } from '../../doors/options.js';
import type { TensorSignature } from '../../index.js';
import {
  checkWidth,
  finite,
  floatsOf,
  labelOf,
  type Labels,
  labelsIn,
  meanOf,
  otherModel,
  outputOf,
  type Outputs,
  readOutput,
  sigmoid,
  softmax,
} from './outputs.js';
import { refused } from './python-settings.js';
import type { LoadingFiles } from './task-model.js';

/** Label of a text or an image. */
export interface LabelScore {
  /** Name in config.json. */
  readonly label: string;
  /** Score from 0 to 1; for regression, the model's own number. */
  readonly score: number;
}

/** Choice and scores of labels. */
export interface LabelOptions {
  /**
   * Number of the best labels in the reply.
   *
   * @default all
   */
  readonly top?: number;
  /**
   * Allows several labels: each score stands by itself. Otherwise they sum up to 1.
   *
   * @default as config.json says; true for a model with one label; the model's own numbers for
   * regression
   */
  readonly multiLabel?: boolean;
}

export const labelRules: Rules = { top: whole(1, 2 ** 20), multiLabel: flag };

export interface LabelFacts {
  readonly labels: Labels;
  /** Undefined if the number of logits decides. */
  readonly scores: 'sigmoid' | 'softmax' | 'raw' | undefined;
}

const PROBLEMS: readonly unknown[] = [
  undefined,
  'regression',
  'single_label_classification',
  'multi_label_classification',
];

/** Follows https://github.com/huggingface/transformers/blob/main/src/transformers/pipelines/text_classification.py */
export function labelFactsIn({ multiLabel }: LabelOptions) {
  return async ({ repository, config }: LoadingFiles): Promise<LabelFacts> => {
    const { problem_type: type } = config;
    if (!PROBLEMS.includes(type ?? undefined)) {
      throw refused(repository, 'config.json', 'problem_type', type);
    }
    const isApart = multiLabel ?? (type === 'multi_label_classification' || undefined);
    const stated = type === 'regression' ? 'raw' : undefined;
    const scores = isApart === undefined ? stated : isApart ? 'sigmoid' : 'softmax';
    return { labels: labelsIn(repository.name, config), scores };
  };
}

/** @throws InvalidServingError for another task's model, or other labels */
export function readLogits(
  owner: string,
  outputs: readonly TensorSignature[],
  { labels, scores }: LabelFacts,
): TensorSignature {
  const output = readOutput(owner, outputs, ['logits'], 2);
  const width = output.shape.at(-1);
  checkLabels(owner, outputs, labels, width);
  if (width === 1 && scores === 'softmax') {
    throw otherModel(
      owner,
      'several labels whose scores sum up to 1',
      outputs,
      'with one label each score would be 1; leave out multiLabel: false',
    );
  }
  return output;
}

/** @throws InvalidServingError if logits and labels differ in number */
export function checkLabels(
  owner: string,
  outputs: readonly TensorSignature[],
  labels: Labels,
  width: number | string | null | undefined,
): void {
  const { length } = labels;
  if (length > 0 && typeof width === 'number' && width !== length) {
    throw otherModel(owner, `a logit for each of the ${length} labels of config.json`, outputs);
  }
}

/**
 * Scores of all labels, in the model's order.
 *
 * @param weights of the rows, whose scores are averaged
 */
export function scoresOf(
  owner: string,
  outputs: Outputs,
  { labels, scores: stated }: LabelFacts,
  weights: readonly number[] = [1],
): readonly LabelScore[] {
  const all = floatsOf(outputOf(owner, outputs, 'logits'));
  const width = all.length / weights.length;
  checkWidth(owner, labels, width);
  const kind = stated ?? (width === 1 ? 'sigmoid' : 'softmax');
  const scores = weights.map((_, i) => {
    const logits = Array.from(all.subarray(i * width, (i + 1) * width));
    return kind === 'raw' ? logits : kind === 'sigmoid' ? logits.map(sigmoid) : softmax(logits);
  });
  const means = Array.from(finite(owner, meanOf(scores, weights)));
  return means.map((score, i) => ({ label: labelOf(labels, i), score }));
}

export function bestOf(
  scores: readonly LabelScore[],
  { top }: LabelOptions,
): readonly LabelScore[] {
  return scores.toSorted((one, other) => other.score - one.score).slice(0, top);
}
