import { Injectable, type OnApplicationShutdown, type OnModuleInit } from '@nestjs/common';
import { DiscoveryService } from '@nestjs/core';
import { Subject } from 'rxjs';
import type { Batcher, BatchRecord } from '../batching/batcher.js';
import { DEFAULT_KEY } from '../batch/batch.js';
import { ServingRegistry } from '../serving-registry.js';
import type { BatchEvent } from '../serving/serving-event.js';
import { type BatchedMethod, batcherOf, type MethodCall } from './batched-method.js';
import { checkBatchedMethod } from './batched-check.js';
import { batchedMethodsOf } from './batched-metadata.js';

/** The batchers of all `@Batched()` methods of one application. Every decorated instance has it injected. */
@Injectable()
export class BatchedMethods implements OnModuleInit, OnApplicationShutdown {
  private readonly subject = new Subject<BatchEvent>();
  readonly events$ = this.subject.asObservable();
  private readonly batchers = new Map<BatchedMethod, Batcher<MethodCall>>();
  /** Classes of which every request has an instance of its own. */
  private readonly perRequest = new Set<unknown>();

  constructor(
    private readonly discovery: DiscoveryService,
    private readonly registry: ServingRegistry,
  ) {}

  onModuleInit(): void {
    for (const wrapper of [...this.discovery.getControllers(), ...this.discovery.getProviders()]) {
      const type = wrapper.isAlias ? null : (wrapper.metatype ?? wrapper.instance?.constructor);
      const methods = batchedMethodsOf(type as object | null);
      for (const method of methods) {
        checkBatchedMethod(type as new () => object, method);
        if (method.serving !== undefined) {
          this.registry.get(method.serving);
        }
      }
      // A durable instance serves one tenant, whose calls must not run on another's.
      if (methods.length > 0 && !wrapper.isDependencyTreeStatic() && !wrapper.isDependencyTreeDurable()) {
        this.perRequest.add(type);
      }
    }
  }

  async onApplicationShutdown(): Promise<void> {
    await Promise.all([...this.batchers.values()].map((batcher) => batcher.close()));
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

  private batcherFor(method: BatchedMethod, { constructor }: object): Batcher<MethodCall> {
    let batcher = this.batchers.get(method);
    if (!batcher) {
      const name = `${constructor.name}.${String(method.key)}`;
      batcher = batcherOf(name, method, (record) => this.subject.next(eventOf(name, record)));
      this.batchers.set(method, batcher);
    }
    return batcher;
  }
}

function eventOf(serving: string, { rows, ...record }: BatchRecord<MethodCall>): BatchEvent {
  return { type: 'batch', serving, key: DEFAULT_KEY, rows: rows.length, fill: rows.length / record.batchSize, ...record };
}
