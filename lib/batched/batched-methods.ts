import { type BeforeApplicationShutdown, Injectable, type OnApplicationShutdown, type OnModuleInit } from '@nestjs/common';
import { DiscoveryService } from '@nestjs/core';
import { Subject } from 'rxjs';
import type { Batcher } from '../batching/batcher.js';
import { DEFAULT_KEY } from '../batch/batch.js';
import { ServingRegistry } from '../serving-registry.js';
import { type BatchEvent, batchEvent } from '../serving/serving-event.js';
import { type BatchedMethod, batcherOf, type MethodCall } from './batched-method.js';
import { checkBatchedMethod } from './batched-check.js';
import { batchedMethodsOf, METHODS } from './batched-metadata.js';

/** The batchers of all `@Batched()` methods of one application. Every decorated instance has it injected. */
@Injectable()
export class BatchedMethods implements OnModuleInit, BeforeApplicationShutdown, OnApplicationShutdown {
  private readonly subject = new Subject<BatchEvent>();
  readonly events$ = this.subject.asObservable();
  /** By class and method: classes that inherit a method share nothing else of it. */
  private readonly batchers = new Map<unknown, Map<BatchedMethod, Batcher<MethodCall>>>();
  /** Classes of which every request has an instance of its own. */
  private readonly perRequest = new Set<unknown>();
  private draining = false;
  private closed = false;

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
          this.registry.get(method.serving);
        }
      }
      if (methods.length > 0 && given) {
        // Nest injects only into what it has constructed itself.
        Object.assign(wrapper.instance as object, { [METHODS]: this });
      }
      // A durable instance serves one tenant, whose calls must not run on another's.
      if (methods.length > 0 && !wrapper.isDependencyTreeStatic() && !wrapper.isDependencyTreeDurable()) {
        this.perRequest.add(type);
      }
    }
  }

  /** Nest waits next for the clients of its servers: none of them is to wait for others. */
  beforeApplicationShutdown(): void {
    this.draining = true;
    this.all().forEach((batcher) => batcher.drain());
  }

  async onApplicationShutdown(): Promise<void> {
    this.closed = true;
    await Promise.all(this.all().map((batcher) => batcher.close()));
    this.subject.complete();
  }

  /** One call of a batched method of `instance`. */
  async call(method: BatchedMethod, instance: object, args: readonly unknown[]): Promise<unknown> {
    if (method.serving !== undefined) {
      return this.registry.get(method.serving).batchedRun(await method.original.apply(instance, [...args]));
    }
    const lane = this.perRequest.has(instance.constructor) ? instance.constructor : instance;
    return new Promise((succeed, fail) => {
      const call: MethodCall = { lane, instance, args, arrivedAt: 0, succeed, fail };
      this.batcherFor(method, instance).submit(call, 1);
    });
  }

  private all(): Batcher<MethodCall>[] {
    return [...this.batchers.values()].flatMap((ofClass) => [...ofClass.values()]);
  }

  private batcherFor(method: BatchedMethod, { constructor }: object): Batcher<MethodCall> {
    const ofClass = this.batchers.get(constructor) ?? new Map<BatchedMethod, Batcher<MethodCall>>();
    let batcher = ofClass.get(method);
    if (!batcher) {
      const name = `${constructor.name}.${String(method.key)}`;
      batcher = batcherOf(name, method, (record) => this.subject.next(batchEvent(name, DEFAULT_KEY, record)));
      this.batchers.set(constructor, ofClass.set(method, batcher));
      if (this.draining) {
        batcher.drain();
      }
      if (this.closed) {
        void batcher.close();
      }
    }
    return batcher;
  }
}
