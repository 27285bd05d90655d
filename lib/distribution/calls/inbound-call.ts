import { InvalidInputError, InvalidOutputError, messageOf } from '../../errors.js';
import type { AbortSignalLike, CallOptions, StreamOptions } from '../../context/call-options.js';
import { errorHeader, lostCallerHeader } from './attempt-error.js';
import { amountIn, type Header, textIn, textsIn, wholeIn } from '../wire/record-reader.js';
import {
  ReceiveWindow,
  grantedWindow,
  SendWindow,
  type FlowControlOptions,
} from './flow-control.js';
import { eventsOf, type ExportedServing, outputOf } from './exported-serving.js';
import type { Message, Messenger } from '../wire/messenger.js';
import { FrameError, Kind } from '../wire/prelude.js';
import type { WireLimits } from '../wire/limits.js';
import { encodeValue } from '../wire/values.js';

/** One call of another node, while it is under way. */
export class InboundCall {
  private readonly left = new CallerSignal();
  /** Of the output of a streamed call. */
  private window: SendWindow | undefined;
  /** Of a lazy input. */
  private readonly inputs: ReceiveWindow<unknown> | undefined;

  constructor(
    private readonly post: Messenger,
    private readonly id: number,
    private readonly request: Message,
    private readonly limits: WireLimits,
    private readonly windowLimits: FlowControlOptions,
  ) {
    this.inputs =
      request.header['open'] === true
        ? new ReceiveWindow(windowLimits, (taken) => void this.tell(Kind.inputCredit, { taken }))
        : undefined;
  }

  /** Runs the call and says how it ended; resolves when that is said, and never rejects. */
  async serve(offer: ExportedServing): Promise<void> {
    const { inputs, left } = this;
    const { header, value } = this.request;
    try {
      const method = textIn(header, 'method');
      const window =
        method === 'stream' ? new SendWindow(grantedWindow(header, this.windowLimits)) : undefined;
      this.window = window;
      const input = inputs ? this.openInput(inputs) : inputIn(value);
      const options = optionsIn(header, left);
      if (window) {
        await this.stream(
          eventsOf(offer, input, { ...options, ...streamOptionsIn(header) }),
          window,
        );
      } else {
        await this.sendOutput(
          Kind.reply,
          {},
          await outputOf(offer, method === 'run' ? 'run' : 'batchedRun', input, options),
        );
      }
    } catch (error) {
      await this.tell(
        Kind.error,
        errorHeader(error instanceof FrameError ? invalid(error) : error),
      );
    } finally {
      this.window?.close();
    }
  }

  /**
   * @throws FrameError when it makes no sense or exceeds the window. The call has ended then, and
   * its caller is answered with an error.
   */
  hear(letter: Message): void {
    if (this.left.aborted) {
      return;
    }
    try {
      this.read(letter);
    } catch (error) {
      this.fail(invalid(error));
      throw error;
    }
  }

  /** An element of its input cannot be taken. */
  refuse(error: unknown): void {
    this.inputs?.fail(invalid(error));
  }

  /** Answers its caller with the error, and ends the call. */
  fail(error: unknown): void {
    void this.tell(Kind.error, errorHeader(error));
    this.leave();
  }

  /** Its caller waits no more. */
  leave(): void {
    this.left.abort();
    this.window?.close();
    this.inputs?.fail(this.left.reason);
  }

  /**
   * Its caller seems to be lost. Should it only have been silent, or cut off for a moment, it is to
   * hear that it waits in vain.
   */
  lose(): void {
    void this.tell(Kind.error, lostCallerHeader());
    this.leave();
  }

  private read({ kind, header, bytes, value }: Message): void {
    const { window, inputs } = this;
    if (kind === Kind.credit && window) {
      window.take(wholeIn(header, 'taken'));
    } else if (kind === Kind.cancel) {
      this.leave();
    } else if (kind === Kind.input && inputs) {
      inputs.push(wholeIn(header, 'index'), value, bytes);
    } else if (kind === Kind.inputEnd && inputs) {
      inputs.end(wholeIn(header, 'count'));
    } else {
      throw new FrameError(`A frame of kind ${kind} is no part of such a call`);
    }
  }

  /** The caller is asked for no more than is read of it. */
  private openInput(inputs: ReceiveWindow<unknown>): AsyncIterable<unknown> {
    // The first says that it is wanted at all, and the last that no more is.
    const sendFrame = (header: object): void => void this.tell(Kind.inputCredit, header);
    return {
      [Symbol.asyncIterator]: () => {
        sendFrame({ taken: 0, window: this.windowLimits });
        return {
          next: () => inputs.next(),
          return: () => {
            sendFrame({});
            return Promise.resolve({ done: true, value: undefined });
          },
        };
      },
    };
  }

  /** The serving is asked for no more than the caller has room for. */
  private async stream(events: AsyncIterable<unknown>, window: SendWindow): Promise<void> {
    for await (const event of events) {
      if (!(await window.room())) {
        return;
      }
      window.add(await this.sendOutput(Kind.chunk, { index: window.sent }, event));
    }
    await this.tell(Kind.end, { count: window.sent });
  }

  /**
   * Sends an output; gives the bytes that were sent.
   *
   * @throws InvalidOutputError when it cannot be sent
   */
  private async sendOutput(kind: Kind, header: object, output: unknown): Promise<number> {
    try {
      return await this.post.send(
        this.request.from,
        kind,
        { call: this.id, ...header },
        encodeValue(output, this.limits),
      );
    } catch (cause) {
      throw new InvalidOutputError(
        `The output cannot be sent to another node: ${messageOf(cause)}`,
        { cause },
      );
    }
  }

  /** Nobody hears it where the caller has gone, and that is known elsewhere. */
  private async tell(kind: Kind, header: object): Promise<void> {
    if (!this.left.aborted) {
      await this.post.send(this.request.from, kind, { call: this.id, ...header }).catch(() => {});
    }
  }
}

/** What the caller has sent makes no sense. */
function invalid(cause: unknown): InvalidInputError {
  return new InvalidInputError(messageOf(cause), { cause });
}

function inputIn(value: () => unknown): unknown {
  try {
    return value();
  } catch (cause) {
    throw new InvalidInputError(`The input cannot be read: ${messageOf(cause)}`, { cause });
  }
}

function streamOptionsIn(header: Header): Pick<StreamOptions<string>, 'hooks' | 'inline'> {
  return { hooks: textsIn(header, 'hooks') ?? [], inline: header['inline'] === true };
}

function optionsIn(header: Header, signal: AbortSignalLike): CallOptions {
  const timeout = amountIn(header, 'timeout');
  const priority = header['priority'] as number | undefined;
  const tenant = textIn(header, 'tenant');
  const key = textIn(header, 'key');
  const origin = textIn(header, 'origin') ?? 'rpc';
  return { timeout, priority, tenant, key, origin, signal };
}

/**
 * Says that the caller of one call waits no more. Making a real AbortSignal for each would cost
 * more than to read its frame.
 */
export class CallerSignal implements AbortSignalLike {
  aborted = false;
  reason: unknown;
  private readonly listeners = new Set<() => void>();

  abort(): void {
    if (this.aborted) {
      return;
    }
    this.aborted = true;
    this.reason = new DOMException('The caller on the other node waits no more', 'AbortError');
    this.listeners.forEach((listener) => listener());
    this.listeners.clear();
  }

  throwIfAborted(): void {
    if (this.aborted) {
      throw this.reason;
    }
  }

  addEventListener(_: 'abort', listener: () => void): void {
    this.listeners.add(listener);
  }

  removeEventListener(_: 'abort', listener: () => void): void {
    this.listeners.delete(listener);
  }
}
