import {
  OverloadedError,
  RequestTooLargeError,
  ServingClosedError,
  UnknownServingError,
} from '../../errors.js';
import { formatValue } from '../../format.js';
import { type MayHaveRun, errorHeader } from './attempt-error.js';
import { optionalStringIn, wholeIn } from '../wire/record-reader.js';
import type { ExportedServing } from './exported-serving.js';
import type { Message, Messenger } from '../wire/messenger.js';
import { InboundCall } from './inbound-call.js';
import type { Address } from '../transport.js';
import { type FrameError, Kind } from '../wire/prelude.js';
import type { WireLimits } from '../wire/limits.js';
import { Waits } from '../../execution/resolved-call-options.js';
import type { FlowControlOptions } from './flow-control.js';

export interface InboundCallsOptions {
  readonly messenger: Messenger;
  readonly limits: WireLimits;
  readonly window: FlowControlOptions;
  /** The most calls at a time. */
  readonly maxCalls: number;
  /** The serving of that name, when other nodes may call it. */
  readonly find: (serving: string) => ExportedServing | undefined;
}

/** The calls of other nodes, and of clients with JSON messages, that have no answer yet. */
export class InboundCalls {
  private readonly calls = new Map<Address, Map<number, InboundCall>>();
  private readonly counts = new Map<string, number>();
  private readonly runs = new Set<Promise<void>>();
  private readonly jsonCalls = new Waits();
  private isDraining = false;

  constructor(private readonly options: InboundCallsOptions) {}

  /** The calls of the serving that have no answer yet. */
  count(serving: string): number {
    return this.counts.get(serving) ?? 0;
  }

  /** Whether every call is answered, and new ones are refused. */
  get isDrained(): boolean {
    return this.isDraining && this.runs.size === 0;
  }

  /** Refuses new calls; resolves when all others are answered. */
  async drain(): Promise<void> {
    this.isDraining = true;
    while (this.runs.size > 0) {
      await Promise.all(this.runs);
    }
  }

  receive(message: Message): void {
    const { kind, from, header } = message;
    const id = wholeIn(header, 'call');
    if (kind === Kind.request) {
      this.begin(id, message);
    } else {
      // Messages of a call that is over are ignored.
      this.calls.get(from)?.get(id)?.receive(message);
    }
  }

  /** Refuses a message that cannot be read; another node may take such a request. */
  refuse(
    { kind, from, header }: Pick<Message, 'kind' | 'from' | 'header'>,
    error: FrameError,
  ): void {
    const id = wholeIn(header, 'call');
    if (kind === Kind.request) {
      this.refuseRequest(
        from,
        id,
        new RequestTooLargeError(`A node cannot take the call: ${error.message}`, { cause: error }),
      );
    } else {
      this.calls.get(from)?.get(id)?.refuse(error);
    }
  }

  /** The node seems to be lost. */
  lose(address: Address): void {
    this.calls.get(address)?.forEach((call) => call.lose());
  }

  /** Answers all calls with the error. */
  close(error: Error): void {
    this.jsonCalls.end(error);
    this.calls.forEach((ofCaller) => ofCaller.forEach((call) => call.fail(error)));
  }

  loseAll(): void {
    this.calls.forEach((_, address) => this.lose(address));
  }

  /**
   * Runs a call with a JSON message.
   *
   * @throws the refusal, or the error of the call
   */
  async take<T>(name: string, call: (exported: ExportedServing) => Promise<T>): Promise<T> {
    const exported = this.options.find(name);
    const refusal = this.refusal(name, exported);
    if (refusal || !exported) {
      throw refusal;
    }
    const answer = this.jsonCalls.for(call(exported));
    this.follow(name, answer);
    return answer;
  }

  private begin(id: number, message: Message): void {
    const { messenger, limits, window, find } = this.options;
    const { from, header } = message;
    const name = optionalStringIn(header, 'serving') ?? '';
    const exported = find(name);
    const refusal = this.refusal(name, exported);
    if (refusal || !exported) {
      this.refuseRequest(from, id, refusal);
      return;
    }
    const call = new InboundCall(messenger, id, message, limits, window);
    const ofCaller = this.calls.get(from) ?? new Map<number, InboundCall>();
    this.calls.set(from, ofCaller.set(id, call));
    this.follow(name, call.run(exported), () => {
      ofCaller.delete(id);
      if (ofCaller.size === 0) {
        this.calls.delete(from);
      }
    });
  }

  /** Counts the call until it is answered. */
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

  private refuseRequest(to: Address, id: number, refusal: Error | undefined): void {
    void this.options.messenger
      .send(to, Kind.error, { call: id, ...errorHeader(refusal, 'no' satisfies MayHaveRun) })
      .catch(() => {});
  }

  private refusal(name: string, exported: ExportedServing | undefined): Error | undefined {
    const { maxCalls } = this.options;
    if (!exported) {
      return new UnknownServingError(`This node has no serving ${formatValue(name)}`);
    }
    if (this.isDraining) {
      return new ServingClosedError('This node is shutting down and takes no more calls');
    }
    const { state } = exported.serving;
    if (state !== 'ready') {
      return new ServingClosedError(`Serving "${name}" is ${state} on this node`);
    }
    return this.runs.size >= maxCalls
      ? new OverloadedError(
          `${maxCalls} calls of other nodes have no answer yet, and "limits.calls" of ` +
            'ServingClusterModule allows no more',
          { retryAfter: 1 },
        )
      : undefined;
  }
}
