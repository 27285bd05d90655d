/**
 * Batched model serving inside a NestJS application: `ServingModule`, `ServingService`,
 * `@Batched()`, definitions, batches, streams and errors.
 *
 * @module
 */

import './extensions/hub/index.js';

export { ApiKeyGuard, LoginGuard, type LoginGuardOptions } from './nest/access-guards.js';
export { Batch } from './core/batch/batch.js';
export type { Container } from './core/batch/container.js';
export { Tensor, type TypedTensor } from './core/batch/tensor.js';
export { Batched } from './nest/batched/batched.decorator.js';
export type {
  BatchedCostOptions,
  BatchedOptions,
  BatchedQueueOptions,
  BatchedSizeOptions,
} from './nest/batched/batched-method.js';
export { type Caller, asCaller } from './nest/batched/batched.decorator.js';
export {
  BatchFailedError,
  CallCancelledError,
  CallCycleError,
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
} from './core/errors.js';
export {
  type Last,
  last,
  PENDING,
  type SequenceEnd,
  type SequenceModel,
  type SequenceResult,
  type SequenceStart,
  type SequenceStep,
} from './features/sequences/sequence-model.js';
export type {
  SequenceHandler,
  SequenceJoins,
  SequenceOptions,
  SequenceStepEvent,
  SequenceStepRecord,
} from './features/sequences/sequences.js';
export type {
  HandlerPartitionOptions,
  HandlerResult,
  ServingHandler,
  ServingKind,
} from './core/partitions/engine.js';
export type { ExternalModel } from './core/partitions/engine.js';
export type { PartitionStatus } from './core/partitions/partition.js';
export type { CloseReason } from './core/batching/ready-queue.js';
export type {
  AcceptedAxes,
  FetchedFacts,
  FetchedFile,
  FetchedFiles,
  Fetching,
  RemoteModel,
  RemoteFiles,
} from './core/partitions/model/remote-models.js';
export type { Isolation } from './core/partitions/worker/worker.partition.js';
export {
  TensorJsonInterceptor,
  type TensorJsonOptions,
} from './extensions/http-tensors/tensor-json.js';
export { TensorBody } from './extensions/http-tensors/tensor-json.js';
export { ServingExceptionFilter } from './nest/serving-exception.filter.js';
export { ServingRpcExceptionFilter } from './nest/serving-exception.filter.js';
export { getServingToken, InjectServing } from './nest/serving.decorator.js';
export { ServingModule } from './nest/serving.module.js';
export type { ServingModuleOptions } from './nest/serving.module-definition.js';
export { ServingService } from './nest/serving.service.js';
export type { OutputAxis, RowTemplate, TensorTemplate } from './core/definition/row-template.js';
export type { ServingSignature, TensorSignature } from './core/partitions/model/model-signature.js';
export type { ServingCounters } from './core/events/event-hub.js';
export type { CallOptions, StreamOptions } from './core/context/call-context.js';
export { currentSignal } from './core/context/call-context.js';
export { RequestSignal } from './nest/request-context.js';
export { contentHash } from './core/batch/content-hash.js';
export { createServing } from './features/features.js';
export type {
  BatchedDeduplicationOptions,
  DeduplicationOptions,
  ReplyCacheOptions,
} from './features/deduplication/deduplication.js';
export { getServingSchemas, type ServingSchemas } from './encoding/serving-schemas.js';
export type { ServingHealth } from './core/serving/serving.js';
export { LocalServing } from './core/serving/local-serving.js';
export type {
  ReloadOptions,
  ServingVersion,
  VersionRole,
  VersionStatus,
} from './core/versions/serving-version.js';
export type { TargetStatus } from './core/execution/pipeline.js';
export { currentOrigin, withOrigin } from './core/context/call-context.js';
export {
  type KeyStatus,
  Serving,
  type ServingHold,
  type ServingState,
} from './core/serving/serving.js';
export type {
  AllowedSizesOptions,
  BatchCostOptions,
  BatchSize,
  BatchSizeOptions,
  SimilarRowsOptions,
} from './core/definition/batch-size.js';
export {
  type ClassRunner,
  type CodeOptions,
  defineServing,
  type ExistingRunner,
  type FileRunner,
  type FunctionRunner,
  type KeyServingOptions,
  type ModelFile,
  type ModelOptions,
  type ModelRepository,
  type ModelRunner,
  type PostprocessContext,
  type PreprocessContext,
  type PreprocessResult,
  type QueueOptions,
  type RecoveryOptions,
  type ServingDefinition,
  type StreamContext,
  type RolloutOptions,
  type Runner,
  type ServingDistributionOptions,
  type ServingOptions,
  type ShutdownOptions,
  type SignatureOptions,
  type TimeoutOptions,
} from './core/definition/serving-definition.js';
export type { VersionOptions } from './features/rollout/rollout.js';
export type { ShadowComparison } from './features/rollout/shadow.js';
export type { ServingReference } from './nest/serving.service.js';
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
} from './core/events/serving-event.js';
export type {
  CallMetadata,
  HookEvent,
  OutputEvent,
  PartMetadata,
  StreamedOutput,
  StreamEvent,
  Steps,
} from './core/definition/reply.js';
export {
  type SessionCallOptions,
  type SessionOptions,
  ServingSession,
} from './core/execution/kept-states.js';
export type { SessionsOptions } from './features/sessions/sessions.js';
export { ServingStream } from './core/streaming/serving-stream.js';
export type { Origin } from './core/context/call-context.js';
export type { ServingOf } from './core/serving/serving.js';
export {
  type BatchContext,
  type BatchFunction,
  type BatchFunctionContext,
  type BatchResult,
  DONE,
  type PartitionOptions,
  type WithMetadata,
  withMetadata,
} from './core/partitions/batch-function.js';
