import { Injectable, type OnModuleInit } from '@nestjs/common';
import { AsyncSubject, EMPTY, merge, type Observable, switchMap } from 'rxjs';
import { BatchedMethods } from './batched/batched-methods.js';
import { InvalidServingError, UnknownServingError } from '../core/errors.js';
import { ServingRegistry } from './serving.registry.js';
import type { CallOptions, StreamOptions } from '../core/context/call-context.js';
import { checkEventType, type EventOf, type ServingCounters } from '../core/events/event-hub.js';
import { healthOf, type Serving, type ServingHealth } from '../core/serving/serving.js';
import type { ServingSession, SessionOptions } from '../core/execution/kept-states.js';
import type { ServingEvent } from '../core/events/serving-event.js';
import type { StreamedOutput, StreamEvent } from '../core/definition/reply.js';
import { formatValue } from '../core/format.js';
import type { ServingStream } from '../core/streaming/serving-stream.js';
import type { ServingOptions } from '../core/definition/serving-definition.js';

type NamedServing<Input, Output> = string | ServingOptions<Input, Output>;

/**
 * A serving of this application, or else of another node. `local`: only of this application;
 * `distributed`: of any node, this one included.
 */
export type ServingReference<Input, Output> =
  | NamedServing<Input, Output>
  | {
      /** A serving of this application. */
      readonly local: NamedServing<Input, Output>;
    }
  | {
      /** A serving of any node. */
      readonly distributed: NamedServing<Input, Output>;
    };

interface Reference {
  readonly name: string;
  readonly side?: 'local' | 'distributed' | undefined;
  readonly preprocess?: ((input: unknown) => unknown) | undefined;
}

/**
 * The reference may come from a client.
 *
 * @throws UnknownServingError when it can't be read
 */
function readReference(reference: unknown): Reference {
  try {
    return sided(reference) ?? named(reference, undefined);
  } catch (cause) {
    throw new UnknownServingError(
      `There is no serving ${formatValue(reference)}, whose name cannot be read`,
      { cause },
    );
  }
}

function sided(reference: unknown): Reference | undefined {
  if (typeof reference !== 'object' || reference === null || 'name' in reference) {
    return undefined;
  }
  if ('local' in reference) {
    return named(reference.local, 'local');
  }
  return 'distributed' in reference ? named(reference.distributed, 'distributed') : undefined;
}

function named(serving: unknown, side: Reference['side']): Reference {
  if (typeof serving !== 'object' || serving === null) {
    return { name: serving as string, side };
  }
  const { name, distribution } = serving as ServingOptions;
  const preprocess =
    distribution?.preprocess && ((input: unknown) => distribution.preprocess!(input));
  return { name, side, preprocess };
}

/** Calls servings by name. */
@Injectable()
export class ServingService implements OnModuleInit {
  private readonly initialised = new AsyncSubject<true>();

  /** Events of all servings and `@Batched()` methods; hot, and ends with them. */
  readonly events$: Observable<ServingEvent> = this.observed(
    () => this.methods.events.all$,
    ({ events$ }) => events$,
  );

  constructor(
    private readonly registry: ServingRegistry,
    private readonly methods: BatchedMethods,
  ) {}

  /** @internal */
  onModuleInit(): void {
    this.initialised.next(true);
    this.initialised.complete();
  }

  /**
   * One type's events. Costs less than all events: we make only observed ones.
   *
   * @throws InvalidServingError for a type of no event
   */
  eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>> {
    checkEventType(type);
    return this.observed(
      () => this.methods.events.of(type),
      (serving) => serving.eventsOf?.(type),
    );
  }

  /** Each serving's counters, by name or `Class.method`. */
  counters(): ReadonlyMap<string, ServingCounters> {
    const servings = [...this.registry.all.entries()].flatMap(([name, serving]) => {
      // A test's stand-in may count nothing.
      const counters = serving.counters?.();
      return counters ? [[name, counters] as const] : [];
    });
    return new Map([...this.methods.counters(), ...servings]);
  }

  /** True if every serving answers calls: for a readiness probe. */
  get isReady(): boolean {
    return this.health().every(({ isReady }) => isReady);
  }

  /**
   * Health of every serving and `@Batched()` method: if it answers calls, what fails and why, and
   * queued rows.
   */
  health(): readonly ServingHealth[] {
    // A test's stand-in may have no health.
    const servings = [...this.registry.all].map(([name, serving]) => healthOf(name, serving));
    return [...servings, ...this.methods.health()];
  }

  /**
   * The handle of a serving, or of a `@Batched()` method by `Class.method`, whose input is the list
   * of its arguments.
   *
   * @throws UnknownServingError for an unknown name; in a cluster, the handle's calls throw it
   */
  get<Input = unknown, Output = unknown>(
    serving: ServingReference<Input, Output>,
  ): Serving<Input, Output> {
    return this.find(serving) as Serving<Input, Output>;
  }

  /**
   * Runs rows in batches with concurrent callers' rows. See {@link Serving.batchedRun}. With a
   * name, give both types or none: `batchedRun<Input, Output>('digits', input)`.
   */
  batchedRun<Input = unknown, Output = unknown>(
    serving: ServingReference<Input, Output>,
    input: NoInfer<Input>,
    options?: CallOptions,
  ): Promise<Output> {
    return this.reply(serving, (found) => found.batchedRun(input, options));
  }

  /** Runs rows in their own batches. See {@link Serving.run}. */
  run<Input = unknown, Output = unknown>(
    serving: ServingReference<Input, Output>,
    input: NoInfer<Input>,
    options?: CallOptions,
  ): Promise<Output> {
    return this.reply(serving, (found) => found.run(input, options));
  }

  /** Streams the output. See {@link Serving.stream}. */
  stream<Input = unknown, Output = unknown, Hook extends string = never>(
    serving: ServingReference<Input, Output>,
    input: NoInfer<Input>,
    options?: StreamOptions<Hook>,
  ): ServingStream<StreamEvent<StreamedOutput<Output>, Hook>> {
    return this.get(serving).stream(input, options);
  }

  /** Opens a session, whose calls share a state. See {@link Serving.open}. */
  open<Input = unknown, Output = unknown>(
    serving: ServingReference<Input, Output>,
    options?: SessionOptions,
  ): ServingSession<Input, Output> {
    return this.get(serving).open(options);
  }

  private find(reference: unknown): Serving {
    const { registry } = this;
    const { router } = registry;
    const { name, side, preprocess }: Reference =
      typeof reference === 'string' ? { name: reference } : readReference(reference);
    const own = registry.all.get(name);
    const method = side === undefined && !own && this.methods.servings.get(name);
    if (method) {
      return method;
    }
    if (side === 'local') {
      return router?.isRemote(own) ? unknownHere(name) : (own ?? registry.get(name));
    }
    if (side === 'distributed') {
      return router ? router.remote(name, preprocess) : noCluster(name);
    }
    return router ? router.route(name, own, preprocess) : (own ?? registry.get(name));
  }

  /** Returns the serving's own promise; rejects for an unknown serving. */
  private reply<Input, Output>(
    serving: ServingReference<Input, Output>,
    call: (found: Serving<Input, Output>) => Promise<Output>,
  ): Promise<Output> {
    try {
      return Promise.resolve(call(this.find(serving) as Serving<Input, Output>));
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** Servings are known from `onModuleInit` on. A test's stand-in may have no events. */
  private observed<Event>(
    ofMethods: () => Observable<Event>,
    ofServing: (serving: Serving) => Observable<Event> | undefined,
  ): Observable<Event> {
    return this.initialised.pipe(
      switchMap(() =>
        merge(
          ofMethods(),
          ...[...this.registry.all.values()].map((serving) => ofServing(serving) ?? EMPTY),
        ),
      ),
    );
  }
}

function unknownHere(name: string): never {
  throw new UnknownServingError(
    `There is no serving ${formatValue(name)} in this application; other nodes have it`,
  );
}

function noCluster(name: string): never {
  throw new InvalidServingError(
    `Serving ${formatValue(name)} was called with { distributed }, and the application ` +
      'does not import ServingClusterModule',
  );
}
