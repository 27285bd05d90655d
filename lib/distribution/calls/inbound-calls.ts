import {
  OverloadedError,
  RequestTooLargeError,
  ServingClosedError,
  UnknownServingError,
} from '../../errors.js';
import { formatValue } from '../../format.js';
import { type MayHaveRun, errorHeader } from './attempt-error.js';
import { textIn, wholeIn } from '../wire/record-reader.js';
import type { ExportedServing } from './exported-serving.js';
import type { Message, Messenger } from '../wire/messenger.js';
import { InboundCall } from './inbound-call.js';
import type { Address } from '../transport.js';
import { type FrameError, Kind } from '../wire/prelude.js';
import type { WireLimits } from '../wire/limits.js';
import { UntilClosed } from '../until-closed.js';
import type { FlowControlOptions } from './flow-control.js';

export interface InboundCallsOptions {
  readonly post: Messenger;
  readonly limits: WireLimits;
  readonly window: FlowControlOptions;
  /** The most calls at a time. */
  readonly most: number;
  /** What this node offers under that name. */
  readonly offer: (serving: string) => ExportedServing | undefined;
}

/** The calls of others that are under way here: of nodes, and of clients that are none. */
export class InboundCalls {
  private readonly calls = new Map<Address, Map<number, InboundCall>>();
  private readonly counts = new Map<string, number>();
  private readonly runs = new Set<Promise<void>>();
  /** The calls that have come by another way than frames. */
  private readonly plain = new UntilClosed();
  private isDraining = false;

  constructor(private readonly options: InboundCallsOptions) {}

  /** The calls of the serving that are under way here. */
  count(serving: string): number {
    return this.counts.get(serving) ?? 0;
  }

  /** Whether every call that was taken has its answer, and none will be taken any more. */
  get isDrained(): boolean {
    return this.isDraining && this.runs.size === 0;
  }

  /**
   * Calls that come from now on are to go elsewhere; resolves when those that are here have ended.
   */
  async drain(): Promise<void> {
    this.isDraining = true;
    while (this.runs.size > 0) {
      await Promise.all(this.runs);
    }
  }

  hear(letter: Message): void {
    const { kind, from, header } = letter;
    const id = wholeIn(header, 'call');
    if (kind === Kind.request) {
      this.begin(id, letter);
    } else {
      // Of a call that is over nothing more is to be heard.
      this.calls.get(from)?.get(id)?.hear(letter);
    }
  }

  /**
   * A call, or an element of its input, has come that cannot be taken here; a call perhaps
   * elsewhere.
   */
  refuse(
    { kind, from, header }: Pick<Message, 'kind' | 'from' | 'header'>,
    error: FrameError,
  ): void {
    const id = wholeIn(header, 'call');
    if (kind === Kind.request) {
      this.answerNo(
        from,
        id,
        new RequestTooLargeError(`A node cannot take the call: ${error.message}`, { cause: error }),
      );
    } else {
      this.calls.get(from)?.get(id)?.refuse(error);
    }
  }

  /** Nobody seems to wait there for anything any more. */
  lose(address: Address): void {
    this.calls.get(address)?.forEach((call) => call.lose());
  }

  /** Answers all calls that are left with the error. */
  close(error: Error): void {
    this.plain.close(error);
    this.calls.forEach((ofCaller) => ofCaller.forEach((call) => call.fail(error)));
  }

  loseAll(): void {
    this.calls.forEach((_, address) => this.lose(address));
  }

  /**
   * Makes a call that has come by another way than frames.
   *
   * @throws what refuses it, or what the call rejects with
   */
  async take<T>(name: string, call: (offer: ExportedServing) => Promise<T>): Promise<T> {
    const offer = this.options.offer(name);
    const refusal = this.refusal(name, offer);
    if (refusal || !offer) {
      throw refusal;
    }
    const answer = this.plain.add(call(offer));
    this.follow(name, answer);
    return answer;
  }

  private begin(id: number, letter: Message): void {
    const { post, limits, window } = this.options;
    const { from, header } = letter;
    const name = textIn(header, 'serving') ?? '';
    const offer = this.options.offer(name);
    const refusal = this.refusal(name, offer);
    if (refusal || !offer) {
      this.answerNo(from, id, refusal);
      return;
    }
    const call = new InboundCall(post, id, letter, limits, window);
    const ofCaller = this.calls.get(from) ?? new Map<number, InboundCall>();
    this.calls.set(from, ofCaller.set(id, call));
    this.follow(name, call.serve(offer), () => {
      ofCaller.delete(id);
      if (ofCaller.size === 0) {
        this.calls.delete(from);
      }
    });
  }

  /** Counts the call until it has been answered, however that may be. */
  private follow(name: string, answer: Promise<unknown>, ended?: () => void): void {
    const end = (): void => {
      this.runs.delete(run);
      this.counts.set(name, this.count(name) - 1);
      ended?.();
    };
    const run = answer.then(end, end);
    this.runs.add(run);
    this.counts.set(name, this.count(name) + 1);
  }

  /** The call did not run here. */
  private answerNo(to: Address, id: number, refusal: Error | undefined): void {
    void this.options.post
      .send(to, Kind.error, { call: id, ...errorHeader(refusal, 'no' satisfies MayHaveRun) })
      .catch(() => {});
  }

  private refusal(name: string, offer: ExportedServing | undefined): Error | undefined {
    const { most } = this.options;
    if (!offer) {
      return new UnknownServingError(`This node has no serving ${formatValue(name)}`);
    }
    if (this.isDraining) {
      return new ServingClosedError('This node shuts down and takes no more calls');
    }
    if (offer.serving.state !== 'ready') {
      return new ServingClosedError(`Serving "${name}" is ${offer.serving.state} on this node`);
    }
    return this.runs.size >= most
      ? new OverloadedError(
          `${most} calls of others are under way here, and "limits.calls" of the option ` +
            '"distribution" allows no more',
          { retryAfter: 1 },
        )
      : undefined;
  }
}
