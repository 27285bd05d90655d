import {
  type BeforeApplicationShutdown,
  Injectable,
  type OnApplicationBootstrap,
  type OnModuleInit,
} from '@nestjs/common';
import { ApplicationConfig, DiscoveryService, ModuleRef } from '@nestjs/core';
import type { RequestCaller } from '../../core/context/call-context.js';
import { optionsOf, requireOrigins } from '../request-context.js';
import { InvalidServingError, UnknownServingError } from '../../core/errors.js';
import { type ServingCounters, EventHub } from '../../core/events/event-hub.js';
import { Waits } from '../../core/execution/resolved-call-options.js';
import { formatValue } from '../../core/format.js';
import type { ServingHealth } from '../../core/serving/serving.js';
import { providerFrom } from '../serving.providers.js';
import { ServingRegistry } from '../serving.registry.js';
import { checkBatchedMethod, checkScope } from './batched-check.js';
import { type BatchedMethod, batchedMethodsOf, isOverridden, METHODS } from './batched-method.js';
import { MethodServing } from './method-serving.js';

interface RunningMethod {
  readonly serving: MethodServing;
  /** Undefined after the start. */
  starting: Promise<void> | undefined;
}

/** Servings of one application's `@Batched()` methods. */
@Injectable()
export class BatchedMethods
  implements OnModuleInit, OnApplicationBootstrap, BeforeApplicationShutdown
{
  readonly events = new EventHub();
  /** Keyed by `Class.method`; the first of several with one name. */
  readonly servings = new Map<string, MethodServing>();
  /** Keyed by class and method: classes don't share inherited methods' servings. */
  private readonly running = new Map<unknown, Map<BatchedMethod, RunningMethod>>();
  private readonly hubs = new Map<string, EventHub>();
  /** Request-scoped controllers that hold nothing of a request. */
  private readonly alike = new Set<unknown>();
  private readonly waits = new Waits();
  private isClosing = false;
  private isClosed = false;

  constructor(
    private readonly discovery: DiscoveryService,
    private readonly registry: ServingRegistry,
    private readonly application: ApplicationConfig,
    private readonly moduleRef: ModuleRef,
  ) {}

  async onModuleInit(): Promise<void> {
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
        // Nest injects only into instances that it constructs.
        Object.assign(wrapper.instance as object, { [METHODS]: () => this });
      }
      // A durable instance serves one tenant, whose calls share no batch with others.
      if (
        methods.some(({ options }) => options) &&
        !wrapper.isDependencyTreeStatic() &&
        !wrapper.isDependencyTreeDurable()
      ) {
        checkScope(wrapper, methods);
        this.alike.add(type);
      }
      for (const method of methods) {
        // A call of the name runs another method, which may call this one as its base class's.
        if (method.options && !isOverridden(type as new () => object, method)) {
          const { serving } = this.runningFor(method, type as new () => object);
          requireOrigins(this.application, serving);
          const isSingle = wrapper.isDependencyTreeStatic() && !wrapper.isTransient;
          serving.addInstance(isSingle ? (wrapper.instance as object) : undefined);
          if (method.options.warmUp && !serving.instance) {
            throw severalInstances(serving.name);
          }
        }
      }
    }
    await Promise.all(this.all().flatMap(({ starting }) => starting ?? []));
  }

  /** Every class has had its `onModuleInit`. */
  async onApplicationBootstrap(): Promise<void> {
    await Promise.all(this.all().map(({ serving }) => serving.warmUpMethod()));
  }

  /** Nest waits next for its servers' clients: no call may wait for others. */
  beforeApplicationShutdown(): void {
    this.isClosing = true;
    this.all().forEach(({ serving }) => serving.beforeApplicationShutdown());
  }

  async close(): Promise<void> {
    this.isClosing = this.isClosed = true;
    await Promise.all(this.all().map(({ serving }) => serving.close()));
    this.events.complete();
  }

  /** Milliseconds for shutdown to answer every call, by called method. */
  get shutdownLimits(): readonly number[] {
    return this.all()
      .filter(({ serving }) => serving.wasCalled)
      .map(({ serving }) => serving.shutdownLimit);
  }

  end(error: Error): void {
    this.waits.end(error);
  }

  health(): readonly ServingHealth[] {
    return this.all().map(({ serving }) => serving.health());
  }

  /** Keyed by `Class.method`; equal names are added up. */
  counters(): ReadonlyMap<string, ServingCounters> {
    return new Map([...this.hubs].map(([name, { totals }]) => [name, totals]));
  }

  /** @param caller only for a handler */
  call(
    method: BatchedMethod,
    instance: object,
    args: readonly unknown[],
    caller?: RequestCaller,
  ): Promise<unknown> {
    if (method.serving !== undefined) {
      return this.callServing(method.serving, method, instance, args, caller);
    }
    const { serving, starting } = this.runningFor(method, instance.constructor);
    serving.wasCalled = true;
    const call = (): Promise<unknown> => serving.call(instance, args, caller);
    return starting ? starting.then(call) : call();
  }

  private async callServing(
    name: string,
    { original }: BatchedMethod,
    instance: object,
    args: readonly unknown[],
    caller: RequestCaller | undefined,
  ): Promise<unknown> {
    const result = original.apply(instance, [...args]);
    const input = result instanceof Promise ? await this.waits.for(result) : await result;
    return this.registry.get(name).batchedRun(input, optionsOf(caller));
  }

  private checkServing(method: string, serving: string): void {
    try {
      const found = this.registry.get(serving);
      if (found.local?.profile.stateIdle !== undefined) {
        throw new InvalidServingError(
          `${method} is @Batched(${formatValue(serving)}), whose calls have a state; inject ` +
            'the serving and call serving.open().run(input)',
        );
      }
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

  private all(): RunningMethod[] {
    return [...this.running.values()].flatMap((ofClass) => [...ofClass.values()]);
  }

  private runningFor(method: BatchedMethod, type: Function): RunningMethod {
    const ofClass = this.running.get(type) ?? new Map<BatchedMethod, RunningMethod>();
    this.running.set(type, ofClass);
    let running = ofClass.get(method);
    if (!running) {
      running = this.start(`${type.name}.${String(method.key)}`, method);
      ofClass.set(method, running);
    }
    return running;
  }

  private start(name: string, method: BatchedMethod): RunningMethod {
    const hub = this.hubs.get(name) ?? new EventHub(this.events);
    this.hubs.set(name, hub);
    const groupOf = (instance: object): unknown =>
      this.alike.has(instance.constructor) ? instance.constructor : instance;
    const provide = providerFrom(this.moduleRef);
    const serving = new MethodServing(name, method, groupOf, hub, provide);
    if (!this.servings.has(name)) {
      this.servings.set(name, serving);
    }
    const starting = serving.start();
    const running: RunningMethod = { serving, starting };
    starting.then(
      () => (running.starting = undefined),
      () => {},
    );
    if (this.isClosing) {
      serving.beforeApplicationShutdown();
    }
    if (this.isClosed) {
      void serving.close();
    }
    return running;
  }
}

function severalInstances(name: string): InvalidServingError {
  return new InvalidServingError(
    `${name} has warmUp and a class with several instances, and only that of a singleton exists at ` +
      'the boot; leave warmUp out, or batch a method of a singleton, which one module provides and exports',
  );
}
