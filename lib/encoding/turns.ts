import { randomUUID } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';
import { type AbortSignalLike, type CallOptions, onAbort } from '../core/context/call-context.js';
import { ServingUnavailableError, UnknownVersionError } from '../core/errors.js';
import type { LocalPart } from '../core/serving/serving.js';

/** Milliseconds until other work gets a turn. */
const LENGTH = 4;

export class Turns {
  private begin = performance.now();

  get isOver(): boolean {
    return performance.now() - this.begin > LENGTH;
  }

  /** @throws AbortError if the signal has aborted */
  async next(signal?: AbortSignal): Promise<void> {
    await setImmediate(undefined, { signal });
    this.begin = performance.now();
  }
}

/**
 * Makes a call for each input; the first failure cancels the others. Starting calls tokenizes their
 * texts, which can take seconds, so they take turns.
 */
export async function callEach<Input, Reply>(
  inputs: readonly Input[],
  signal: AbortSignalLike | undefined,
  call: (input: Input, signal: AbortSignalLike | undefined, index: number) => Promise<Reply>,
): Promise<readonly Reply[]> {
  if (inputs.length === 1) {
    return [await call(inputs[0]!, signal, 0)];
  }
  const others = new AbortController();
  const stop = onAbort(signal, (reason) => others.abort(reason));
  const turns = new Turns();
  const replies: Promise<Reply>[] = [];
  try {
    for (const [i, input] of inputs.entries()) {
      if (turns.isOver) {
        await turns.next();
      }
      others.signal.throwIfAborted();
      const reply = call(input, others.signal, i);
      reply.catch((error: unknown) => others.abort(error));
      replies.push(reply);
    }
    return await Promise.all(replies);
  } finally {
    stop();
  }
}

/**
 * Lets one version make all calls: makes them again if a reload takes it away between two.
 *
 * @param local undefined if other nodes may make the calls
 * @param input chooses the version, with the options
 * @throws ServingUnavailableError in place of that for a serving whose rows must not run twice
 */
export async function byOneVersion<Replies>(
  local: Pick<LocalPart, 'distribution' | 'versionFor' | 'versionLabels'> | undefined,
  input: unknown,
  options: CallOptions,
  callAll: (options: CallOptions) => Promise<Replies>,
): Promise<Replies> {
  for (;;) {
    const version = local?.versionFor(input, options);
    try {
      return await callAll(version === undefined ? options : { ...options, version });
    } catch (error) {
      const isUnknown = error instanceof UnknownVersionError && version !== undefined;
      if (!isUnknown || !local || local.versionLabels.includes(version)) {
        throw error;
      }
      if (!local.distribution.idempotent) {
        throw new ServingUnavailableError(
          `Version "${version}" has ended between two rows of this request, which must not run twice; ` +
            'send it again if they may',
          { cause: error },
        );
      }
    }
  }
}

export class ListInParts {
  /** @param parts not empty */
  constructor(readonly parts: Iterable<readonly unknown[]>) {}

  toJSON(): string {
    found.push(this);
    return PLACE_OF_LIST;
  }
}

const PLACE_OF_LIST = randomUUID();
let found: ListInParts[] = [];

/** Writes JSON; other work gets a turn between parts of lists. */
export async function writeInTurns(value: unknown): Promise<readonly Buffer[]> {
  found = [];
  const text = JSON.stringify(value);
  const lists = found;
  const [first, ...others] = text.split(`"${PLACE_OF_LIST}"`);
  const turns = new Turns();
  const written = [Buffer.from(first!)];
  for (const [i, { parts }] of lists.entries()) {
    let open = '[';
    for (const part of parts) {
      written.push(Buffer.from(open + JSON.stringify(part).slice(1, -1)));
      open = ',';
      if (turns.isOver) {
        await turns.next();
      }
    }
    written.push(Buffer.from((open === '[' ? '[]' : ']') + others[i]!));
  }
  return written;
}
