import { isA } from '../../errors.js';
import { leave, type Source } from '../../streaming/source.js';
import {
  AttemptError,
  errorIn,
  nodeLostError,
  invalidAnswerError,
  notSentError,
} from './attempt-error.js';
import { type Header, wholeIn } from '../wire/record-reader.js';
import {
  ReceiveWindow,
  grantedWindow,
  SendWindow,
  type FlowControlOptions,
} from './flow-control.js';
import type { Method } from './exported-serving.js';
import type { Message, Messenger } from '../wire/messenger.js';
import { type Address, NodeGoneError } from '../transport.js';
import { FrameError, Kind } from '../wire/prelude.js';
import type { EncodedValue } from '../wire/values.js';

/** What one node is asked. */
export interface RemoteRequest {
  readonly serving: string;
  readonly method: Method;
  /** The header of the request of this number, at the moment when it is sent. */
  readonly header: (call: number) => object;
  readonly input: EncodedValue | undefined;
  /** The input goes on: a lazy sequence, and what makes frames of its elements. */
  readonly more?:
    | { readonly source: Source<unknown>; readonly encode: (element: unknown) => EncodedValue }
    | undefined;
}

/** One call to one node: what it was asked, and what it has answered. */
export class Attempt {
  /**
   * The only answer of a call, or that of a stream when it ends. Rejects with a
   * {@link AttemptError}, or with the reason of the caller's.
   */
  readonly answer: Promise<unknown>;
  /** What comes before the end of a stream; of a call that is none, nothing. */
  readonly events: ReceiveWindow<unknown> | undefined;
  isOver = false;
  /** For a lazy input. */
  private window: SendWindow | undefined;
  private resolve!: (value: unknown) => void;
  private reject!: (error: unknown) => void;
  private request: Promise<unknown> = Promise.resolve();
  /** Something of a lazy input was taken, and cannot be taken again. */
  private hasTakenInput = false;

  constructor(
    private readonly id: number,
    private readonly post: Messenger,
    readonly node: Address,
    private readonly question: RemoteRequest,
    private readonly limits: FlowControlOptions,
    private readonly ended: (attempt: Attempt) => void,
  ) {
    this.answer = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    if (question.method === 'stream') {
      this.events = new ReceiveWindow(limits, (taken) => this.sendFrame(Kind.credit, { taken }));
      // Who reads the events hears of it there.
      this.answer.catch(() => {});
    }
  }

  send(): void {
    const { node, question, post, id } = this;
    const header = question.header(id);
    const granting = this.events ? { ...header, window: this.limits } : header;
    this.request = post.send(node, Kind.request, granting, question.input);
    this.request.catch((cause: unknown) => this.fail(notSentError(question.serving, node, cause)));
  }

  /** The call is over, for whatever reason: the node need not go on. */
  fail(error: unknown): void {
    if (this.isOver) {
      return;
    }
    this.end();
    this.events?.fail(error);
    this.reject(error);
    if (!isA(error, AttemptError)) {
      this.sendFrame(Kind.cancel, {});
    }
  }

  /** The node has gone. */
  lose(mayHaveRun: 'no' | 'unknown'): void {
    if (!this.isOver) {
      this.fail(this.withoutRetry(nodeLostError(this.question.serving, this.node, mayHaveRun)));
      // It may only have been silent for long, and would go on with what nobody waits for.
      this.sendFrame(Kind.cancel, {});
    }
  }

  /** @throws FrameError when it makes no sense; the call has failed then */
  hear(letter: Message): void {
    try {
      this.read(letter);
    } catch (error) {
      if (error instanceof FrameError) {
        this.refuse(error);
      }
      throw error;
    }
  }

  /** What the node has answered cannot be taken. */
  refuse(error: FrameError): void {
    this.sendFrame(Kind.cancel, {});
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
    this.window?.close();
    this.ended(this);
  }

  /** The first credit asks for the lazy input. One without a number says that no more is wanted. */
  private receiveInputCredit(header: Header): void {
    const { more } = this.question;
    if (header['taken'] === undefined) {
      this.window?.close();
    } else if (more && !this.window) {
      this.hasTakenInput = true;
      this.window = new SendWindow(grantedWindow(header, this.limits));
      void this.sendInput(more, this.window);
    } else {
      this.window?.take(wholeIn(header, 'taken'));
    }
  }

  /** A lazy input is asked for no more than the node has room for. */
  private async sendInput(
    { source, encode }: NonNullable<RemoteRequest['more']>,
    window: SendWindow,
  ): Promise<void> {
    const { question, node, post, id } = this;
    try {
      while (await window.room()) {
        const next = await source.next();
        if (next.done) {
          await post.send(node, Kind.inputEnd, { call: id, count: window.sent });
          return;
        }
        window.add(
          await post.send(node, Kind.input, { call: id, index: window.sent }, encode(next.value)),
        );
      }
    } catch (error) {
      this.fail(
        error instanceof NodeGoneError
          ? this.withoutRetry(notSentError(question.serving, node, error))
          : error,
      );
    }
    leave(source);
  }

  /** What was taken of a lazy input cannot be given to another node. */
  private withoutRetry(fault: AttemptError): AttemptError {
    return this.hasTakenInput ? new AttemptError(fault.error, 'yes', fault.isUnreachable) : fault;
  }

  /**
   * After the request, which may still be on its way out. What cannot be said need not be: the node
   * has gone, and that is heard elsewhere.
   */
  private sendFrame(kind: Kind, header: object): void {
    this.request
      .then(() => this.post.send(this.node, kind, { call: this.id, ...header }))
      .catch(() => {});
  }
}
