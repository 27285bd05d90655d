export {
  type AbortSignalLike,
  callInRequest,
  onAbort,
  streamInRequest,
} from '../core/context/call-context.js';
export { CallRecorder } from '../core/events/call-recorder.js';
export { EventHub, type EventOf } from '../core/events/event-hub.js';
export {
  DEFAULT_CALL_OPTIONS,
  INTERNAL,
  type InternalCallOptions,
  onCancel,
  orCancelled,
  resolveCallOptions,
  type ResolvedCallOptions,
  Waits,
} from '../core/execution/resolved-call-options.js';
export {
  checkSessionOptions,
  endedBy,
  OrderedSession,
  type SessionHost,
  type StepOptions,
} from '../features/sessions/ordered-session.js';
export { Queue } from '../core/streaming/queue.js';
export { leave, readOnce, type Source, sourceOf } from '../core/streaming/source.js';
export { callerOf, optionsOf } from '../nest/request-context.js';
