import {
  type BeforeApplicationShutdown,
  type DynamicModule,
  Inject,
  Logger,
  Module,
  Optional,
  type Provider,
  type Type,
} from '@nestjs/common';
import { ApplicationConfig, DiscoveryModule, ModuleRef } from '@nestjs/core';
import { BatchedMethods } from './batched/batched-methods.js';
import { registerRequestContext } from './request-context.js';
import { enterCopy, providersOfOtherCopies, hintOfCopies } from './copies.js';
import { checkAsyncOptions, checkOptions } from '../core/definition/option-rules.js';
import { InvalidServingError } from '../core/errors.js';
import { logTo } from '../core/log.js';
import { getServingToken } from './serving.decorator.js';
import {
  ASYNC_OPTIONS_TYPE,
  ConfigurableModuleClass,
  moduleRules,
  OPTIONS_TYPE,
  SERVING_MODULE_OPTIONS,
  type ServingModuleExtras,
  type ServingModuleOptions,
} from './serving.module-definition.js';
import { asyncServingProviders, namesOf, servingProviders } from './serving.providers.js';
import { ServingExceptionFilter } from './serving-exception.filter.js';
import { ServingRegistry } from './serving.registry.js';
import { ServingService } from './serving.service.js';
import { ServingEndModule, ServingShutdown } from './serving.shutdown.js';

const EXPORTED = [ServingService, BatchedMethods];

logTo(new Logger('Serving'));
enterCopy([...EXPORTED, ServingRegistry]);

/**
 * Registers named servings as injectable providers; what they own starts and ends with the
 * application.
 */
// forRoot replaces these providers, which remain if a module imports only the class.
@Module({
  providers: [...EXPORTED.map(withoutOptions), ServingExceptionFilter],
  exports: EXPORTED,
})
export class ServingModule extends ConfigurableModuleClass implements BeforeApplicationShutdown {
  constructor(
    application: ApplicationConfig,
    filter: ServingExceptionFilter,
    @Optional() private readonly registry?: ServingRegistry,
    @Optional() @Inject(SERVING_MODULE_OPTIONS) { requestContext }: ServingModuleOptions = {},
  ) {
    super();
    if (requestContext) {
      registerRequestContext(application);
    }
    application.addGlobalFilter(filter);
  }

  /**
   * Waits for other nodes' calls before any serving closes. Nest calls this after the providers'
   * hooks, so all begin their shutdown together.
   */
  async beforeApplicationShutdown(): Promise<void> {
    await this.registry?.router?.answered();
  }

  /** Registers the application's servings. Import it once, in the root module. */
  static override forRoot(options: typeof OPTIONS_TYPE = {}): DynamicModule {
    checkOptions('ServingModule.forRoot', options, moduleRules.forRoot);
    const { servings = [] } = options;
    const names = namesOf('ServingModule.forRoot', servings);
    return withCore(super.forRoot(options), names, servingProviders(servings));
  }

  /** Like {@link forRoot}, with options from a factory. */
  static override forRootAsync(options: typeof ASYNC_OPTIONS_TYPE): DynamicModule {
    checkAsyncOptions('ServingModule.forRootAsync', options, moduleRules.forRootAsync);
    const { names = [] } = options;
    return withCore(super.forRootAsync(options), names, asyncServingProviders(names));
  }

  /** Registers further servings in the module that they belong to. */
  static forFeature(
    options: Pick<ServingModuleOptions, 'servings'> & Pick<ServingModuleExtras, 'imports'>,
  ): DynamicModule {
    checkOptions('ServingModule.forFeature', options, moduleRules.forFeature);
    const { servings = [], imports = [] } = options;
    const names = namesOf('ServingModule.forFeature', servings);
    return {
      module: ServingFeatureModule,
      imports,
      providers: [{ provide: FEATURE_NAMES, useValue: names }, ...servingProviders(servings)],
      exports: names.map(getServingToken),
    };
  }
}

function withoutOptions(token: Type): Provider {
  return {
    provide: token,
    useFactory: () => {
      throw new InvalidServingError(
        'A module imports ServingModule without options: write ServingModule.forRoot({ servings: ' +
          '[...] }) in the root module, ServingModule.forFeature({ servings: [...] }) in others, ' +
          'or nothing where a module only uses servings',
      );
    },
  };
}

function withCore(
  module: DynamicModule,
  names: readonly string[],
  providers: readonly Provider[],
): DynamicModule {
  const ofOthers = providersOfOtherCopies();
  return {
    ...module,
    imports: [...(module.imports ?? []), DiscoveryModule, ServingEndModule],
    providers: [
      ...(module.providers ?? []),
      ...providers,
      ...ofOthers,
      ...EXPORTED,
      ServingRegistry,
      ServingShutdown,
    ],
    exports: [
      ...(module.exports ?? []),
      ...names.map(getServingToken),
      ...ofOthers.map(({ provide }) => provide),
    ],
  };
}

const FEATURE_NAMES = Symbol('names of feature servings');

/** Only with `forRoot` are its servings called. */
@Module({})
class ServingFeatureModule {
  constructor(moduleRef: ModuleRef, @Inject(FEATURE_NAMES) names: readonly string[]) {
    try {
      // ServingModule need not be global.
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
