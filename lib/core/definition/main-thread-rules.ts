import { InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import type { PartitionOptions } from '../partitions/batch-function.js';
import { providersOf } from '../partitions/onnx/onnx-session.js';
import type { ModelRunner, ServingOptions, WorkerRecoveryOptions } from './serving-definition.js';

/** The options of `recovery` for a partition that can hang, end or be lost. */
const ofWorkers = [
  'restartDelay',
  'maxRestarts',
  'restartTimeout',
  'runTimeout',
  'retries',
] as const;

/**
 * Checks the options of a model against the place where it runs.
 *
 * @throws InvalidServingError for options that need a thread or process in one without, and for
 * `blockingLimit` in a serving that has one
 */
export function checkMainThread(
  owner: string,
  {
    isolation,
    blockingLimit,
    partitions = 1,
    recovery = {},
  }: Pick<ModelRunner, 'isolation' | 'blockingLimit'> &
    Pick<ServingOptions, 'partitions'> & {
      readonly recovery?: WorkerRecoveryOptions;
    },
  options: readonly PartitionOptions[],
): void {
  if (isolation !== 'none') {
    if (blockingLimit !== undefined) {
      throw new InvalidServingError(
        `${owner}: blockingLimit ${blockingLimit} is for isolation: 'none'; the runs of a thread ` +
          'or process do not hold the event loop, so leave it out',
      );
    }
    return;
  }
  if (partitions === true || options.length > 1) {
    throw new InvalidServingError(
      `${owner}: partitions ${formatValue(partitions)} cannot run in parallel in the ` +
        "application's own thread (isolation: 'none'); leave partitions out, or use isolation: " +
        "'thread'",
    );
  }
  const needless = ofWorkers.find((name) => recovery[name] !== undefined);
  if (needless !== undefined) {
    throw new InvalidServingError(
      `${owner}: recovery.${needless} ${formatValue(recovery[needless])} has no effect in the ` +
        "application's own thread (isolation: 'none'), where a run cannot be ended and no " +
        "partition is lost; leave it out, or use isolation: 'thread'",
    );
  }
  if (providersOf(options[0]!).some(({ name }) => name === 'webgpu')) {
    throw new InvalidServingError(
      `${owner}: the execution provider "webgpu" needs isolation: 'thread' or 'process', since ` +
        'its sessions wait for each other',
    );
  }
}
