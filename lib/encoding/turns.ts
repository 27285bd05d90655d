import { randomUUID } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';
import { type AbortSignalLike, onAbort } from '../core/context/call-context.js';

/** Milliseconds after which other work of the event loop gets a turn. */
const LENGTH = 4;

/** Cuts long work into turns of the event loop. */
export class Turns {
  private begin = performance.now();

  /** Ask before each piece of the work. */
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
 * Makes a call for each input. The first failure cancels the others.
 *
 * Calls tokenize when they start, so thousands of texts take seconds: they take turns.
 *
 * @param signal of the caller, who may leave
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

/** A list that `writeInTurns` writes part by part. */
export class ListInParts {
  /** @param parts which are not empty */
  constructor(readonly parts: Iterable<readonly unknown[]>) {}

  toJSON(): string {
    found.push(this);
    return PLACE_OF_LIST;
  }
}

const PLACE_OF_LIST = randomUUID();
/** Lists of the current text. */
let found: ListInParts[] = [];

/** Writes JSON, and gives other work its turn between the parts of lists. */
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
