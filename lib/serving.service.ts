import { Inject, Injectable, type OnModuleInit } from '@nestjs/common';
import { AsyncSubject, EMPTY, merge, type Observable, switchMap } from 'rxjs';
import { BatchedMethods } from './batched/batched-methods.js';
import type { Cluster } from './distribution/cluster.js';
import { InvalidServingError, UnknownServingError } from './errors.js';
import type { PartitionStatus } from './partitions/partition-status.js';
import { CLUSTER } from './serving.cluster.js';
import { ServingRegistry } from './serving-registry.js';
import type { CallOptions, StreamOptions } from './serving/call-options.js';
import { healthOf, type ServingHealth } from './serving/health.js';
import type { Serving } from './serving/serving.js';
import type { ServingOptions } from './serving/serving-definition.js';
import type { ServingEvent } from './serving/serving-event.js';
import type { EventOf } from './serving/serving-events.js';
import type { StreamEvent } from './serving/stream-event.js';
import { show } from './show.js';
import type { ServingStream } from './streaming/serving-stream.js';

/** A serving by name, or by its definition, which also gives its types. */
export type NamedServing<Input, Output> = string | ServingOptions<Input, Output>;

/**
 * A serving: that of this application if it has one, else that of another node; `local`: only that of this application; `distributed`: by
 * way of the cluster, which may lead back here.
 */
export type ServingReference<Input, Output> =
  | NamedServing<Input, Output>
  | { readonly local: NamedServing<Input, Output> }
  | { readonly distributed: NamedServing<Input, Output> };

/** Calls servings by name. */
@Injectable()
export class ServingService implements OnModuleInit {
  private readonly initialised = new AsyncSubject<true>();

  /** What happens inside all servings and `@Batched()` methods of the application; hot, and ends with them. */
  readonly events$: Observable<ServingEvent> = this.observed(
    () => this.methods.events.all$,
    ({ events$ }) => events$,
  );

  constructor(
    private readonly registry: ServingRegistry,
    private readonly methods: BatchedMethods,
    @Inject(CLUSTER) private readonly cluster: Cluster | undefined,
  ) {}

  onModuleInit(): void {
    this.initialised.next(true);
    this.initialised.complete();
  }

  /** The events of one type; costs less than all of them, since nothing is made that nobody observes. */
  eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>> {
    return this.observed(
      () => this.methods.events.of(type),
      (serving) => serving.eventsOf?.(type),
    );
  }

  /** How many rows wait now, by the name of the serving or `Class.method`. */
  queueDepths(): ReadonlyMap<string, number> {
    // A handle that a test puts in place of a serving may be without a queue.
    const servings = [...this.registry.all.values()].flatMap((serving) => [...(serving.queueDepths?.() ?? [])]);
    return new Map([...this.methods.queueDepths(), ...servings]);
  }

  /** How the partitions of every serving are now, by the name of the serving. */
  partitionsByName(): ReadonlyMap<string, readonly PartitionStatus[]> {
    // A handle that a test puts in place of a serving may be without partitions.
    return new Map([...this.registry.all.values()].flatMap((serving) => [...(serving.partitionsByName?.() ?? [])]));
  }

  /** Whether every serving answers calls: what a readiness probe asks. */
  get isReady(): boolean {
    return this.health().every(({ isReady }) => isReady);
  }

  /** How every serving is: whether it answers calls, what of it does not work and why, what waits. */
  health(): readonly ServingHealth[] {
    return [...this.registry.all.entries()].map(([name, serving]) => healthOf(name, serving));
  }

  /**
   * The handle of a serving.
   *
   * @throws UnknownServingError when there is none of that name; where there are other nodes, not before it is called
   */
  get<Input = unknown, Output = unknown>(serving: ServingReference<Input, Output>): Serving<Input, Output> {
    return this.find(serving as ServingReference<never, never>) as Serving<Input, Output>;
  }

  /** Runs the rows of the input in batches with those of concurrent callers. See {@link Serving.batchedRun}. */
  batchedRun<Input = unknown, Output = unknown>(
    serving: ServingReference<Input, Output>,
    input: Input,
    options?: CallOptions,
  ): Promise<Output> {
    return this.reply(serving, (found) => found.batchedRun(input, options));
  }

  /** Runs the input alone and at once. See {@link Serving.run}. */
  run<Input = unknown, Output = unknown>(
    serving: ServingReference<Input, Output>,
    input: Input,
    options?: CallOptions,
  ): Promise<Output> {
    return this.reply(serving, (found) => found.run(input, options));
  }

  /** Gives the output as it comes. See {@link Serving.stream}. */
  stream<Input = unknown, Output = unknown, Hook extends string = never>(
    serving: ServingReference<Input, Output>,
    input: Input,
    options?: StreamOptions<Hook>,
  ): ServingStream<StreamEvent<Output, Hook>> {
    return this.get(serving).stream(input, options);
  }

  private find(reference: ServingReference<never, never>): Serving {
    const { registry, cluster } = this;
    const local = sideOf(reference, 'local');
    if (local !== undefined) {
      const name = nameOf(local);
      return cluster?.isRemote(registry.find(name)) ? unknownHere(name) : registry.get(name);
    }
    const distributed = sideOf(reference, 'distributed');
    if (distributed !== undefined) {
      const name = nameOf(distributed);
      if (!cluster) {
        throw new InvalidServingError(
          `Serving ${show(name)} was called with { distributed }, and ServingModule.forRoot has no option "distribution"`,
        );
      }
      return cluster.serving(name, preprocessingOf(distributed));
    }
    const name = nameOf(reference as NamedServing<never, never>);
    return cluster ? cluster.route(name, registry.find(name), preprocessingOf(reference)) : registry.get(name);
  }

  /** The very promise of the serving, which knows what becomes of it; of one that is not there, a rejected one. */
  private reply<Input, Output>(
    serving: ServingReference<Input, Output>,
    call: (found: Serving<Input, Output>) => Promise<Output>,
  ): Promise<Output> {
    try {
      return Promise.resolve(call(this.get(serving)));
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** The servings are known from `onModuleInit` on. A handle that a test puts in place of a serving may be without events. */
  private observed<Event>(
    ofMethods: () => Observable<Event>,
    ofServing: (serving: Serving) => Observable<Event> | undefined,
  ): Observable<Event> {
    return this.initialised.pipe(
      switchMap(() => merge(ofMethods(), ...[...this.registry.all.values()].map((serving) => ofServing(serving) ?? EMPTY))),
    );
  }
}

/** What is to name a serving may come from anywhere. */
function nameOf(serving: string | { readonly name: string }): string {
  try {
    return typeof serving === 'object' && serving !== null ? serving.name : serving;
  } catch (cause) {
    throw new UnknownServingError(`There is no serving ${show(serving)}, whose name cannot be read`, { cause });
  }
}

/** The serving that is to be called on that side alone, if the reference says so. */
function sideOf(reference: unknown, side: 'local' | 'distributed'): NamedServing<never, never> | undefined {
  const isSided = typeof reference === 'object' && reference !== null && Object.hasOwn(reference, side) && !('name' in reference);
  return isSided ? (reference as Record<string, NamedServing<never, never>>)[side] : undefined;
}

/** A definition says what is done to the input on the caller's side. */
function preprocessingOf(reference: unknown): ((input: unknown) => unknown) | undefined {
  const { distributedPreprocessing } = (typeof reference === 'object' ? reference : {}) as Partial<ServingOptions>;
  return distributedPreprocessing && ((input) => distributedPreprocessing(input));
}

function unknownHere(name: string): never {
  throw new UnknownServingError(`There is no serving ${show(name)} in this application; other nodes own it`);
}
