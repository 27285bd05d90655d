import type { Observable } from 'rxjs';
import {
  InvalidServingError,
  type CallOptions,
  type StreamOptions,
  type ServingSession,
  type SessionOptions,
  currentOrigin,
  Serving,
  type ServingState,
  type ServingSignature,
  type ServingEvent,
  type StreamedOutput,
  type StreamEvent,
  ServingStream,
} from '../../../index.js';
import {
  onAbort,
  checkSessionOptions,
  DEFAULT_CALL_OPTIONS,
  type ResolvedCallOptions,
  resolveCallOptions,
  OrderedSession,
  CallRecorder,
  callInRequest,
  streamInRequest,
  type EventOf,
  EventHub,
  leave,
  readOnce,
  sourceOf,
} from '../../../doors/calls.js';
import { type RemotePreprocess } from '../../../doors/servings.js';
import type { Attempt, RemoteRequest } from './attempt.js';
import type { Method } from './exported-servings.js';
import type { Address } from '../transport.js';
import type { OutboundCalls } from './outbound-calls.js';
import { RemoteSessionHost } from './remote-session.js';
import { Failover, type FailoverOptions } from './failover.js';
import type { WireLimits } from '../wire/limits.js';
import { SentHeader } from '../wire/header.js';
import { encodeValue } from '../wire/values.js';
import type { FlowControlOptions } from './flow-control.js';

export interface RemoteCallOptions extends FailoverOptions {
  readonly outbound: OutboundCalls;
  readonly limits: WireLimits;
  /** Milliseconds. */
  readonly requestTimeout: number;
  readonly window: FlowControlOptions;
}

type RemoteStreamOptions = StreamOptions<string> & { readonly isSession?: true };

const MOST_ORIGINS = 16;

/** Sends calls unbatched. */
export class RemoteServing<Input = unknown, Output = unknown> extends Serving<Input, Output> {
  private readonly events = new EventHub();
  private readonly headers = {
    batchedRun: new Map<string, SentHeader>(),
    run: new Map<string, SentHeader>(),
  };
  readonly events$: Observable<ServingEvent> = this.events.all$;

  constructor(
    readonly name: string,
    private readonly options: RemoteCallOptions,
    private readonly preprocess?: RemotePreprocess,
    private readonly avoided?: Address,
  ) {
    super();
  }

  get state(): ServingState {
    return this.reason === undefined ? 'ready' : 'starting';
  }

  override get reason(): string | undefined {
    const { selector } = this.options;
    if (!selector.isOnline) {
      return 'the broker between the nodes cannot be reached';
    }
    return selector.candidates(this.name).length > 0
      ? undefined
      : 'no node that has it takes calls now';
  }

  override get signature(): ServingSignature | undefined {
    const candidates = this.options.selector.candidates(this.name);
    return candidates.map(({ status }) => status.signature).find((each) => each !== undefined);
  }

  override eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>> {
    return this.events.of(type);
  }

  override batchedRun(input: Input, options: CallOptions = {}): Promise<Output> {
    return callInRequest(options, (inside) => this.call('batchedRun', input, inside));
  }

  override run(input: Input, options: CallOptions = {}): Promise<Output> {
    return callInRequest(options, (inside) => this.call('run', input, inside));
  }

  override stream<Hook extends string = never>(
    input: Input,
    options: StreamOptions<Hook> = {},
  ): ServingStream<StreamEvent<StreamedOutput<Output>, Hook>> {
    const inside = streamInRequest(options);
    return new ServingStream(
      (left) => this.streamFrom(input, inside, left) as AsyncGenerator<never, undefined>,
    );
  }

  /** Sessions end with their first call's node. */
  override open(options: SessionOptions = {}): ServingSession<Input, Output> {
    const { name } = this;
    const { outbound, requestTimeout } = this.options;
    checkSessionOptions(name, options);
    const host = new RemoteSessionHost({
      serving: name,
      resolve: (input, own) => resolveCallOptions({ name }, input, own, requestTimeout),
      preprocess: (input, terms) =>
        this.preprocess ? this.preprocessed(input as Input, terms) : input,
      connect: (steps) =>
        this.eventsFrom(
          steps,
          { isSession: true, origin: currentOrigin(), version: options.version },
          { ...DEFAULT_CALL_OPTIONS, tenant: options.tenant ?? '', key: options.key },
        ),
      record: (signal) => CallRecorder.start(this.events, name, 'batched', signal),
      enter: () => outbound.enter(),
    });
    return new OrderedSession(0, options, host) as ServingSession<Input, Output>;
  }

  /** @throws InvalidServingError: each node loads its own versions */
  override async reload(): Promise<never> {
    throw new InvalidServingError(
      `Serving "${this.name}" runs on other nodes; reload it on the node that has it`,
    );
  }

  /** @throws InvalidServingError */
  override setBatchSize(): never {
    throw new InvalidServingError(
      `Serving "${this.name}" runs on other nodes; set its batch size there`,
    );
  }

  /** @throws InvalidServingError */
  override setBatchTimeout(): never {
    throw new InvalidServingError(
      `Serving "${this.name}" runs on other nodes; set its batch timeout there`,
    );
  }

  end(): void {
    this.events.complete();
  }

  private call(method: 'batchedRun' | 'run', input: Input, options: CallOptions): Promise<Output> {
    const mode = method === 'run' ? 'inline' : 'batched';
    const recorder = CallRecorder.start(this.events, this.name, mode, options.signal);
    const reply = this.replyTo(method, input, options, recorder);
    return recorder ? recorder.follow(reply) : reply;
  }

  private async replyTo(
    method: 'batchedRun' | 'run',
    input: Input,
    options: CallOptions,
    recorder: CallRecorder | undefined,
  ): Promise<Output> {
    const { name } = this;
    const terms = resolveCallOptions({ name }, input, options, this.options.requestTimeout);
    const prepared = this.preprocess ? await this.preprocessed(input, terms) : input;
    const request = this.requestOf(method, prepared, terms, options);
    recorder?.running();
    try {
      const attempt = await this.send(request, terms);
      return (await attempt.answer) as Output;
    } finally {
      request.release();
    }
  }

  /** Tries nodes until one begins to answer; then no other may. */
  private async send(request: RemoteRequest, terms: ResolvedCallOptions): Promise<Attempt> {
    const failover = new Failover(this.name, terms, this.options, this.avoided);
    for (;;) {
      const candidate = failover.pick() ?? (await failover.next());
      const attempt = this.options.outbound.begin(candidate.address, request);
      try {
        attempt.send(terms);
        await attempt.answer;
        return attempt;
      } catch (error) {
        failover.failed(candidate, error);
      }
    }
  }

  private async *streamFrom(
    input: Input,
    options: StreamOptions<string>,
    left: AbortSignal,
  ): AsyncGenerator<unknown, undefined> {
    const { name } = this;
    const stop = new AbortController();
    const recorder = CallRecorder.start(this.events, name, 'stream', stop.signal);
    const unsubscribers = [left, options.signal].map((signal) =>
      onAbort(signal, (reason) => stop.abort(reason)),
    );
    let outcome: { readonly error?: unknown } = {};
    try {
      const resolved = resolveCallOptions({ name }, input, options, undefined, true);
      const terms = { ...resolved, signal: stop.signal };
      const prepared = this.preprocess ? await this.preprocessed(input, terms) : input;
      yield* this.eventsFrom(prepared, options, terms, recorder);
      return undefined;
    } catch (error) {
      // Returning early is no error.
      outcome = left.aborted ? {} : { error };
      throw error;
    } finally {
      unsubscribers.forEach((unsubscribe) => unsubscribe());
      recorder?.ended(outcome);
    }
  }

  private async *eventsFrom(
    prepared: unknown,
    options: RemoteStreamOptions,
    terms: ResolvedCallOptions,
    recorder?: CallRecorder,
  ): AsyncGenerator<unknown, undefined> {
    const request = this.requestOf('stream', prepared, terms, options);
    recorder?.running();
    try {
      const attempt = await this.send(request, terms);
      try {
        for await (const event of attempt.events!) {
          yield event;
        }
        return undefined;
      } finally {
        attempt.leave();
      }
    } finally {
      request.release();
    }
  }

  private preprocessed(input: Input, terms: ResolvedCallOptions): Promise<unknown> {
    const { preprocess } = this;
    terms.signal?.throwIfAborted();
    readOnce(input);
    return this.options.outbound.preparing.for((async () => preprocess?.(input))(), terms);
  }

  /** Call `release` when no other node will get the request. */
  private requestOf(
    method: Method,
    input: unknown,
    terms: ResolvedCallOptions,
    options: RemoteStreamOptions,
  ): RemoteRequest & { readonly release: () => void } {
    const { name: serving } = this;
    const { outbound, limits } = this.options;
    const encode = (value: unknown) => encodeValue(value, limits);
    terms.signal?.throwIfAborted();
    if (!this.preprocess && !options.isSession) {
      readOnce(input);
    }
    // Arrays are sent whole, so we can resend them.
    const source = Array.isArray(input) ? undefined : sourceOf(input);
    const encoded = source ? undefined : encode(input);
    const header = this.headerOf(method, terms, options, source !== undefined);
    // Shutdown waits for a session's steps only.
    const exit = options.isSession ? undefined : outbound.enter();
    return {
      serving,
      method,
      header,
      deadline: terms.deadline,
      input: encoded,
      more: source && { source, encode },
      release: () => {
        exit?.();
        if (source) {
          leave(source);
        }
      },
    };
  }

  /** Omits defaults: the other node applies its own. */
  private headerOf(
    method: Method,
    { priority, tenant, key }: ResolvedCallOptions,
    { hooks, inline, isSession, version, origin = currentOrigin() }: RemoteStreamOptions,
    lazyInput: boolean,
  ): SentHeader {
    const { name: serving } = this;
    const hasOwn = priority || tenant || key !== undefined || version !== undefined;
    if (hasOwn || lazyInput || method === 'stream') {
      const window = method === 'stream' ? this.options.window : undefined;
      const rest = {
        hooks,
        inline,
        session: isSession,
        lazyInput: lazyInput || undefined,
        window,
      };
      return new SentHeader({
        serving,
        method,
        priority: priority || undefined,
        tenant: tenant || undefined,
        key,
        version,
        origin,
        ...rest,
      });
    }
    const headers = this.headers[method];
    const known = headers.get(origin);
    if (known) {
      return known;
    }
    const header = new SentHeader({ serving, method, origin });
    if (headers.size < MOST_ORIGINS) {
      headers.set(origin, header);
    }
    return header;
  }
}
