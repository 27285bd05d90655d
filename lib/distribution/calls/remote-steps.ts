import {
  InvalidInputError,
  InvalidServingError,
  isError,
  messageOf,
  SessionEndedError,
} from '../../errors.js';
import { formatValue } from '../../format.js';
import { LocalServing } from '../../serving/local-serving.js';
import { endedBy } from '../../execution/session-turn.js';
import type { SessionOptions } from '../../sessions/serving-session.js';
import type { ExportedServing } from './exported-servings.js';

/** One step of a session, on its way to the node that has the state. */
export interface StepMessage {
  readonly input: unknown;
  /** The steps whose replies the caller has received. */
  readonly steps: number;
  /** Milliseconds until its caller waits no longer. */
  readonly timeout?: number | undefined;
  readonly priority?: number | undefined;
}

/** The outcome of a step, on its way back. */
export type StepOutcome = { readonly output: unknown } | { readonly error: unknown };

/**
 * Makes the steps of a caller on another node in a session of this node, and yields their outcomes.
 * The session lives as long as the sequence of messages.
 *
 * @param onEnd called when the session ends by itself
 */
export async function* outcomesOf(
  { serving, postprocess }: ExportedServing,
  messages: AsyncIterable<unknown>,
  { tenant, key, version }: SessionOptions,
  onEnd: (reason: SessionEndedError) => void,
): AsyncGenerator<StepOutcome, void> {
  if (!(serving instanceof LocalServing)) {
    throw new InvalidServingError(`Serving "${serving.name}" has no sessions for other nodes`);
  }
  let isOpen = true;
  const session = serving.openSession(
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

/** The outcome in an event of the session. */
export function outcomeIn(event: unknown): StepOutcome {
  const { output, error } = { ...(event as { output?: unknown; error?: unknown }) };
  return isError(error) ? { error } : { output };
}

/** The error of a session whose node no longer has its state. */
export function lostWith(cause: unknown): SessionEndedError {
  return cause instanceof SessionEndedError
    ? cause
    : endedBy(`its node has ended it (${messageOf(cause)})`, cause);
}
