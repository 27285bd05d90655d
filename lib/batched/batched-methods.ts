import {
  type BeforeApplicationShutdown,
  Injectable,
  type OnApplicationShutdown,
  type OnModuleInit,
} from '@nestjs/common';
import { DiscoveryService } from '@nestjs/core';
import type { Batcher } from '../batching/batcher.js';
import { UnknownServingError } from '../errors.js';
import { ServingRegistry } from '../serving.registry.js';
import { CallRecorder } from '../events/call-recorder.js';
import type { AbortSignalLike, CallOptions } from '../context/call-options.js';
import { Counters, type ServingCounters } from '../events/counters.js';
import { resolveCallOptions, untilCancelled } from '../execution/resolved-call-options.js';
import { currentOrigin } from '../context/caller-context.js';
import { shutdownOf } from '../definition/option-rules.js';
import { EventHub } from '../events/event-hub.js';
import { Shutdown } from '../serving/shutdown.js';
import { Waits } from '../serving/waits.js';
import { formatValue } from '../format.js';
import {
  type BatchedMethod,
  type BatchedOptions,
  batcherOf,
  MethodCall,
  type OfArguments,
  batchedMethodsOf,
  METHODS,
  MethodLanes,
} from './batched-method.js';
import { checkBatchedMethod, checkScope } from './batched-check.js';

/** A method at work. */
interface Running {
  readonly name: string;
  readonly batcher: Batcher<MethodCall>;
  readonly lanes: MethodLanes;
  readonly shutdown: Shutdown;
  readonly shutdownLimit: number;
  readonly counters: Counters;
}

/** A call as it comes. */
interface MethodCallOptions {
  readonly instance: object;
  readonly args: readonly unknown[];
  readonly signal: AbortSignalLike | undefined;
  readonly watch: CallRecorder | undefined;
}

/**
 * The batchers of all `@Batched()` methods of one application. Every decorated instance has it
 * injected.
 */
@Injectable()
export class BatchedMethods
  implements OnModuleInit, BeforeApplicationShutdown, OnApplicationShutdown
{
  readonly events = new EventHub();
  /** By class and method: classes that inherit a method share nothing else of it. */
  private readonly running = new Map<unknown, Map<BatchedMethod, Running>>();
  /** Controllers that Nest creates anew for each request, and that hold nothing of the request. */
  private readonly alike = new Set<unknown>();
  /** Calls of `@Batched('name')` methods whose body runs. */
  private readonly waits = new Waits();
  private readonly counted = new Map<string, Counters>();
  private isClosing = false;
  private isClosed = false;

  constructor(
    private readonly discovery: DiscoveryService,
    private readonly registry: ServingRegistry,
  ) {}

  onModuleInit(): void {
    for (const wrapper of [...this.discovery.getControllers(), ...this.discovery.getProviders()]) {
      const given = wrapper.isFactory || !wrapper.metatype;
      const type: unknown = given ? wrapper.instance?.constructor : wrapper.metatype;
      const methods = wrapper.isAlias ? [] : batchedMethodsOf(type);
      for (const method of methods) {
        checkBatchedMethod(type as new () => object, method);
        if (method.serving !== undefined) {
          this.checkServing(
            `${(type as new () => object).name}.${String(method.key)}`,
            method.serving,
          );
        }
      }
      if (methods.length > 0 && given) {
        // Nest injects only into what it has constructed itself.
        Object.assign(wrapper.instance as object, { [METHODS]: this });
      }
      // A durable instance serves one tenant: its calls batch with one another only.
      if (
        methods.some(({ options }) => options) &&
        !wrapper.isDependencyTreeStatic() &&
        !wrapper.isDependencyTreeDurable()
      ) {
        checkScope(wrapper, methods);
        this.alike.add(type);
      }
    }
  }

  /** Nest waits next for the clients of its servers: none of them is to wait for others. */
  beforeApplicationShutdown(): void {
    this.isClosing = true;
    this.all().forEach(({ shutdown }) => shutdown.begin());
  }

  async onApplicationShutdown(): Promise<void> {
    this.isClosing = this.isClosed = true;
    await Promise.all(this.all().map(({ shutdown }) => shutdown.complete()));
    this.events.complete();
  }

  /** Milliseconds after which shutdown has answered every call, of each method that was called. */
  get shutdownLimits(): readonly number[] {
    return this.all().map(({ shutdownLimit }) => shutdownLimit);
  }

  /** Answers the calls whose method of `@Batched('name')` has not come to call its serving. */
  end(error: Error): void {
    this.waits.end(error);
  }

  /** How many calls wait, by `Class.method`; methods that share the name are counted together. */
  queueDepths(): ReadonlyMap<string, number> {
    const depths = new Map<string, number>();
    this.all().forEach(({ name, batcher }) =>
      depths.set(name, (depths.get(name) ?? 0) + batcher.depth),
    );
    return depths;
  }

  /**
   * What the methods have done, by `Class.method`; methods that share the name are counted
   * together.
   */
  counters(): ReadonlyMap<string, ServingCounters> {
    return new Map([...this.counted].map(([name, counters]) => [name, counters.now]));
  }

  /** One call of a batched method of `instance`. */
  async call(
    method: BatchedMethod,
    instance: object,
    args: readonly unknown[],
    { signal }: CallOptions,
  ): Promise<unknown> {
    if (method.serving !== undefined) {
      const body = async (): Promise<unknown> => method.original.apply(instance, [...args]);
      return this.registry.get(method.serving).batchedRun(await this.waits.for(body()), { signal });
    }
    const running = this.runningFor(method, instance);
    const watch = CallRecorder.start(this.events, running.name, 'batched', signal);
    const answer = this.answer(running, method.options ?? {}, { instance, args, signal, watch });
    try {
      const result = await (watch ? watch.follow(answer) : answer);
      running.counters.answered++;
      return result;
    } catch (error) {
      running.counters.failed(error, signal);
      throw error;
    }
  }

  private async answer(
    { name, batcher, lanes }: Running,
    { separateOrigins, timeout, priority, tenant }: BatchedOptions,
    { instance, args, signal, watch }: MethodCallOptions,
  ): Promise<unknown> {
    const asked = {
      signal,
      timeout,
      priority: saidOf(args, priority),
      tenant: saidOf(args, tenant),
    };
    const terms = resolveCallOptions({ name }, undefined, asked);
    signal?.throwIfAborted();
    const owner = this.alike.has(instance.constructor) ? instance.constructor : instance;
    const lane = lanes.laneOf(owner, separateOrigins ? currentOrigin() : undefined);
    const call = new MethodCall(lane, instance, args, watch, terms);
    watch?.queued(1);
    const submit = (): void => {
      batcher.submit(call);
      call.queue = batcher;
    };
    return untilCancelled(terms, call, submit, call.answer);
  }

  private checkServing(method: string, serving: string): void {
    try {
      this.registry.get(serving);
    } catch (cause) {
      throw cause instanceof UnknownServingError
        ? new UnknownServingError(
            `${method} is @Batched(${formatValue(serving)}). ${cause.message}; those of other ` +
              'nodes are named in "remotes" of ServingClusterModule',
            { cause },
          )
        : cause;
    }
  }

  private all(): Running[] {
    return [...this.running.values()].flatMap((ofClass) => [...ofClass.values()]);
  }

  private runningFor(method: BatchedMethod, { constructor }: object): Running {
    const ofClass = this.running.get(constructor) ?? new Map<BatchedMethod, Running>();
    let running = ofClass.get(method);
    if (!running) {
      const name = `${constructor.name}.${String(method.key)}`;
      const { options = {} } = method;
      const counters = this.counted.get(name) ?? new Counters();
      this.counted.set(name, counters);
      const batcher = batcherOf(name, method, this.events, counters);
      const limits = shutdownOf(options);
      const shutdown = new Shutdown(name, limits, batcher);
      running = {
        name,
        batcher,
        lanes: new MethodLanes(options),
        counters,
        shutdown,
        shutdownLimit: limits.drainTimeout,
      };
      this.running.set(constructor, ofClass.set(method, running));
      if (this.isClosing) {
        shutdown.begin();
      }
      if (this.isClosed) {
        void shutdown.complete();
      }
    }
    return running;
  }
}

function saidOf<Value>(
  args: readonly unknown[],
  say: OfArguments<Value> | undefined,
): Value | undefined {
  return say && (Reflect.apply(say, undefined, args) as Value);
}
