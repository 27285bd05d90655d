import { Inject } from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import { hintOfCopies } from '../copies.js';
import { InvalidServingError } from '../errors.js';
import { METHODS } from './batched-method.js';
import { BatchedMethods } from './batched-methods.js';

/** The property that Nest injects its ModuleRef into. */
const MODULE = Symbol('module of batched methods');

/**
 * Lets each instance that Nest constructs find the batched methods of its application. Nest has a
 * ModuleRef in every module, so this runs at boot even in an application without ServingModule.
 */
export function requireModule(target: object, key: string | symbol): void {
  if (MODULE in target) {
    return;
  }
  Inject(ModuleRef)(target, MODULE);
  Object.defineProperty(target, MODULE, {
    set(this: object, module: ModuleRef) {
      let found: BatchedMethods | undefined;
      checkModule(module, `${this.constructor.name}.${String(key)}`);
      // Nest may replace the instance until the application has started.
      Object.assign(this, { [METHODS]: () => (found ??= methodsOf(module)) });
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

function methodsOf(module: ModuleRef): BatchedMethods {
  // Of any module, since a ServingModule need not be global.
  return module.get(BatchedMethods, { strict: false });
}
