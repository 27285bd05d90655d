import type { CallState } from './call-table.js';
import {
  InvalidInputError,
  InvalidOutputError,
  ServingClosedError,
  type StreamOptions,
} from '../../../index.js';
import { type AbortSignalLike, INTERNAL, type InternalCallOptions } from '../../../doors/calls.js';
import { messageOf } from '../../../doors/text.js';
import { errorHeader, lostCallerHeader, packetsLostError } from './attempt-error.js';
import {
  type Header,
  optionalStringIn,
  optionalStringsIn,
  SentHeader,
  wholeIn,
} from '../wire/header.js';
import {
  ReceiveWindow,
  grantedWindow,
  SendWindow,
  type FlowControlOptions,
} from './flow-control.js';
import { eventsOf, type ExportedServing, outputOf } from './exported-servings.js';
import type { Address } from '../transport.js';
import type { Message, Messenger } from '../wire/messenger.js';
import { FrameError, Kind } from '../wire/prelude.js';
import type { WireLimits } from '../wire/limits.js';
import { encodeValue } from '../wire/values.js';
import { outcomesOf } from './remote-session.js';

export class InboundCall {
  readonly call: number;
  readonly caller: Address;
  hasLeft = false;
  private readonly signal = new CallerSignal();
  private isOld = false;
  private isInputOpen = false;
  private window: SendWindow | undefined;
  private readonly inputs: ReceiveWindow<unknown> | undefined;

  constructor(
    private readonly messenger: Messenger,
    private readonly request: Message,
    private readonly limits: WireLimits,
    private readonly windowLimits: FlowControlOptions,
  ) {
    this.call = request.call;
    this.caller = request.from;
    this.inputs =
      request.header['lazyInput'] === true
        ? new ReceiveWindow(windowLimits, (taken) => void this.send(Kind.inputCredit, { taken }))
        : undefined;
  }

  get isOver(): boolean {
    return this.signal.aborted;
  }

  /** Resolves with the error, if any, once the answer was sent; never rejects. */
  async run(exported: ExportedServing): Promise<unknown> {
    const { inputs, request } = this;
    try {
      const method = optionalStringIn(request.header, 'method');
      const input = inputs ? this.openInput(inputs) : inputIn(request.value);
      if (method === 'stream') {
        await this.stream(exported, input);
      } else {
        // Zero-copy is safe: we encode immediately, unless `postprocess` reads it.
        const options = optionsIn(request, this.signal, !exported.postprocess);
        const sent = this.sendOutput(
          Kind.reply,
          undefined,
          await outputOf(exported, method === 'run' ? 'run' : 'batchedRun', input, options),
        );
        if (typeof sent !== 'number') {
          await sent;
        }
      }
      return undefined;
    } catch (error) {
      const failure = error instanceof FrameError ? invalidInputError(error) : error;
      await this.send(Kind.error, errorHeader(failure));
      return failure;
    } finally {
      this.window?.close();
    }
  }

  /** @throws FrameError, which ends the call */
  receive(message: Message): void {
    if (this.signal.aborted) {
      return;
    }
    try {
      this.read(message);
    } catch (error) {
      this.fail(invalidInputError(error));
      throw error;
    }
  }

  refuse(error: unknown): void {
    this.inputs?.fail(invalidInputError(error));
  }

  fail(error: unknown): void {
    void this.send(Kind.error, errorHeader(error));
    this.cancel();
  }

  /** Skips the first unprompted report: most calls end before the second. */
  state(isAsked: boolean): CallState | undefined {
    const { call, window, inputs, isOld, isInputOpen } = this;
    this.isOld = true;
    return isOld || isAsked
      ? [call, window?.sent ?? 0, isInputOpen ? (inputs?.acknowledged ?? 0) : -1]
      : undefined;
  }

  compare([, acknowledged, sent]: CallState): void {
    const { inputs, request } = this;
    this.window?.acknowledge(acknowledged);
    if (inputs && (sent < 0 ? !inputs.hasEnded : sent > inputs.received)) {
      const serving = optionalStringIn(request.header, 'serving') ?? '';
      this.fail(packetsLostError(serving, this.caller).error);
    }
  }

  cancel(): void {
    this.signal.abort();
    this.window?.close();
    this.inputs?.fail(this.signal.reason);
  }

  drain(): void {
    if (this.request.header['session'] === true) {
      this.inputs?.fail(new ServingClosedError('The node is shutting down, and ends its sessions'));
    }
  }

  /** The caller may only have been silent. */
  lose(): void {
    void this.send(Kind.error, lostCallerHeader());
    this.cancel();
  }

  private read({ kind, header, bytes, value }: Message): void {
    const { window, inputs } = this;
    if (kind === Kind.credit && window) {
      window.acknowledge(wholeIn(header, 'taken'));
    } else if (kind === Kind.cancel) {
      this.cancel();
    } else if (kind === Kind.input && inputs) {
      inputs.push(wholeIn(header, 'index'), value, bytes);
    } else if (kind === Kind.inputEnd && inputs) {
      inputs.end(wholeIn(header, 'count'));
    } else {
      throw new FrameError(`A frame of kind ${kind} does not belong to such a call`);
    }
  }

  private openInput(inputs: ReceiveWindow<unknown>): AsyncIterable<unknown> {
    const sendCredit = (header: object): void => void this.send(Kind.inputCredit, header);
    return {
      [Symbol.asyncIterator]: () => {
        this.isInputOpen = true;
        sendCredit({ taken: 0, window: this.windowLimits });
        return {
          next: () => inputs.next(),
          return: () => {
            sendCredit({});
            return Promise.resolve({ done: true, value: undefined });
          },
        };
      },
    };
  }

  private async stream(exported: ExportedServing, input: unknown): Promise<void> {
    const { header } = this.request;
    const window = new SendWindow(grantedWindow(header, this.windowLimits));
    this.window = window;
    const options = { ...optionsIn(this.request, this.signal, false), ...streamOptionsIn(header) };
    const events =
      header['session'] === true && this.inputs
        ? outcomesOf(exported, input as AsyncIterable<unknown>, options, (error) =>
            this.fail(error),
          )
        : eventsOf(exported, input, options);
    for await (const event of events) {
      if (!(await window.room())) {
        return;
      }
      const index = new SentHeader({ index: window.sent });
      window.add(await this.sendOutput(Kind.chunk, index, event));
    }
    await this.send(Kind.end, { count: window.sent });
  }

  /** @throws InvalidOutputError for an output that can't be sent */
  private sendOutput(
    kind: Kind,
    header: SentHeader | undefined,
    output: unknown,
  ): number | Promise<number> {
    const { messenger, limits, request } = this;
    const { from, call } = request;
    try {
      const value = encodeValue(output, limits);
      const sent = messenger.send(from, { kind, call, header, value, of: this });
      return typeof sent === 'number' ? sent : sent.catch(unsentOutput);
    } catch (cause) {
      return unsentOutput(cause);
    }
  }

  private async send(kind: Kind, header: object): Promise<void> {
    const { messenger, request, signal } = this;
    if (!signal.aborted) {
      const { from, call } = request;
      await messenger.trySend(from, { kind, call, header: new SentHeader(header) });
    }
  }
}

function unsentOutput(cause: unknown): never {
  throw new InvalidOutputError(`The output cannot be sent to another node: ${messageOf(cause)}`, {
    cause,
  });
}

function invalidInputError(cause: unknown): InvalidInputError {
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
  return { hooks: optionalStringsIn(header, 'hooks') ?? [], inline: header['inline'] === true };
}

function optionsIn(
  { header, timeout }: Message,
  signal: AbortSignalLike,
  zeroCopy: boolean,
): InternalCallOptions {
  return {
    // The serving's own timeout is the default.
    timeout: timeout === Infinity ? undefined : timeout,
    priority: header['priority'] as number | undefined,
    tenant: optionalStringIn(header, 'tenant'),
    key: optionalStringIn(header, 'key'),
    version: optionalStringIn(header, 'version'),
    origin: optionalStringIn(header, 'origin') ?? 'rpc',
    signal,
    [INTERNAL]: { zeroCopy },
  };
}

/** A real AbortSignal costs more than reading the call's frame. */
class CallerSignal implements AbortSignalLike {
  aborted = false;
  reason: unknown;
  private listeners: Set<() => void> | undefined;

  abort(): void {
    if (this.aborted) {
      return;
    }
    this.aborted = true;
    this.reason = new DOMException(
      'The caller on the other node has cancelled the call',
      'AbortError',
    );
    const { listeners } = this;
    this.listeners = undefined;
    listeners?.forEach((listener) => listener());
  }

  throwIfAborted(): void {
    if (this.aborted) {
      throw this.reason;
    }
  }

  /** The core's `onAbort`, cheaper than a listener. */
  onAbort(listener: () => void): () => void {
    this.addEventListener('abort', listener);
    return () => this.removeEventListener('abort', listener);
  }

  addEventListener(_: 'abort', listener: () => void): void {
    (this.listeners ??= new Set()).add(listener);
  }

  removeEventListener(_: 'abort', listener: () => void): void {
    this.listeners?.delete(listener);
  }
}
