import 'reflect-metadata';
import { Scope } from '@nestjs/common';
import type { DiscoveryService } from '@nestjs/core';
import { InvalidServingError } from '../../core/errors.js';
import { formatValue } from '../../core/format.js';
import {
  aFunction,
  checkOptions,
  DEFAULT_BATCH_SIZE,
  DEFAULT_QUEUE_ROWS,
  groupOf,
  isRecord,
  type Rules,
  whole,
  withRules,
} from '../../core/definition/option-rules.js';
import { checkTogether, combinationsOfKeys } from '../../core/definition/combinations.js';
import { common, timeoutOf } from '../../core/definition/resolve-definition.js';
import { batchSizeOf, batchSizeOfMethods } from '../../core/definition/batch-size.js';
import { features } from '../../features/features.js';
import type { BatchedMethod, BatchedOptions } from './batched-method.js';

type InstanceWrapper = ReturnType<DiscoveryService['getProviders']>[number];

/** Nest's metadata keys, unchanged since its first release. */
const ROUTE_ARGUMENTS = '__routeArguments__';
const PASSTHROUGH = '__responsePassthrough__';
const SSE = '__sse__';
const HTTP_METHOD = 'method';
const MESSAGE_MARKS = ['microservices:pattern', 'websockets:message_mapping'];

/** Nest's numbers for whole-object parameters. */
const WHOLE_OBJECTS: Readonly<Record<string, string>> = {
  3: 'body',
  4: 'query',
  5: 'path parameters',
};
const RESPONSE = '1';
const NEXT = '2';

export function parametersOf(
  type: Function,
  key: string | symbol,
): Readonly<Record<string, { readonly index: number; readonly data?: unknown }>> {
  return (Reflect.getMetadata(ROUTE_ARGUMENTS, type, key) ?? {}) as ReturnType<typeof parametersOf>;
}

/** Refuses a method that couldn't answer its callers as Nest would. */
export function checkBatchedMethod(
  type: new (...args: never[]) => object,
  { key, original, options }: BatchedMethod,
): void {
  const method = `${type.name}.${String(key)}`;
  const handler = (type.prototype as Record<string | symbol, object | undefined>)[key] ?? original;
  // GraphQL has its own numbers for resolvers' parameters.
  const isRoute = Reflect.hasMetadata(HTTP_METHOD, handler);
  if (Reflect.hasMetadata(SSE, handler)) {
    throw new InvalidServingError(
      `${method} is @Sse() and @Batched(), and a batched method cannot answer with a stream`,
    );
  }
  const parameters = Object.entries(parametersOf(type, key));
  const isMessage = MESSAGE_MARKS.some((mark) => Reflect.hasMetadata(mark, handler));
  if (options && !options.types && isMessage && parameters.length === 0) {
    throw untyped(`The payload of ${method}, a handler without @Payload() or @MessageBody(),`);
  }
  for (const [id, { index, data }] of parameters) {
    const [kind = ''] = id.split(':');
    if (
      isRoute &&
      (kind === NEXT || (kind === RESPONSE && !Reflect.getMetadata(PASSTHROUGH, type, key)))
    ) {
      throw new InvalidServingError(
        `${method} takes the raw response (@Res() or @Next()), so its result would never be ` +
          'sent; remove it, or use @Res({ passthrough: true })',
      );
    }
    if (options && !options.types && WHOLE_OBJECTS[kind] && data === undefined) {
      const part = isMessage ? 'payload' : WHOLE_OBJECTS[kind];
      throw untyped(`Parameter ${index} of ${method} is the whole ${part}, and it`);
    }
  }
}

function untyped(payload: string): InvalidServingError {
  return new InvalidServingError(
    `${payload} could not be validated by pipes: TypeScript erases the element type of an array. ` +
      'Name the types as callers pass them: @Batched({ types: [ScoreDto] }), or Object for what ' +
      'needs no validation',
  );
}

/**
 * Refuses request-scoped classes. Request-scoped guards, pipes, interceptors and filters leave
 * nothing of the request in instances.
 */
export function checkScope(wrapper: InstanceWrapper, methods: readonly BatchedMethod[]): void {
  const dependencies = [
    ...(wrapper.getCtorMetadata() ?? []),
    ...(wrapper.getPropertiesMetadata() ?? []).map((property) => property.wrapper),
  ];
  const dependency = dependencies.find((each) => each && !each.isDependencyTreeStatic());
  if (wrapper.scope !== Scope.REQUEST && !dependency) {
    return;
  }
  const method = methods.find(({ options }) => options)!;
  const reason = dependency ? `, since it depends on ${String(dependency.name)}` : '';
  throw new InvalidServingError(
    `${wrapper.name}.${String(method.key)} is @Batched() and its class is ` +
      `request-scoped${reason}: ` +
      'a batch of several requests runs on one instance, which belongs to one of them. ' +
      'Batch a method of a singleton, and pass it what belongs to the request as arguments',
  );
}

export function checkBatchedOptions(method: string, options: BatchedOptions): void {
  const owner = `@Batched() on ${method}`;
  if (isRecord(options) && 'name' in options && 'model' in options) {
    throw new InvalidServingError(
      `${owner} was given the definition of a serving, and takes its name: ` +
        `@Batched(${formatValue(options['name'])})`,
    );
  }
  checkOptions(owner, options, ofMethods);
  const { rows = DEFAULT_BATCH_SIZE, ...size } = batchSizeOf(options.batchSize);
  const facts = {
    batchSize: rows,
    batchTimeout: options.batchTimeout ?? 0,
    runSize: rows,
    ...size,
    timeout: timeoutOf(options.timeout),
    queueRows: options.queue?.maxRows ?? DEFAULT_QUEUE_ROWS,
  };
  checkTogether(owner, facts, combinationsOfKeys);
}

const own: Rules = {
  ...without(common, [
    'name',
    'rollout',
    'batchKeys',
    'distribution',
    'preprocess',
    'postprocess',
    'postprocessStream',
  ]),
  batchSize: batchSizeOfMethods,
  partitions: whole(1, 1024),
  warmUp: {
    check: (value) => Array.isArray(value) && value.every((args) => Array.isArray(args)),
    allowed: 'a list of lists of arguments',
  },
  queue: groupOf({
    ...without(common['queue']!.group!, ['maxCost', 'cost', 'maxRowsPerCall', 'maxBytesPerCall']),
    priority: aFunction,
  }),
  recovery: groupOf(
    without(common['recovery']!.group!, ['restartDelay', 'maxRestarts', 'restartTimeout']),
  ),
  types: {
    check: (value) => Array.isArray(value) && value.every((type) => typeof type === 'function'),
    allowed: 'a list of classes',
  },
};

const ofMethods = withRules(own, features.rules);

function without(rules: Rules, names: readonly string[]): Rules {
  return Object.fromEntries(Object.entries(rules).filter(([name]) => !names.includes(name)));
}
