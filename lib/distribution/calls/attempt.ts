import type { CallState } from './call-checks.js';
import { isA } from '../../errors.js';
import { onCancel, type ResolvedCallOptions } from '../../execution/resolved-call-options.js';
import { leave, type Source } from '../../streaming/source.js';
import {
  AttemptError,
  errorIn,
  nodeLostError,
  invalidAnswerError,
  notSentError,
  packetsLostError,
} from './attempt-error.js';
import { type Header, wholeIn } from '../wire/record-reader.js';
import {
  ReceiveWindow,
  grantedWindow,
  SendWindow,
  type FlowControlOptions,
} from './flow-control.js';
import type { Method } from './exported-servings.js';
import type { Message, Messenger } from '../wire/messenger.js';
import { type Address, NodeGoneError } from '../transport.js';
import { SentHeader } from '../wire/header.js';
import { FrameError, Kind } from '../wire/prelude.js';
import type { EncodedValue } from '../wire/values.js';

/** The request of a call, the same for every node. */
export interface RemoteRequest {
  readonly serving: string;
  readonly method: Method;
  readonly header: SentHeader;
  /** The time until which the caller waits, in milliseconds of `performance.now()`. */
  readonly deadline: number;
  readonly input: EncodedValue | undefined;
  /** A lazy input, whose elements are sent one by one. */
  readonly more?:
    | { readonly source: Source<unknown>; readonly encode: (element: unknown) => EncodedValue }
    | undefined;
}

/** One request to one node, and its answer. */
export class Attempt {
  /**
   * The output, or undefined at the end of a stream. Rejects with an {@link AttemptError}, or with
   * the reason for which the caller has cancelled.
   */
  readonly answer: Promise<unknown>;
  /** The events of a stream; undefined for other calls. */
  readonly events: ReceiveWindow<unknown> | undefined;
  isOver = false;
  /** Whether a part of the request was sent. */
  hasLeft = false;
  /** Limits the elements of a lazy input that are in flight. */
  private window: SendWindow | undefined;
  private resolve!: (value: unknown) => void;
  private reject!: (error: unknown) => void;
  /** Whether the request was sent whole. */
  private isThere = false;
  /** Whether it was before the last check. */
  private wasThere = false;
  private hasEndedInput = false;
  /** The sending of the request, where it takes time. */
  private leaving: Promise<unknown> | undefined;
  private removeCancel = (): void => {};
  /** A lazy input cannot be read a second time for another node. */
  private hasReadInput = false;

  constructor(
    /** Its number. */
    readonly call: number,
    private readonly messenger: Messenger,
    readonly node: Address,
    private readonly request: RemoteRequest,
    private readonly limits: FlowControlOptions,
    private readonly ended: (attempt: Attempt) => void,
  ) {
    this.answer = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    if (request.method === 'stream') {
      this.events = new ReceiveWindow(limits, (taken) =>
        this.sendFrame(Kind.credit, new SentHeader({ taken })),
      );
      // The reader of the events gets the same error.
      this.answer.catch(() => {});
    }
  }

  /** Sends the request, unless the call is cancelled; ends the attempt when it is later. */
  send(terms: ResolvedCallOptions): void {
    const { node, request, messenger, call } = this;
    this.removeCancel = onCancel(terms, (reason) => this.fail(reason));
    if (this.isOver) {
      this.removeCancel();
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

  /** Ends the attempt with the error, and cancels the call on the node. */
  fail(error: unknown): void {
    if (this.isOver) {
      return;
    }
    this.end();
    this.events?.fail(error);
    this.reject(error);
    if (!isA(error, AttemptError)) {
      this.sendFrame(Kind.cancel);
    }
  }

  /** Ends the attempt when nobody reads its answer any more. */
  leave(): void {
    if (!this.isOver) {
      this.fail(new DOMException('The stream is not read any more', 'AbortError'));
    }
  }

  /** The node is lost. */
  lose(mayHaveRun: 'no' | 'unknown'): void {
    if (!this.isOver) {
      const { request, node, hasLeft } = this;
      const outcome = hasLeft ? mayHaveRun : 'no';
      this.fail(this.withoutRetry(nodeLostError(request.serving, node, outcome)));
      // The node may only have been silent, and would go on with a call that nobody waits for.
      this.sendFrame(Kind.cancel);
    }
  }

  /** The state of the call for a check of its node; undefined before the second check. */
  state(): CallState | undefined {
    const { call, events, window, wasThere, hasEndedInput } = this;
    this.wasThere = this.isThere;
    const inputs = window?.sent ?? 0;
    return wasThere
      ? [call, events?.acknowledged ?? 0, hasEndedInput ? -1 - inputs : inputs]
      : undefined;
  }

  /** Compares with what the node knows of the call. */
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

  /** @throws FrameError for a malformed answer, which fails the attempt */
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

  /** Fails the attempt for an answer that cannot be read. */
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
    this.end();
    this.resolve(value);
  }

  private end(): void {
    this.isOver = true;
    this.removeCancel();
    this.window?.close();
    this.ended(this);
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

  /** Reads no more of a lazy input than the node has room for. */
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

  /** Sends after the request, which may still be leaving. */
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
