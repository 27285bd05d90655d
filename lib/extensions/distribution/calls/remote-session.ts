import {
  type CallOptions,
  InvalidInputError,
  InvalidServingError,
  ServingClosedError,
  SessionEndedError,
  type SessionOptions,
} from '../../../index.js';
import {
  type AbortSignalLike,
  type CallRecorder,
  endedBy,
  INTERNAL,
  orCancelled,
  Queue,
  type ResolvedCallOptions,
  type SessionHost,
  type StepOptions,
} from '../../../doors/calls.js';
import { formatValue, isError, messageOf, noteRun } from '../../../doors/text.js';
import type { ExportedServing } from './exported-servings.js';

/** Calls of one session, which send their inputs one after another. */
const MOST_WAITING = 10_000;

interface RemoteSessionOptions {
  readonly serving: string;
  resolve(input: unknown, options: CallOptions): ResolvedCallOptions;
  preprocess(input: unknown, terms: ResolvedCallOptions): unknown;
  connect(steps: AsyncIterable<StepMessage>): AsyncIterable<unknown>;
  record(signal: AbortSignalLike | undefined): CallRecorder | undefined;
  enter(): () => void;
}

interface Waiting {
  readonly resolve: (output: unknown) => void;
  readonly reject: (error: unknown) => void;
}

/** One streamed call carries steps and outcomes; the session ends with it. */
export class RemoteSessionHost implements SessionHost {
  readonly waits = { count: 0, most: MOST_WAITING };
  private steps: Queue<StepMessage> | undefined;
  /** Kept in order, even if their callers stopped waiting. */
  private waiting: Waiting[] = [];
  private lost: SessionEndedError | undefined;

  constructor(private readonly options: RemoteSessionOptions) {}

  get serving(): string {
    return this.options.serving;
  }

  resolve(input: unknown, options: CallOptions): ResolvedCallOptions {
    return this.options.resolve(input, options);
  }

  run(input: unknown, options: StepOptions): Promise<unknown> {
    const recorder = this.options.record(options.signal);
    const reply = this.step(input, options, recorder);
    return recorder ? recorder.follow(reply) : reply;
  }

  refused(error: unknown, { signal }: CallOptions): void {
    this.options.record(signal)?.ended({ error });
  }

  private async step(
    input: unknown,
    { [INTERNAL]: { turn, resolved }, priority }: StepOptions,
    recorder: CallRecorder | undefined,
  ): Promise<unknown> {
    const { options } = this;
    const exit = options.enter();
    try {
      const prepared = await options.preprocess(input, resolved);
      recorder?.running();
      if (this.lost) {
        throw this.lost;
      }
      const { deadline } = resolved;
      const timeout = deadline === Infinity ? undefined : deadline - performance.now();
      const outcome = new Promise<unknown>((resolve, reject) =>
        this.waiting.push({ resolve, reject }),
      );
      outcome.catch(() => {});
      this.connected(turn.steps).push({
        input: prepared,
        steps: turn.steps,
        ...(timeout !== undefined && { timeout: Math.max(0, timeout) }),
        ...(priority !== undefined && { priority }),
      });
      return await orCancelled(resolved, outcome);
    } finally {
      exit();
    }
  }

  ended(reason: SessionEndedError): void {
    this.lost ??= reason;
    this.steps?.end();
  }

  private connected(made: number): Queue<StepMessage> {
    if (!this.steps) {
      this.steps = new Queue();
      void this.read(this.options.connect(this.steps), made);
    }
    return this.steps;
  }

  private async read(events: AsyncIterable<unknown>, made: number): Promise<void> {
    let replies = made;
    try {
      for await (const event of events) {
        const outcome = outcomeIn(event);
        const { resolve, reject } = this.waiting.shift()!;
        if ('error' in outcome) {
          // If the session has ended, its call ends, too.
          reject(noteRun(outcome.error));
        } else {
          replies++;
          resolve(outcome.output);
        }
      }
      this.disconnected(new ServingClosedError('the session was closed'), true);
    } catch (error) {
      this.disconnected(error, replies > 0);
    }
  }

  /** No reply means no state: the next call may try another node. */
  private disconnected(error: unknown, hadState: boolean): void {
    const reason = hadState ? lostWith(error) : error;
    this.steps = undefined;
    if (hadState) {
      this.lost ??= reason as SessionEndedError;
    }
    this.waiting.splice(0).forEach(({ reject }) => reject(reason));
  }
}

export interface StepMessage {
  readonly input: unknown;
  readonly steps: number;
  /** Milliseconds. */
  readonly timeout?: number | undefined;
  readonly priority?: number | undefined;
}

type StepOutcome = { readonly output: unknown } | { readonly error: unknown };

/** @param onEnd called if the session ends by itself */
export async function* outcomesOf(
  { serving, postprocess }: ExportedServing,
  messages: AsyncIterable<unknown>,
  { tenant, key, version }: SessionOptions,
  onEnd: (reason: SessionEndedError) => void,
): AsyncGenerator<StepOutcome, void> {
  if (!serving.local) {
    throw new InvalidServingError(`Serving "${serving.name}" has no sessions for other nodes`);
  }
  let isOpen = true;
  const session = serving.local.openSession(
    { tenant, key, version },
    (reason) => isOpen && onEnd(reason),
  );
  try {
    for await (const message of messages) {
      const { input, steps, ...options } = stepIn(message);
      try {
        const output = await session.runAfter(steps, input, options);
        yield { output: postprocess ? await postprocess(output) : output };
      } catch (error) {
        yield { error };
      }
    }
  } finally {
    isOpen = false;
    await session.close();
  }
}

function stepIn(message: unknown): StepMessage {
  const { input, steps, timeout, priority } = { ...(message as Partial<StepMessage>) };
  if (!Number.isInteger(steps)) {
    throw new InvalidInputError(`A step of a session was sent with ${formatValue(steps)} steps`);
  }
  return { input, steps: steps!, timeout, priority };
}

export function outcomeIn(event: unknown): StepOutcome {
  const { output, error } = { ...(event as { output?: unknown; error?: unknown }) };
  return isError(error) ? { error } : { output };
}

export function lostWith(cause: unknown): SessionEndedError {
  return cause instanceof SessionEndedError
    ? cause
    : endedBy(`its node has ended it (${messageOf(cause)})`, cause);
}
