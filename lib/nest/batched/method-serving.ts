import { randomUUID } from 'node:crypto';
import { copyInput } from '../../core/batch/deep-copy.js';
import {
  type CallOptions,
  type RequestCaller,
  requireOptions,
  type StreamOptions,
} from '../../core/context/call-context.js';
import { optionsOf } from '../request-context.js';
import type { BatchSize } from '../../core/definition/batch-size.js';
import type { FunctionServingDefinition } from '../../core/definition/serving-definition.js';
import { InvalidInputError, InvalidOutputError, InvalidServingError } from '../../core/errors.js';
import type { EventHub } from '../../core/events/event-hub.js';
import { INTERNAL, type InternalCallOptions } from '../../core/execution/resolved-call-options.js';
import { countOf, formatValue, returnedType } from '../../core/format.js';
import { type Engine, functionEngine } from '../../core/partitions/engine.js';
import type { MethodCalls, OfArguments, Provide } from '../../core/serving/feature.js';
import { LocalServing } from '../../core/serving/local-serving.js';
import { ServingStream } from '../../core/streaming/serving-stream.js';
import type { StreamEvent } from '../../core/definition/reply.js';
import { features } from '../../features/features.js';
import type { BatchedMethod, BatchedOptions } from './batched-method.js';

class MethodCall {
  constructor(
    readonly instance: object,
    readonly args: readonly unknown[],
    /** Calls of other owners never share its answer. */
    readonly owner = '',
  ) {}
}

/** The batch function is the method's body, and a handle's input the list of arguments. */
export class MethodServing extends LocalServing {
  private readonly instances = new Set<object | undefined>();
  wasCalled = false;
  private readonly sharesCalls: boolean;
  /** Names for a class's several instances, unique among processes. */
  private readonly owners = new WeakMap<object, string>();

  constructor(
    name: string,
    private readonly method: BatchedMethod,
    /** A batch has calls of one group. */
    private readonly groupOf: (instance: object) => unknown,
    events: EventHub,
    provide?: Provide,
  ) {
    const definition = definitionOf(name, method);
    const functions = functionEngine(definition.model.useFactory);
    // Exception filters need the class of the method's error.
    const engine: Engine = async (...site) => ({ ...(await functions(...site)), throwsAsIs: true });
    const parts = features.partsOf(definition, provide);
    const options = features.resolve(definition);
    super({ options, model: {}, engine }, definition, parts, events);
    this.sharesCalls = parts.sharing !== undefined;
  }

  /** Undefined for a class with several instances. */
  get instance(): object | undefined {
    const [first, ...others] = this.instances;
    return others.length === 0 ? first : undefined;
  }

  /** @param instance undefined if instances belong to requests or users */
  addInstance(instance: object | undefined): void {
    this.instances.add(instance);
  }

  /** The instance must have been initialised. */
  async warmUpMethod(): Promise<void> {
    const { warmUp = [] } = this.method.options ?? {};
    await this.warmUp(warmUp.map((args) => new MethodCall(this.instance!, args)));
  }

  call(instance: object, args: readonly unknown[], caller?: RequestCaller): Promise<unknown> {
    try {
      const call = this.callOn(instance, args);
      return super.batchedRun(call, this.optionsOf(call, optionsOf(caller)));
    } catch (error) {
      return Promise.reject(error);
    }
  }

  override async batchedRun(args: unknown, options?: CallOptions): Promise<unknown> {
    const call = this.callOf(args);
    return super.batchedRun(call, this.optionsOf(call, options));
  }

  override async run(args: unknown, options?: CallOptions): Promise<unknown> {
    const call = this.callOf(args);
    return super.run(call, this.optionsOf(call, options));
  }

  override stream<Hook extends string = never>(
    args: unknown,
    options?: StreamOptions<Hook>,
  ): ServingStream<StreamEvent<unknown, Hook>> {
    try {
      const call = this.callOf(args);
      return super.stream(call, this.optionsOf(call, options));
    } catch (error) {
      return new ServingStream(() => ({ next: () => Promise.reject(error) }));
    }
  }

  private callOf(args: unknown): MethodCall {
    this.wasCalled = true;
    if (!Array.isArray(args)) {
      throw new InvalidInputError(
        `Serving "${this.name}" is a @Batched() method: its input is the list of the method's ` +
          `arguments, not ${formatValue(args)}`,
      );
    }
    if (!this.instance) {
      throw new InvalidServingError(
        `Serving "${this.name}" is a @Batched() method of a class with several instances; call ` +
          'it on one of them',
      );
    }
    return this.callOn(this.instance, args);
  }

  private callOn(instance: object, args: readonly unknown[]): MethodCall {
    return this.sharesCalls
      ? new MethodCall(instance, args.map(copyInput), this.ownerOf(instance))
      : new MethodCall(instance, args);
  }

  private ownerOf(instance: object): string {
    const group = this.groupOf(instance);
    if (instance === this.instance || group !== instance) {
      return '';
    }
    const owner = this.owners.get(instance) ?? randomUUID();
    this.owners.set(instance, owner);
    return owner;
  }

  private optionsOf<Options extends CallOptions>(
    { instance, args }: MethodCall,
    options?: Options,
  ): Options & InternalCallOptions {
    const { priority: priorityOf } = this.method.options?.queue ?? {};
    const priority = priorityOf && Reflect.apply(priorityOf, undefined, args);
    if (options !== undefined) {
      requireOptions(options);
    }
    // Options may be an AbortController, whose inherited signal a copy would lose.
    const { signal } = options ?? {};
    return {
      priority,
      ...options,
      signal,
      [INTERNAL]: { group: this.groupOf(instance) },
    } as Options & InternalCallOptions;
  }
}

function definitionOf(
  name: string,
  { original, options = {} }: BatchedMethod,
): FunctionServingDefinition {
  const { types: _types, warmUp: _warmUp, queue = {}, batchSize, ...batching } = options;
  const { priority: _priority, tenant, ...limits } = queue;
  return {
    ...batching,
    name,
    queue: { ...limits, tenant: tenant && ofCall(tenant) },
    batchSize: sizeOfCalls(batchSize),
    ...features.ofMethod(options, methodCalls),
    model: { useFactory: () => (calls: readonly MethodCall[]) => runMethod(name, original, calls) },
  };
}

const methodCalls: MethodCalls = {
  ofCall,
  ownerOf: (call) => (call as MethodCall).owner,
};

function sizeOfCalls(batchSize: BatchedOptions['batchSize']): BatchSize | undefined {
  if (typeof batchSize !== 'object' || !batchSize.cost) {
    return batchSize;
  }
  return { ...batchSize, cost: { ...batchSize.cost, of: ofCall(batchSize.cost.of) } };
}

function ofCall<Value>(of: OfArguments<Value>): (call: unknown) => Value {
  return (call) => Reflect.apply(of, undefined, (call as MethodCall).args);
}

/** The calls belong to one instance. */
async function runMethod(
  name: string,
  method: BatchedMethod['original'],
  calls: readonly MethodCall[],
): Promise<readonly unknown[]> {
  const results = await method.apply(calls[0]!.instance, columnsOf(calls, method.length));
  if (!Array.isArray(results) || results.length !== calls.length) {
    const got = Array.isArray(results) ? countOf(results.length, 'result') : returnedType(results);
    throw new InvalidOutputError(
      `${name} ran for ${countOf(calls.length, 'caller')} and must return an array of ` +
        `${countOf(calls.length, 'result')}; it returned ${got}`,
    );
  }
  return results;
}

function columnsOf(calls: readonly MethodCall[], parameters: number): unknown[][] {
  const width = calls.reduce((widest, { args }) => Math.max(widest, args.length), parameters);
  return Array.from({ length: width }, (_, column) => calls.map(({ args }) => args[column]));
}
