import { InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import type { PartitionOptions } from '../partitions/batch-function.js';
import type { ResolvedBatchSize } from './batch-size.js';
import { DEFAULT_QUEUE_ROWS } from './option-rules.js';
import type { KeyOptions, ResolvedRecovery, ResolvedServing } from './resolved-serving.js';
import type { RecoveryOptions, RunnerOptions, ServingOptions } from './serving-definition.js';

/** A definition with valid options, and what follows from them. */
export interface Facts {
  readonly definition: ServingOptions;
  readonly kind: ResolvedServing['runner'];
  readonly runner: RunnerOptions;
  readonly size: ResolvedBatchSize;
  readonly partitions: readonly PartitionOptions[];
  readonly recovery: ResolvedRecovery;
  readonly states: ResolvedServing['states'];
  readonly continuous: ResolvedServing['continuous'];
  readonly signature: Pick<ResolvedServing, 'template' | 'cuts'>;
}

/** Returns why the options can't be combined, if they can't. */
export type Combination<Of = Facts> = (of: Of) => string | false | undefined;

export const isOwnThread = ({ runner }: Facts) => runner.isolation === 'none';

const noEffectInOwnThread =
  (names: readonly (keyof RecoveryOptions)[], applies: (facts: Facts) => boolean): Combination =>
  (facts) => {
    const { recovery = {} } = facts.definition;
    const needless = applies(facts) && names.find((name) => recovery[name] !== undefined);
    return (
      needless &&
      `recovery.${needless} ${formatValue(recovery[needless])} has no effect in the ` +
        "application's own thread, where a run cannot be ended and no partition is lost; leave it " +
        'out, or use a thread or process'
    );
  };

export const combinations: readonly Combination[] = [
  ({ definition: { timeout } }) => {
    const { default: given = 0, most = Infinity } = typeof timeout === 'object' ? timeout : {};
    return (
      given > most &&
      `timeout.default ${given} is more than timeout.most ${most}, so no call could ever have it; ` +
        'lower the one or raise the other'
    );
  },
  ({ definition: { queue: { maxRows = DEFAULT_QUEUE_ROWS, maxRowsPerCall = 0 } = {} } }) =>
    maxRowsPerCall > maxRows &&
    `queue.maxRowsPerCall ${maxRowsPerCall} is more than queue.maxRows ${maxRows}, so no such call ` +
      'could ever wait; lower the one or raise the other',
  ({ recovery: { isolateFailures, idempotent } }) =>
    isolateFailures &&
    !idempotent &&
    'recovery.isolateFailures runs batches again, and needs recovery.idempotent: true',
  ({ definition, recovery }) =>
    definition.recovery?.retries !== undefined &&
    !recovery.idempotent &&
    'recovery.retries needs recovery.idempotent: true, since it repeats batches whose partition ' +
      'was lost',
  ({ signature: { template, cuts } }) =>
    Object.keys(cuts).length > 0 &&
    !template?.some(({ variable }) => variable) &&
    `outputs ${Object.keys(cuts).map(formatValue).join(', ')} are cut back to the length of ` +
      'their inputs, and template has no variableAxis',

  // How large a batch gets.
  ({ size: { sizes, cost } }) =>
    cost &&
    sizes &&
    `the allowed sizes ${sizes.join(', ')} add rows to a batch, which batchSize.cost does not ` +
      'count; leave one of them out',
  ({ size: { cost } }) =>
    cost &&
    cost.overtaking > 0 &&
    !cost.padded &&
    'batchSize.cost.similar chooses rows that need little padding, and needs ' +
      'batchSize.cost.padded: true',

  ({ states, continuous }) =>
    states &&
    continuous &&
    `${states.kind} have no effect on ${continuous.kind}, where each call has a state of its own; ` +
      'leave one of them out',

  // The place where batches run.
  noEffectInOwnThread(['runTimeout', 'retries'], isOwnThread),
  noEffectInOwnThread(
    ['restartDelay', 'maxRestarts', 'restartTimeout'],
    (facts) => isOwnThread(facts) || facts.kind === 'function' || facts.kind === 'class',
  ),
];

export interface KeyFacts extends KeyOptions {
  /** The timeout of calls without their own. */
  readonly timeout?: number | undefined;
  readonly queueRows: number;
}

export const combinationsOfKeys: readonly Combination<KeyFacts>[] = [
  ({ batchSize, allowedSizes: [...sizes] = [batchSize] }) =>
    sizes.at(-1)! < batchSize &&
    `batchSize ${batchSize} is more than the largest of the allowed sizes, ${sizes.at(-1)}; lower ` +
      'the one or extend the other',
  ({ batchSize, queueRows }) =>
    batchSize > queueRows &&
    `batchSize ${batchSize} is more than queue.maxRows ${queueRows}, so no batch could ever fill; ` +
      'lower the one or raise the other',
  ({ latencyTarget, batchTimeout }) =>
    latencyTarget !== undefined &&
    batchTimeout > 0 &&
    `latencyTarget ${latencyTarget} decides when a batch runs, and batchTimeout ${batchTimeout} ` +
      'contradicts it; drop batchTimeout',
  ({ latencyTarget = 0, timeout = Infinity }) =>
    timeout < latencyTarget &&
    `timeout ${timeout} ends calls before the latencyTarget ${latencyTarget} is over; lower the ` +
      'target or raise the timeout',
];

/** @throws InvalidServingError naming the owner and what contradicts each other */
export function checkTogether<Of>(owner: string, of: Of, rules: readonly Combination<Of>[]): void {
  for (const rule of rules) {
    const fault = rule(of);
    if (fault) {
      throw new InvalidServingError(`${owner}: ${fault}`);
    }
  }
}
