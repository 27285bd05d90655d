export {
  type BatchInfo,
  type BatchListener,
  type BatchOutput,
  type BatchTerms,
  contextOf,
  NO_TERMS,
} from '../core/partitions/batch-function.js';
export type { Engine } from '../core/partitions/engine.js';
export { resultOf } from '../core/partitions/function.partition.js';
export {
  NotStartedError,
  type Partition,
  type PartitionResult,
  ReplyTooLargeError,
  ServerBusyError,
  type STEPPED,
  TooLargeToSendError,
} from '../core/partitions/partition.js';
export {
  backoff,
  SupervisedPartition,
  type Supervision,
  type Worker,
} from '../core/partitions/worker/supervised.partition.js';
export type { Loaded } from '../core/partitions/worker/worker-protocol.js';
