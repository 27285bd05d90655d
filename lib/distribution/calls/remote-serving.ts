import type { Observable } from 'rxjs';
import { InvalidServingError } from '../../errors.js';
import { type CallOptions, onAbort, type StreamOptions } from '../../context/call-options.js';
import {
  type ResolvedCallOptions,
  orCancelled,
  onCancel,
  resolveCallOptions,
  untilCancelled,
} from '../../execution/resolved-call-options.js';
import { CallRecorder } from '../../events/call-recorder.js';
import { callInRequest, streamInRequest } from '../../context/request-scope.js';
import { currentOrigin } from '../../context/caller-context.js';
import { Serving, type ServingState } from '../../serving/serving.js';
import type { RemotePreprocess } from '../../serving/serving-router.js';
import type { ServingEvent } from '../../events/serving-event.js';
import { type EventOf, EventHub } from '../../events/event-hub.js';
import type { StreamEvent } from '../../definition/reply.js';
import { ServingStream } from '../../streaming/serving-stream.js';
import { leave, readOnce, sourceOf } from '../../streaming/source.js';
import type { Attempt, RemoteRequest } from './attempt.js';
import type { Method } from './exported-serving.js';
import type { OutboundCalls } from './outbound-calls.js';
import { type Routes, Failover, type FailoverOptions } from './failover.js';
import type { WireLimits } from '../wire/limits.js';
import { encodeValue } from '../wire/values.js';

/** What a remote serving works with. */
export interface RemoteCallOptions extends FailoverOptions {
  readonly routes: Routes;
  readonly outgoing: OutboundCalls;
  readonly limits: WireLimits;
  /** Milliseconds in which a call must be answered that names none itself. */
  readonly requestTimeout: number;
}

/** A serving that other nodes own: each call goes, unbatched, to one of them. */
export class RemoteServing<Input = unknown, Output = unknown> extends Serving<Input, Output> {
  private readonly events = new EventHub();
  readonly events$: Observable<ServingEvent> = this.events.all$;

  constructor(
    readonly name: string,
    private readonly way: RemoteCallOptions,
    private readonly preprocess?: RemotePreprocess,
  ) {
    super();
  }

  /** `ready` when a node is known that answers calls. */
  get state(): ServingState {
    return this.way.routes.owners(this.name).length > 0 ? 'ready' : 'starting';
  }

  override get reason(): string | undefined {
    return this.state === 'ready' ? undefined : 'no node that has it takes calls now';
  }

  override eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>> {
    return this.events.of(type);
  }

  override batchedRun(input: Input, options: CallOptions = {}): Promise<Output> {
    return callInRequest(options, (inside) => this.watched('batchedRun', input, inside));
  }

  override run(input: Input, options: CallOptions = {}): Promise<Output> {
    return callInRequest(options, (inside) => this.watched('run', input, inside));
  }

  override stream<Hook extends string = never>(
    input: Input,
    options: StreamOptions<Hook> = {},
  ): ServingStream<StreamEvent<Output, Hook>> {
    const inside = streamInRequest(options);
    return new ServingStream(
      (left) => this.streamFrom(input, inside, left) as AsyncGenerator<never, undefined>,
    );
  }

  /** @throws InvalidServingError always: what its batches are like is for its owners to say */
  override setBatchSize(): never {
    throw new InvalidServingError(
      `Serving "${this.name}" runs on other nodes; set its batch size there`,
    );
  }

  /** @throws InvalidServingError always: what its batches are like is for its owners to say */
  override setBatchTimeout(): never {
    throw new InvalidServingError(
      `Serving "${this.name}" runs on other nodes; set its batch timeout there`,
    );
  }

  /** Nothing more happens here. */
  end(): void {
    this.events.complete();
  }

  private watched(
    method: 'batchedRun' | 'run',
    input: Input,
    options: CallOptions,
  ): Promise<Output> {
    const watch = CallRecorder.start(
      this.events,
      this.name,
      method === 'run' ? 'inline' : 'batched',
      options.signal,
    );
    const answer = this.answer(method, input, options, watch);
    return watch ? watch.follow(answer) : answer;
  }

  private async answer(
    method: Method,
    input: Input,
    options: CallOptions,
    watch?: CallRecorder,
  ): Promise<Output> {
    const terms = resolveCallOptions({ name: this.name }, input, options, this.way.requestTimeout);
    const { question, done } = await this.question(method, input, terms, options);
    watch?.running();
    try {
      const tries = this.tries(terms);
      for (;;) {
        const owner = await tries.next();
        const attempt = this.way.outgoing.begin(owner.address, question);
        try {
          return (await untilCancelled(
            terms,
            attempt,
            () => attempt.send(),
            attempt.answer,
          )) as Output;
        } catch (error) {
          tries.failed(owner, error);
        }
      }
    } finally {
      done();
    }
  }

  private async *streamFrom(
    input: Input,
    options: StreamOptions<string>,
    left: AbortSignal,
  ): AsyncGenerator<unknown, undefined> {
    const stop = new AbortController();
    const watch = CallRecorder.start(this.events, this.name, 'stream', stop.signal);
    const unheard = [left, options.signal].map((signal) =>
      onAbort(signal, (reason) => stop.abort(reason)),
    );
    let outcome: { readonly error?: unknown } = {};
    try {
      const terms = {
        ...resolveCallOptions({ name: this.name }, input, options, undefined, true),
        signal: stop.signal,
      };
      yield* this.eventsFrom(input, options, terms, watch);
      return undefined;
    } catch (error) {
      // Whoever leaves early has what he wanted.
      outcome = left.aborted ? {} : { error };
      throw error;
    } finally {
      unheard.forEach((end) => end());
      watch?.ended(outcome);
    }
  }

  private async *eventsFrom(
    input: Input,
    options: StreamOptions<string>,
    terms: ResolvedCallOptions,
    watch: CallRecorder | undefined,
  ): AsyncGenerator<unknown, void> {
    const { question, done } = await this.question('stream', input, terms, options);
    watch?.running();
    try {
      const tries = this.tries(terms);
      for (;;) {
        const owner = await tries.next();
        const attempt = this.way.outgoing.begin(owner.address, question);
        try {
          for await (const event of eventsOf(attempt, terms)) {
            tries.delivered();
            yield event;
          }
          return;
        } catch (error) {
          tries.failed(owner, error);
        }
      }
    } finally {
      done();
    }
  }

  private tries(terms: ResolvedCallOptions): Failover {
    return new Failover(this.name, terms, this.way.routes, this.way);
  }

  /** What each node is asked, the same for all; `done` when none will be any more. */
  private async question(
    method: Method,
    input: Input,
    terms: ResolvedCallOptions,
    { hooks, inline, origin = currentOrigin() }: StreamOptions<string>,
  ): Promise<{ readonly question: RemoteRequest; readonly done: () => void }> {
    const { name, preprocess, way } = this;
    terms.signal?.throwIfAborted();
    readOnce(input);
    const { preparing } = way.outgoing;
    const prepared = preprocess
      ? await orCancelled(terms, preparing.add((async () => preprocess(input))()))
      : input;
    const encode = (value: unknown) => encodeValue(value, way.limits);
    // An array of batches can be sent as it is, and again.
    const source = Array.isArray(prepared) ? undefined : sourceOf(prepared);
    const encoded = source ? undefined : encode(prepared);
    const { priority, tenant, key, deadline } = terms;
    const exit = way.outgoing.enter();
    const timeout = () =>
      deadline === Infinity ? undefined : Math.max(0, Math.ceil(deadline - performance.now()));
    return {
      question: {
        serving: name,
        method,
        // What goes without saying is not said: the owner may know better whose call it is.
        header: (call) => ({
          call,
          serving: name,
          method,
          priority: priority || undefined,
          tenant: tenant || undefined,
          key,
          timeout: timeout(),
          origin,
          hooks,
          inline,
          open: source && true,
        }),
        input: encoded,
        more: source && { source, encode },
      },
      done: () => {
        exit();
        if (source) {
          leave(source);
        }
      },
    };
  }
}

/** What the node gives, until the call is to end. Who leaves early ends it there, too. */
async function* eventsOf(
  attempt: Attempt,
  terms: ResolvedCallOptions,
): AsyncGenerator<unknown, void> {
  const stop = onCancel(terms, (reason) => attempt.fail(reason));
  try {
    if (!attempt.isOver) {
      attempt.send();
    }
    yield* attempt.events!;
  } finally {
    stop();
    attempt.fail(new DOMException('The stream is not read any more', 'AbortError'));
  }
}
