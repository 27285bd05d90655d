import type { FunctionServingDefinition } from '../definition/serving-definition.js';
import { resolveDefinition } from '../definition/resolve-definition.js';
import { InvalidInputError, InvalidOutputError } from '../errors.js';
import type { EventHub } from '../events/event-hub.js';
import { type Engine, functionEngine } from '../partitions/engine.js';
import { LocalServing } from '../serving/local-serving.js';
import type { BatchedMethod } from './batched-method.js';

/** One call of a batched method: a row of its serving. */
export class MethodCall {
  constructor(
    readonly instance: object,
    readonly args: readonly unknown[],
  ) {}
}

/** The serving of a batched method: its batch function is the body of the method. */
export function methodServing(
  name: string,
  { original, options = {} }: BatchedMethod,
  events: EventHub,
): LocalServing<MethodCall> {
  const { types: _types, queue = {}, ...batching } = options;
  const { priority: _priority, tenant, ...limits } = queue;
  const definition: FunctionServingDefinition<MethodCall> = {
    ...batching,
    name,
    queue: {
      ...limits,
      tenant: tenant && (({ args }) => Reflect.apply(tenant, undefined, args)),
    },
    useFactory: () => (calls: readonly MethodCall[]) => runMethod(name, original, calls),
  };
  const functions = functionEngine(definition.useFactory);
  // Exception filters look for the class of the error that the method throws.
  const engine: Engine = async (...site) => ({ ...(await functions(...site)), throwsAsIs: true });
  return new LocalServing(resolveDefinition(definition), definition, engine, undefined, events);
}

/** Calls the method once for all calls of a batch, which are those of one instance. */
async function runMethod(
  name: string,
  method: BatchedMethod['original'],
  calls: readonly MethodCall[],
): Promise<readonly unknown[]> {
  const [first] = calls;
  if (!(first instanceof MethodCall)) {
    throw new InvalidInputError(`${name} is a @Batched() method; call it on its instance`);
  }
  const results = await method.apply(first.instance, columnsOf(calls, method.length));
  if (!Array.isArray(results) || results.length !== calls.length) {
    const got = Array.isArray(results) ? `${results.length} results` : typeof results;
    throw new InvalidOutputError(
      `${name} ran for ${calls.length} callers and must return an array of ${calls.length} ` +
        `results; it returned ${got}`,
    );
  }
  return results;
}

/** The arguments of all calls, a column for each parameter. */
function columnsOf(calls: readonly MethodCall[], parameters: number): unknown[][] {
  const width = calls.reduce((widest, { args }) => Math.max(widest, args.length), parameters);
  return Array.from({ length: width }, (_, column) => calls.map(({ args }) => args[column]));
}
