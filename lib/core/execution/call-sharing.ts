import type { CallingBatch } from '../context/call-cycles.js';
import type { Origin } from '../context/call-context.js';
import type { CallMetadata } from '../definition/reply.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import type { CallRecorder } from '../events/call-recorder.js';
import type { AnsweredBy } from '../events/serving-event.js';
import type { BatchOutput } from '../partitions/batch-function.js';
import type { OpenedEngine } from '../partitions/engine.js';
import type { Call } from './caller-side.js';
import type { Reply } from './request.js';

/** Shares runs between the calls of `batchedRun`, in each version of a serving. */
export interface SharingOpener {
  /** True if a call may get an answer that was made before. */
  readonly keepsAnswers: boolean;
  /** Called before the version loads. @throws InvalidServingError if something is missing */
  check(): void;
  open(options: ResolvedServing, loaded: OpenedEngine): Promise<CallSharing>;
}

/** Answers the calls of one version. */
export interface CallSharing {
  answer(call: SharedCall): Promise<SharedAnswer>;
  /** Resolves when all calls that it has are on their way. */
  idle(): Promise<void>;
}

export interface Run {
  readonly call: Call;
  readonly reply: Reply;
}

export interface SharedCall {
  readonly input: unknown;
  /** Only in a serving that separates origins. */
  readonly origin: Origin | undefined;
  /** From the call options. */
  readonly key: string | undefined;
  /** Holds what admission looks at. Calls with the same terms are refused together. */
  readonly terms: string;
  /** Calls back when the caller no longer waits. The result removes the callback. */
  readonly onStop: (leave: (reason: unknown) => void) => () => void;
  readonly recorder: CallRecorder | undefined;
  /** The batch whose function makes the call. */
  readonly caller: CallingBatch | undefined;
  /**
   * `left` aborts when no caller waits for the rows; `onAdmitted` is called when they are admitted.
   */
  readonly run: (input: unknown, left: AbortSignal, onAdmitted: () => void) => Promise<Run>;
  /** Prepares the caller's own `info`, if `postprocess` reads one. */
  readonly prepare: (() => Promise<Call>) | undefined;
  /** The output belongs to this caller alone. */
  readonly finish: (call: Call, output: BatchOutput, said: CallMetadata) => unknown;
}

/** The answer, and its source if it isn't rows of the call's own. */
export interface SharedAnswer {
  readonly answer: unknown;
  readonly answeredBy?: AnsweredBy;
}
