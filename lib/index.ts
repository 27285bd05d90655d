/**
 * Batched model serving inside a NestJS application: `ServingModule`, `ServingService`, `@Batched()`,
 * definitions, batches, streams and errors.
 *
 * @module
 */

import './hub/index.js';

export { ApiKeyGuard, LoginGuard, type LoginGuardOptions } from './access-guards.js';
export { Batch } from './batch/batch.js';
export type { Container } from './batch/container.js';
export { Tensor } from './batch/tensor.js';
export { Batched } from './batched/batched.decorator.js';
export type {
  BatchedCostOptions,
  BatchedDeduplicationOptions,
  BatchedOptions,
  BatchedQueueOptions,
} from './batched/batched-method.js';
export { type Caller, asCaller } from './batched/batched.decorator.js';
export {
  BatchFailedError,
  CallCancelledError,
  DeadlineExceededError,
  DeadlineTooShortError,
  InvalidBatchError,
  InvalidInputError,
  InvalidOutputError,
  InvalidServingError,
  isServingError,
  NodeLostError,
  OverloadedError,
  PartitionLostError,
  ProviderUnavailableError,
  RequestTooLargeError,
  RunTimeoutError,
  ServingClosedError,
  ServingError,
  ServingLoadError,
  ServingUnavailableError,
  SessionEndedError,
  SlowConsumerError,
  UnknownKeyError,
  UnknownServingError,
  UnknownVersionError,
} from './errors.js';
export {
  type Last,
  last,
  type SequenceEnd,
  type SequenceModel,
  type SequenceResult,
  type SequenceStart,
  type SequenceStep,
} from './partitions/sequence/sequence-model.js';
export type {
  HandlerPartitionOptions,
  HandlerResult,
  SequenceHandler,
  ServingHandler,
  ServingKind,
} from './partitions/handler.partition.js';
export type { ExternalModel } from './partitions/engine.js';
export type { PartitionStatus } from './partitions/partition.js';
export type { CloseReason } from './batching/ready-queue.js';
export type { Isolation } from './partitions/worker/worker.partition.js';
export { TensorJsonInterceptor, type TensorJsonOptions } from './http/tensor-json.interceptor.js';
export { TensorBody } from './http/tensor-body.decorator.js';
export { ServingExceptionFilter } from './serving-exception.filter.js';
export { ServingRpcExceptionFilter } from './serving-exception.filter.js';
export { getServingToken, InjectServing } from './serving.decorator.js';
export { ServingModule } from './serving.module.js';
export type { ServingModuleOptions } from './serving.module-definition.js';
export { ServingService } from './serving.service.js';
export type { OutputAxis, RowTemplate, TensorTemplate } from './definition/row-template.js';
export type { ServingSignature, TensorSignature } from './definition/serving-signature.js';
export type { ServingCounters } from './events/event-hub.js';
export type { CallOptions, StreamOptions } from './context/call-options.js';
export { currentSignal } from './context/caller-context.js';
export { RequestSignal } from './context/request-caller.js';
export { contentHash } from './batch/content-hash.js';
export { createServing } from './serving/create-serving.js';
export { getServingSchemas, type ServingSchemas } from './serving/serving-schemas.js';
export type { ServingHealth } from './serving/serving.js';
export { LocalServing } from './serving/local-serving.js';
export type {
  ReloadOptions,
  ServingVersion,
  ShadowComparison,
  VersionRole,
  VersionStatus,
} from './serving/serving-version.js';
export { currentOrigin, withOrigin } from './context/caller-context.js';
export {
  type KeyStatus,
  Serving,
  type ServingHold,
  type ServingState,
  type TargetStatus,
} from './serving/serving.js';
export type { BatchCostOptions, SimilarRowsOptions } from './definition/batch-cost.js';
export {
  type ClassRunner,
  type DeduplicationOptions,
  defineServing,
  type ExistingRunner,
  type ExternalRunner,
  type FileRunner,
  type FunctionRunner,
  type KeyServingOptions,
  type ModelFile,
  type ModelOptions,
  type ModelRunner,
  type PostprocessContext,
  type PreprocessResult,
  type QueueOptions,
  type RecoveryOptions,
  type ReplyCacheOptions,
  type SequenceJoins,
  type SequenceOptions,
  type ServingDefinition,
  type ServingDistributionOptions,
  type ServingOptions,
  type SessionsOptions,
  type ShutdownOptions,
  type VersionOptions,
  type WorkerRecoveryOptions,
} from './definition/serving-definition.js';
export type { ServingReference } from './definition/serving-reference.js';
export type {
  AnsweredBy,
  BatchEndEvent,
  BatchStartEvent,
  CallEndEvent,
  CallMode,
  CallStage,
  CallStartEvent,
  PartitionChangeEvent,
  ServingEvent,
} from './events/serving-event.js';
export type {
  CallMetadata,
  HookEvent,
  OutputEvent,
  PartMetadata,
  StreamedOutput,
  StreamEvent,
  Steps,
} from './definition/reply.js';
export {
  type SessionCallOptions,
  type SessionOptions,
  ServingSession,
} from './sessions/serving-session.js';
export { ServingStream } from './streaming/serving-stream.js';
export type { Origin } from './context/caller-context.js';
export type { ServingOf } from './serving/serving.js';
export {
  type BatchContext,
  type BatchFunction,
  type BatchFunctionContext,
  type BatchResult,
  DONE,
  type PartitionOptions,
  type WithMetadata,
  withMetadata,
} from './partitions/batch-function.js';
