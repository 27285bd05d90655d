import type { CallState } from './call-table.js';
import { onCancel, type ResolvedCallOptions, leave, type Source } from '../../../doors/calls.js';
import { isA } from '../../../doors/text.js';
import {
  AttemptError,
  errorIn,
  nodeLostError,
  invalidAnswerError,
  notSentError,
  packetsLostError,
} from './attempt-error.js';
import { type Header, SentHeader, wholeIn } from '../wire/header.js';
import {
  ReceiveWindow,
  grantedWindow,
  SendWindow,
  type FlowControlOptions,
} from './flow-control.js';
import type { Method } from './exported-servings.js';
import type { Message, Messenger } from '../wire/messenger.js';
import { type Address, NodeGoneError } from '../transport.js';
import { FrameError, Kind } from '../wire/prelude.js';
import type { EncodedValue } from '../wire/values.js';

export interface RemoteRequest {
  readonly serving: string;
  readonly method: Method;
  readonly header: SentHeader;
  /** Milliseconds of `performance.now()`. */
  readonly deadline: number;
  readonly input: EncodedValue | undefined;
  readonly more?:
    | { readonly source: Source<unknown>; readonly encode: (element: unknown) => EncodedValue }
    | undefined;
}

/** `failed`: by the node; `left`: by this process. */
export type Outcome = 'answered' | 'failed' | 'left';

export class Attempt {
  readonly startedAt = performance.now();
  /**
   * The output, or undefined once a stream begins or ends. Rejects with an {@link AttemptError} or
   * the caller's reason.
   */
  readonly answer: Promise<unknown>;
  readonly events: ReceiveWindow<unknown> | undefined;
  isOver = false;
  /** True once partly sent. */
  hasLeft = false;
  private window: SendWindow | undefined;
  private resolve!: (value: unknown) => void;
  private reject!: (error: unknown) => void;
  /** True once wholly sent. */
  private isThere = false;
  private wasThere = false;
  private hasEndedInput = false;
  private leaving: Promise<unknown> | undefined;
  private removeCancel: (() => void) | undefined;
  /** A lazy input can't be read again. */
  private hasReadInput = false;

  constructor(
    readonly call: number,
    private readonly messenger: Messenger,
    readonly node: Address,
    private readonly request: RemoteRequest,
    private readonly limits: FlowControlOptions,
    private readonly ended: (attempt: Attempt, outcome: Outcome) => void,
  ) {
    this.answer = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    if (request.method === 'stream') {
      this.events = new ReceiveWindow(limits, (taken) =>
        this.sendFrame(Kind.credit, new SentHeader({ taken })),
      );
    }
  }

  get serving(): string {
    return this.request.serving;
  }

  send(terms: ResolvedCallOptions): void {
    const { node, request, messenger, call } = this;
    this.removeCancel = onCancel(terms, (reason) => this.fail(reason));
    if (this.isOver) {
      this.removeCancel?.();
      return;
    }
    const { header, deadline, input: value } = request;
    try {
      const message = { kind: Kind.request, call, deadline, header, value, of: this };
      const sent = messenger.send(node, message);
      if (typeof sent !== 'number') {
        this.leaving = sent;
        sent.then(
          () => (this.isThere = true),
          (cause: unknown) => this.fail(notSentError(request.serving, node, cause)),
        );
      } else {
        this.isThere = true;
      }
    } catch (cause) {
      this.fail(notSentError(request.serving, node, cause));
    }
  }

  /** Cancels the call on the node, except for an {@link AttemptError}. */
  fail(error: unknown): void {
    if (this.isOver) {
      return;
    }
    const isOfAttempt = isA(error, AttemptError);
    this.end(isOfAttempt ? 'failed' : 'left');
    this.events?.fail(isOfAttempt ? error.error : error);
    this.reject(error);
    if (!isOfAttempt) {
      this.sendFrame(Kind.cancel);
    }
  }

  leave(): void {
    if (!this.isOver) {
      this.fail(new DOMException('The stream is not read any more', 'AbortError'));
    }
  }

  lose(mayHaveRun: 'no' | 'unknown'): void {
    if (!this.isOver) {
      const { request, node, hasLeft } = this;
      const outcome = hasLeft ? mayHaveRun : 'no';
      this.fail(this.withoutRetry(nodeLostError(request.serving, node, outcome)));
      // A silent node would continue the call.
      this.sendFrame(Kind.cancel);
    }
  }

  /** Undefined until sent for a whole check interval. */
  state(): CallState | undefined {
    const { call, events, window, wasThere, hasEndedInput } = this;
    this.wasThere = this.isThere;
    const inputs = window?.sent ?? 0;
    return wasThere
      ? [call, events?.acknowledged ?? 0, hasEndedInput ? -1 - inputs : inputs]
      : undefined;
  }

  compare([, sent, inputs]: CallState): void {
    const { events, window, request, node } = this;
    const isInputLost = inputs >= 0 && request.more !== undefined && !this.hasReadInput;
    if (sent < 0 || sent > (events?.received ?? 0) || isInputLost) {
      this.fail(this.withoutRetry(packetsLostError(request.serving, node)));
      this.sendFrame(Kind.cancel);
    } else if (inputs > 0) {
      window?.acknowledge(inputs);
    }
  }

  /** @throws FrameError, which also fails the attempt */
  receive(message: Message): void {
    try {
      this.read(message);
    } catch (error) {
      if (error instanceof FrameError) {
        this.refuse(error);
      }
      throw error;
    }
  }

  refuse(error: FrameError): void {
    this.sendFrame(Kind.cancel);
    this.fail(invalidAnswerError(this.node, error));
  }

  private read({ kind, header, bytes, value }: Message): void {
    const { events } = this;
    if (kind === Kind.reply && !events) {
      this.succeed(value());
    } else if (kind === Kind.chunk && events) {
      events.push(wholeIn(header, 'index'), value, bytes);
      this.resolve(undefined);
    } else if (kind === Kind.end && events) {
      events.end(wholeIn(header, 'count'));
      this.succeed(undefined);
    } else if (kind === Kind.error) {
      this.fail(this.withoutRetry(errorIn(header)));
    } else if (kind === Kind.inputCredit) {
      this.receiveInputCredit(header);
    } else {
      throw new FrameError(
        `A frame of kind ${kind} does not answer a ${events ? 'streamed call' : 'call'}`,
      );
    }
  }

  private succeed(value: unknown): void {
    this.end('answered');
    this.resolve(value);
  }

  private end(outcome: Outcome): void {
    this.isOver = true;
    this.removeCancel?.();
    this.window?.close();
    this.ended(this, outcome);
  }

  /** The first credit requests the lazy input; one without a number ends it. */
  private receiveInputCredit(header: Header): void {
    const { more } = this.request;
    if (header['taken'] === undefined) {
      this.window?.close();
    } else if (more && !this.window) {
      this.hasReadInput = true;
      this.window = new SendWindow(grantedWindow(header, this.limits));
      void this.sendInput(more, this.window);
    } else {
      this.window?.acknowledge(wholeIn(header, 'taken'));
    }
  }

  private async sendInput(
    { source, encode }: NonNullable<RemoteRequest['more']>,
    window: SendWindow,
  ): Promise<void> {
    const { request, node, messenger, call } = this;
    try {
      while (await window.room()) {
        const next = await source.next();
        const header = new SentHeader(next.done ? { count: window.sent } : { index: window.sent });
        if (next.done) {
          this.hasEndedInput = true;
          await messenger.send(node, { kind: Kind.inputEnd, call, header });
          return;
        }
        const value = encode(next.value);
        window.add(await messenger.send(node, { kind: Kind.input, call, header, value }));
      }
    } catch (error) {
      this.fail(
        error instanceof NodeGoneError
          ? this.withoutRetry(notSentError(request.serving, node, error))
          : error,
      );
    }
    leave(source);
  }

  private withoutRetry(failure: AttemptError): AttemptError {
    const { error, isUnreachable } = failure;
    return this.hasReadInput ? new AttemptError(error, 'yes', isUnreachable) : failure;
  }

  private sendFrame(kind: Kind, header?: SentHeader): void {
    const send = (): unknown =>
      this.messenger.trySend(this.node, { kind, call: this.call, header });
    if (this.leaving) {
      this.leaving.then(send, () => {});
    } else {
      send();
    }
  }
}
