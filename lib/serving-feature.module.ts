import { Inject, Module } from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import { hintOfCopies } from './copies.js';
import { InvalidServingError } from './errors.js';
import { ServingRegistry } from './serving.registry.js';

/** The names of the servings of one `forFeature`. */
export const FEATURE_NAMES = Symbol('names of feature servings');

/** The module of `ServingModule.forFeature`. Only with `forRoot` are its servings called. */
@Module({})
export class ServingFeatureModule {
  constructor(moduleRef: ModuleRef, @Inject(FEATURE_NAMES) names: readonly string[]) {
    try {
      // Not injected, since a ServingModule need not be global.
      moduleRef.get(ServingRegistry, { strict: false });
    } catch (cause) {
      throw new InvalidServingError(
        `ServingModule.forFeature registers [${names.join(', ')}], and the application has no ` +
          `ServingModule.forRoot(); import ServingModule.forRoot() in the root module` +
          hintOfCopies(),
        { cause },
      );
    }
  }
}
