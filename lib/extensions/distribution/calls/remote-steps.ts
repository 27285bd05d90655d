import {
  InvalidInputError,
  InvalidServingError,
  SessionEndedError,
  type SessionOptions,
} from '../../../index.js';
import { isError, messageOf, formatValue, endedBy } from '../../../internal.js';
import type { ExportedServing } from './exported-servings.js';

export interface StepMessage {
  readonly input: unknown;
  /** Replies that the caller has received. */
  readonly steps: number;
  /** In milliseconds. */
  readonly timeout?: number | undefined;
  readonly priority?: number | undefined;
}

type StepOutcome = { readonly output: unknown } | { readonly error: unknown };

/**
 * Runs a remote session's steps and yields their outcomes, until the messages end.
 *
 * @param onEnd called if the session ends by itself
 */
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
