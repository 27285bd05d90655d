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
import type { Due } from './resolved-call-options.js';

/** Shares runs between the calls of `batchedRun`, in each version of a serving. */
export interface SharingOpener {
  /** True if a call may get an earlier call's answer. */
  readonly keepsAnswers: boolean;
  /** Called before the version loads. @throws InvalidServingError if something is missing */
  check(): void;
  open(options: ResolvedServing, loaded: OpenedEngine): Promise<CallSharing>;
}

export interface CallSharing {
  answer(call: SharedCall): Promise<SharedAnswer>;
  /** Resolves when all its calls are on their way. */
  idle(): Promise<void>;
}

export interface Run {
  readonly call: Call;
  readonly reply: Reply;
}

export interface SharedCall {
  readonly input: unknown;
  /** Set only in a serving that separates origins. */
  readonly origin: Origin | undefined;
  readonly key: string | undefined;
  /** Identifies what admission looks at. Calls with the same terms are refused together. */
  readonly terms: string;
  readonly due: Due;
  /** Calls back when the caller no longer waits. The result removes the callback. */
  readonly onStop: (leave: (reason: unknown) => void) => () => void;
  readonly recorder: CallRecorder | undefined;
  readonly caller: CallingBatch | undefined;
  /**
   * @param left aborts when no caller waits for the rows
   * @param due of all callers; may become later
   */
  readonly run: (
    input: unknown,
    left: AbortSignal,
    due: Due,
    onAdmitted: () => void,
  ) => Promise<Run>;
  /** Prepares the caller's own `info`, if `postprocess` reads one. */
  readonly prepare: (() => Promise<Call>) | undefined;
  readonly finish: (call: Call, output: BatchOutput, said: CallMetadata) => unknown;
}

/** Names its source unless the call's own rows gave it. */
export interface SharedAnswer {
  readonly answer: unknown;
  readonly answeredBy?: AnsweredBy;
}
