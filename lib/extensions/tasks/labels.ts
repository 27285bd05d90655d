import { flag, type Rules, whole } from '../../internal.js';
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
import type { LoadingFiles } from './task-model.js';

/** A label of a text or an image. */
export interface LabelScore {
  /** As config.json names it. */
  readonly label: string;
  /** From 0 to 1. */
  readonly score: number;
}

/** How a classifier gives its labels. */
export interface LabelOptions {
  /**
   * How many of the best labels the reply has.
   *
   * @default all
   */
  readonly top?: number;
  /**
   * Whether an input may have several labels: then each score stands by itself, and otherwise they
   * sum up to 1.
   *
   * @default as config.json says; true for a model with one label
   */
  readonly multiLabel?: boolean;
}

export const labelRules: Rules = { top: whole(1, 2 ** 20), multiLabel: flag };

/** What the model's files say about its labels. */
export interface LabelFacts {
  readonly labels: Labels;
  readonly multiLabel: boolean | undefined;
}

export async function labelFactsIn({ config }: LoadingFiles): Promise<LabelFacts> {
  const { problem_type: type } = config;
  return {
    labels: labelsIn(config),
    multiLabel: typeof type === 'string' ? type === 'multi_label_classification' : undefined,
  };
}

/** The labels for a model's logits, the best first. */
export function bestLabels(
  owner: string,
  outputs: Outputs,
  { labels, multiLabel: stated }: LabelFacts,
  { top, multiLabel }: LabelOptions,
): readonly LabelScore[] {
  const logits = Array.from(floatsOf(outputOf(owner, outputs, 'logits')));
  const isApart = multiLabel ?? stated ?? logits.length === 1;
  const scores = isApart ? logits.map(sigmoid) : softmax(logits);
  return scores
    .map((score, i) => ({ label: labelOf(labels, i), score }))
    .toSorted((one, other) => other.score - one.score)
    .slice(0, top);
}
