/**
 * Extensions of this package import these names besides the public ones. Applications cannot.
 */
export { flatten, isPlainObject } from './core/batch/container.js';
export type { LeafRows } from './core/batch/tensor-rows.js';
export {
  blankOf,
  checkTensor,
  elementSize,
  isTensor,
  numberOfFloat16,
  storageClasses,
  Tensor,
  zerosOf,
} from './core/batch/tensor.js';
export { type AbortSignalLike, onAbort } from './core/context/call-context.js';
export { callInRequest, streamInRequest } from './core/context/call-context.js';
export {
  checkOptions,
  DEFAULT_VERSION,
  delay,
  flag,
  groupOf,
  isRecord,
  LONGEST_DELAY,
  milliseconds,
  type Rule,
  type Rules,
  whole,
} from './core/definition/option-rules.js';
export {
  portRules,
  resolveDefinition,
  sessionOptionsOf,
} from './core/definition/resolve-definition.js';
export type { FunctionServingDefinition } from './core/definition/serving-definition.js';
export {
  fromWire,
  InvalidServingError,
  isA,
  isError,
  kindOf,
  messageOf,
  ServingLoadError,
  toWire,
  type WireError,
} from './core/errors.js';
export { CallRecorder } from './core/events/call-recorder.js';
export { EventHub, type EventOf } from './core/events/event-hub.js';
export {
  checkSessionOptions,
  DEFAULT_CALL_OPTIONS,
  type InternalCallOptions,
  onCancel,
  orCancelled,
  resolveCallOptions,
  type ResolvedCallOptions,
  Waits,
} from './core/execution/resolved-call-options.js';
export { logTo } from './core/log.js';
export { endedBy } from './core/execution/request.js';
export {
  closestName,
  formatBytes,
  formatValue,
  literalOf,
  propertyOf,
  truncate,
  statusText,
  typeName,
} from './core/format.js';
export {
  type BatchInfo,
  type BatchListener,
  type BatchOutput,
  type BatchTerms,
  contextOf,
  NO_TERMS,
} from './core/partitions/batch-function.js';
export type { Engine } from './core/partitions/engine.js';
export { resultOf } from './core/partitions/function.partition.js';
export { axisOfInput, dynamicAxes, rowMarksOf } from './core/partitions/onnx/model-signature.js';
export { externalFilesIn } from './core/partitions/onnx/model-source.js';
export { inSteps, type RunStep } from './core/partitions/onnx/onnx-model.js';
export { withShortSpin } from './core/partitions/onnx/onnx-session.js';
export { feedsOf, inputsAmong, ModelReply } from './core/partitions/onnx/model-io.js';
export {
  type DeclaredAxes,
  type DeclaredPorts,
  describePort,
  type FileSignature,
  type ModelPort,
  type ModelSignature,
  signatureOf,
  warningsOf,
} from './core/partitions/onnx/model-signature.js';
export {
  type AcceptedAxes,
  type Fetching,
  isRemote,
  readAddressesWith,
  type RemoteRepository,
  remoteRepositoryOf,
} from './core/partitions/onnx/remote-models.js';
export { withVariableAxes } from './core/partitions/onnx/variable-axes.js';
export {
  NotStartedError,
  type Partition,
  type PartitionResult,
  ReplyTooLargeError,
  ServerBusyError,
  type STEPPED,
  TooLargeToSendError,
} from './core/partitions/partition.js';
export {
  backoff,
  SupervisedPartition,
  type Supervision,
  type Worker,
} from './core/partitions/worker/supervised.partition.js';
export { isFixed } from './core/partitions/worker/transfer.js';
export type { Loaded } from './core/partitions/worker/worker-protocol.js';
export type { ClusterNode, ServingStatus } from './core/serving/serving.js';
export {
  healthOf,
  type LocalPart,
  type RemotePreprocess,
  SERVING_ROUTER,
  type ServingProfile,
  type ServingRouter,
} from './core/serving/serving.js';
export {
  OrderedSession,
  type SessionHost,
  type StepOptions,
} from './core/sessions/ordered-session.js';
export { Queue } from './core/streaming/queue.js';
export { leave, readOnce, type Source, sourceOf } from './core/streaming/source.js';
export { BatchedMethods } from './nest/batched/batched-methods.js';
export { versionOf } from './nest/copies.js';
export { guardList, ModuleGuards } from './nest/access-guards.js';
export { callerOf, optionsOf } from './nest/request-context.js';
export { clientErrorOf } from './nest/serving-exception.filter.js';
export { DEFAULT_EXTRAS, withExtras } from './nest/serving.module-definition.js';
export { getHandlerToken } from './nest/serving.providers.js';
export { ServingRegistry } from './nest/serving.registry.js';
