import 'reflect-metadata';
import { Inject, type Type } from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import { InvalidServingError, ServingClosedError } from '../../core/errors.js';
import { formatValue } from '../../core/format.js';
import { hintOfCopies } from '../copies.js';
import { HandlerCaller, takeCaller } from '../request-context.js';
import type { AnyMethod, BatchMethodDecorator } from './batched-types.js';
import { checkBatchedOptions, parametersOf } from './batched-check.js';
import { BatchedMethods } from './batched-methods.js';
import {
  type BatchedMethod,
  type BatchedOptions,
  addBatchedMethod,
  METHODS,
} from './batched-method.js';

type PreparingDecorator = <Method extends AnyMethod>(
  target: object,
  key: string | symbol,
  descriptor: TypedPropertyDescriptor<Method>,
) => void;

/**
 * Batches a method's calls.
 *
 * With options: each caller passes single arguments; the method gets an array per parameter and
 * runs once per batch. An Error among its results fails that caller alone. Its class can't be
 * request-scoped.
 *
 * With a serving's name: the method runs once per call, and its result is the serving's input; the
 * reply is the serving's output.
 *
 * @throws InvalidServingError for something that can't be batched
 */
export function Batched(serving: string): PreparingDecorator;
export function Batched<const Types extends readonly Type[] | undefined = undefined>(
  options?: BatchedOptions & { readonly types?: Types },
): BatchMethodDecorator<Types>;
export function Batched(
  how: string | BatchedOptions = {},
  ...others: readonly unknown[]
): MethodDecorator {
  refuseOthers(how, others);
  return (target, key, descriptor: PropertyDescriptor) => {
    const original = methodOf(target, key, descriptor);
    const method: BatchedMethod = {
      key,
      original,
      ...(typeof how === 'string' ? { serving: how } : { options: how }),
    };
    if (typeof how !== 'string') {
      checkBatchedOptions(`${target.constructor.name}.${String(key)}`, how);
    }
    addBatchedMethod(target.constructor, method);
    requireModule(target, key);
    if (method.options) {
      exposeRowTypes(target, key, method.options.types);
    }
    passCaller(target, key);
    descriptor.value = copyMetadata(
      original,
      function (this: { [METHODS]?: () => BatchedMethods } | undefined, ...args: unknown[]) {
        const caller = takeCaller(args);
        const methods = this?.[METHODS]?.();
        if (!this || !methods) {
          const reason = this
            ? 'its instance is no provider of an application that has started with ' +
              'ServingModule.forRoot(); get it from there'
            : 'was called without its instance; call it on that, or bind it';
          throw new InvalidServingError(
            `${target.constructor.name}.${String(key)} is @Batched() and ${reason}`,
          );
        }
        return methods.call(method, this, args, caller);
      },
    );
    correctResponses(descriptor.value as object, method.options ? 'entries' : 'of a serving');
  };
}

/** Without parentheses the decorator gets the class and the method, and would decorate nothing. */
function refuseOthers(how: unknown, others: readonly unknown[]): void {
  if (others.length > 0) {
    const [key] = others;
    throw new InvalidServingError(
      typeof how === 'string'
        ? `@Batched(${formatValue(how)}) takes no options: they are those of the serving ${formatValue(how)}`
        : `@Batched is used without parentheses on ${String(key)}; write @Batched()`,
    );
  }
}

function methodOf(
  target: object,
  key: string | symbol,
  descriptor?: PropertyDescriptor,
): (...args: unknown[]) => unknown {
  if (typeof key === 'object') {
    throw new InvalidServingError(
      `@Batched() was used as a standard decorator, on ${String((key as { name?: unknown }).name)}. Nest ` +
        'needs the decorators of TypeScript: set experimentalDecorators and emitDecoratorMetadata ' +
        'in tsconfig.json',
    );
  }
  if (typeof target === 'function') {
    throw new InvalidServingError(
      `@Batched() cannot decorate the static method ${target.name}.${String(key)}; batch a ` +
        'method of instances',
    );
  }
  const value: unknown = descriptor?.value;
  if (typeof value !== 'function') {
    throw new InvalidServingError(
      `@Batched() can decorate a method only: ${target.constructor.name}.${String(key)} is not one`,
    );
  }
  return value as (...args: unknown[]) => unknown;
}

/** Pipes need the type that callers pass, not the method's Array. */
function exposeRowTypes(
  target: object,
  key: string | symbol,
  types: readonly Type[] | undefined,
): void {
  const declared = (Reflect.getMetadata('design:paramtypes', target, key) ?? []) as unknown[];
  if (types && declared.length > 0 && types.length !== declared.length) {
    throw new InvalidServingError(
      `@Batched() on ${target.constructor.name}.${String(key)} names ${types.length} types for ` +
        `${declared.length} parameters; give one for each`,
    );
  }
  const rowTypes = types ?? declared.map((type) => (type === Array ? Object : type));
  Reflect.defineMetadata('design:paramtypes', [...rowTypes], target, key);
}

/**
 * Adds a handler parameter for its caller, so calls end with their client at no cost for other
 * routes. A handler without decorated parameters gets what its transport passes.
 */
function passCaller(target: object, key: string | symbol): void {
  const indices = Object.values(parametersOf(target.constructor, key)).map(({ index }) => index);
  if (indices.length > 0) {
    HandlerCaller()(target, key, Math.max(...indices) + 1);
  }
}

function copyMetadata<T extends object>(from: object, to: T): T {
  for (const metadataKey of Reflect.getMetadataKeys(from) as unknown[]) {
    Reflect.defineMetadata(metadataKey, Reflect.getMetadata(metadataKey, from), to);
  }
  return Object.defineProperty(to, 'name', { value: (from as { name?: string }).name });
}

type CallerOf<Method> = Method extends (
  ...columns: infer Columns extends readonly (readonly unknown[])[]
) => infer Results
  ? (
      ...args: { [I in keyof Columns]: Columns[I][number] }
    ) => Promise<Exclude<ElementOf<Awaited<Results>>, Error>>
  : Method;

type ElementOf<Results> = Results extends readonly (infer Result)[] ? Awaited<Result> : never;

/** An object with batched methods, as its callers see it. */
export type Caller<T> = { readonly [Key in keyof T]: CallerOf<T[Key]> };

/**
 * Returns the object, typed for its callers: decorators can't change a method's type. `await
 * asCaller(scorer).score(dto)`.
 */
export function asCaller<T extends object>(instance: T): Caller<T> {
  return instance as Caller<T>;
}

const MODULE = Symbol('module of batched methods');

/**
 * Lets each instance find its application's batched methods. Every module has a ModuleRef, so this
 * runs at boot even without ServingModule.
 */
function requireModule(target: object, key: string | symbol): void {
  if (MODULE in target) {
    return;
  }
  Inject(ModuleRef)(target, MODULE);
  Object.defineProperty(target, MODULE, {
    set(this: object, module: ModuleRef) {
      let found: BatchedMethods | undefined;
      const method = `${this.constructor.name}.${String(key)}`;
      checkModule(module, method);
      const find = (): BatchedMethods => {
        const methods = methodsOf(module);
        if (!isConstructed(methods)) {
          throw new ServingClosedError(
            `${method} is @Batched() and was called while Nest still builds the application; call ` +
              'it from onModuleInit on, or later',
          );
        }
        return methods;
      };
      // Looked up again until then, since Nest may replace the instance.
      Object.assign(this, { [METHODS]: () => (found ??= find()) });
    },
  });
}

function checkModule(module: ModuleRef, method: string): void {
  try {
    methodsOf(module);
  } catch (cause) {
    throw new InvalidServingError(
      `${method} is @Batched(), and the application does not import ServingModule, which runs it: ` +
        'add ServingModule.forRoot() to the imports of the root module' +
        hintOfCopies(),
      { cause },
    );
  }
}

/** False for Nest's empty placeholder of a provider. */
function isConstructed(methods: BatchedMethods): boolean {
  return Object.hasOwn(methods, 'servings');
}

function methodsOf(module: ModuleRef): BatchedMethods {
  // ServingModule need not be global.
  return module.get(BatchedMethods, { strict: false });
}

/** Metadata key of `@nestjs/swagger`: responses by status. */
const RESPONSES = 'swagger/apiResponse';

type Response = Readonly<Record<string, unknown>>;

/**
 * Corrects the response that the `@nestjs/swagger` plugin derives from the return type: a client
 * gets one entry of the list, or an unknown reply of the serving. Decorators above `@Batched()` run
 * later and prevail.
 */
function correctResponses(method: object, replies: 'entries' | 'of a serving'): void {
  const responses = Reflect.getMetadata(RESPONSES, method) as
    Readonly<Record<string, Response>> | undefined;
  if (!responses) {
    return;
  }
  const corrected = Object.entries(responses).map(([status, response]) => {
    const { isArray: _, type, ...others } = response;
    const own = replies === 'entries' ? { ...others, type } : others;
    return [status, isError(status) ? response : own];
  });
  Reflect.defineMetadata(RESPONSES, Object.fromEntries(corrected), method);
}

function isError(status: string): boolean {
  return Number(status) >= 400;
}
