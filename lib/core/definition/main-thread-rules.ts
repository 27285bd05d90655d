import { InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import type { PartitionOptions } from '../partitions/batch-function.js';
import { providersOf } from '../partitions/onnx/onnx-session.js';
import type { ResolvedServing } from './resolved-serving.js';
import type { ModelRunner, ServingOptions } from './serving-definition.js';

/** The options of `recovery` for a partition that can end and start again. */
const ofRestarts = ['restartDelay', 'maxRestarts', 'restartTimeout'] as const;

/**
 * Checks options against the place where the batches run.
 *
 * @throws InvalidServingError for options that need a thread or process in one without, and for
 * `blockingLimit` in a serving that has one
 */
export function checkPlace(
  owner: string,
  runner: ResolvedServing['runner'],
  { isolation, blockingLimit }: Partial<ModelRunner>,
  { partitions = 1, recovery = {} }: ServingOptions,
  options: readonly PartitionOptions[],
): void {
  const isOwnModel = isolation === 'none';
  if (blockingLimit !== undefined && !isOwnModel) {
    throw new InvalidServingError(
      `${owner}: blockingLimit ${blockingLimit} is for isolation: 'none'; the runs of a thread ` +
        'or process do not hold the event loop, so leave it out',
    );
  }
  if (isOwnModel && (partitions === true || options.length > 1)) {
    throw new InvalidServingError(
      `${owner}: partitions ${formatValue(partitions)} cannot run in parallel in the ` +
        "application's own thread (isolation: 'none'); leave partitions out, or use isolation: " +
        "'thread'",
    );
  }
  const needless = [
    ...(isOwnModel ? (['runTimeout', 'retries'] as const) : []),
    ...(isOwnModel || runner === 'function' || runner === 'class' ? ofRestarts : []),
  ].find((name) => recovery[name] !== undefined);
  if (needless !== undefined) {
    throw new InvalidServingError(
      `${owner}: recovery.${needless} ${formatValue(recovery[needless])} has no effect in the ` +
        "application's own thread, where a run cannot be ended and no partition is lost; leave it " +
        'out, or use a thread or process',
    );
  }
  if (isOwnModel && providersOf(options[0]!).some(({ name }) => name === 'webgpu')) {
    throw new InvalidServingError(
      `${owner}: the execution provider "webgpu" needs isolation: 'thread' or 'process', since ` +
        'its sessions wait for each other',
    );
  }
}
