import { type CallState, CallTable, encodeStates, statesIn } from './call-table.js';
import {
  OverloadedError,
  RequestTooLargeError,
  ServingClosedError,
  ServingUnavailableError,
  UnknownServingError,
} from '../../../index.js';
import { Waits } from '../../../doors/calls.js';
import { formatValue } from '../../../doors/text.js';
import { type MayHaveRun, errorHeader } from './attempt-error.js';
import { optionalStringIn, SentHeader } from '../wire/header.js';
import type { ExportedServing } from './exported-servings.js';
import type { Message, MessageHead, Messenger } from '../wire/messenger.js';
import { InboundCall } from './inbound-call.js';
import type { Address } from '../transport.js';
import { type FrameError, Kind } from '../wire/prelude.js';
import type { WireLimits } from '../wire/limits.js';
import type { FlowControlOptions } from './flow-control.js';

interface InboundCallsOptions {
  readonly messenger: Messenger;
  readonly limits: WireLimits;
  readonly window: FlowControlOptions;
  readonly maxCalls: number;
  readonly find: (serving: string) => ExportedServing | undefined;
  readonly onRefused: () => void;
}

const MOST_IDLE = 256;

export class InboundCalls {
  private readonly calls = new Map<Address, CallTable<InboundCall>>();
  private readonly counts = new Map<string, number>();
  private running = 0;
  private notifyIdle: (() => void) | undefined;
  private readonly jsonCalls = new Waits();
  private isDraining = false;

  constructor(private readonly options: InboundCallsOptions) {}

  count(serving: string): number {
    return this.counts.get(serving) ?? 0;
  }

  get isDrained(): boolean {
    return this.isDraining && this.running === 0;
  }

  /** Ends sessions; resolves when other calls are answered. */
  async drain(): Promise<void> {
    this.isDraining = true;
    this.calls.forEach((ofCaller) => ofCaller.all().forEach((call) => call.drain()));
    if (this.running > 0) {
      await new Promise<void>((resolve) => (this.notifyIdle = resolve));
    }
  }

  receive(message: Message): void {
    const { kind, from, call } = message;
    if (kind === Kind.request) {
      this.begin(message);
    } else if (kind === Kind.check) {
      this.check(message);
    } else {
      // Finished calls ignore messages.
      this.calls.get(from)?.get(call)?.receive(message);
    }
  }

  report(): void {
    for (const [caller, calls] of this.calls) {
      const states = calls.all().map((call) => call.state(false));
      this.sendStatus(
        caller,
        states.filter((state) => state !== undefined),
      );
    }
  }

  /** Another node may accept the request. */
  refuse({ kind, from, call }: MessageHead, error: FrameError): void {
    if (kind === Kind.request) {
      this.refuseRequest(
        from,
        call,
        new RequestTooLargeError(`A node cannot take the call: ${error.message}`, { cause: error }),
      );
    } else {
      this.calls.get(from)?.get(call)?.refuse(error);
    }
  }

  lose(address: Address): void {
    const ofCaller = this.calls.get(address);
    ofCaller?.all().forEach((call) => call.lose());
    if (ofCaller?.size === 0) {
      this.calls.delete(address);
    }
  }

  close(error: Error): void {
    this.jsonCalls.end(error);
    this.calls.forEach((ofCaller) => ofCaller.all().forEach((call) => call.fail(error)));
  }

  loseAll(): void {
    this.calls.forEach((_, address) => this.lose(address));
  }

  /** @throws the refusal or the call's error */
  async take<T>(name: string, call: (exported: ExportedServing) => Promise<T>): Promise<T> {
    const exported = this.options.find(name);
    const refusal = this.refusal(name, exported);
    if (refusal || !exported) {
      throw refusal;
    }
    this.began(name);
    try {
      return await this.jsonCalls.for(call(exported));
    } finally {
      this.ended(name);
    }
  }

  private check({ from, value }: Message): void {
    const calls = this.calls.get(from);
    const states = statesIn(value()).map((known): CallState => {
      const call = calls?.get(known[0]);
      call?.compare(known);
      return call?.state(true) ?? [known[0], -1, -1];
    });
    this.sendStatus(from, states);
  }

  private sendStatus(to: Address, states: readonly CallState[]): void {
    if (states.length > 0) {
      const value = encodeStates(states);
      void this.options.messenger.trySend(to, { kind: Kind.status, value });
    }
  }

  private begin(message: Message): void {
    const { messenger, limits, window, find } = this.options;
    const { from, header, call: id } = message;
    const name = optionalStringIn(header, 'serving') ?? '';
    const exported = find(name);
    const refusal = this.refusal(name, exported);
    if (refusal || !exported) {
      this.refuseRequest(from, id, refusal);
      this.options.onRefused();
      return;
    }
    const ofCaller = this.callsOf(from);
    const call = new InboundCall(messenger, message, limits, window);
    ofCaller.add(call);
    this.began(name);
    void this.follow(name, call, ofCaller, exported);
  }

  private async follow(
    name: string,
    call: InboundCall,
    ofCaller: CallTable<InboundCall>,
    exported: ExportedServing,
  ): Promise<void> {
    const failure = await call.run(exported);
    if (failure instanceof ServingUnavailableError) {
      this.options.onRefused();
    }
    ofCaller.remove(call);
    this.ended(name);
    if (ofCaller.size === 0 && this.calls.size > MOST_IDLE) {
      this.calls.delete(call.caller);
    }
  }

  private callsOf(caller: Address): CallTable<InboundCall> {
    let calls = this.calls.get(caller);
    if (!calls) {
      calls = new CallTable();
      this.calls.set(caller, calls);
    }
    return calls;
  }

  private began(name: string): void {
    this.running++;
    this.counts.set(name, this.count(name) + 1);
  }

  private ended(name: string): void {
    this.counts.set(name, this.count(name) - 1);
    if (--this.running === 0) {
      this.notifyIdle?.();
    }
  }

  private refuseRequest(to: Address, call: number, refusal: Error | undefined): void {
    const header = new SentHeader(errorHeader(refusal, 'no' satisfies MayHaveRun));
    void this.options.messenger.trySend(to, { kind: Kind.error, call, header });
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
    return this.running >= maxCalls
      ? new OverloadedError(
          `${maxCalls} calls of other nodes have no answer yet, and "limits.calls" of ` +
            'ServingClusterModule allows no more',
          { retryAfter: 1 },
        )
      : undefined;
  }
}
