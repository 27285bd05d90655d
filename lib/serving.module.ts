import {
  type BeforeApplicationShutdown,
  type DynamicModule,
  Module,
  Optional,
  type Provider,
} from '@nestjs/common';
import { ApplicationConfig, DiscoveryModule, HttpAdapterHost } from '@nestjs/core';
import { BatchedMethods } from './batched/batched-methods.js';
import { registerCallerContext } from './context/caller-context.interceptor.js';
import { getServingToken } from './serving.decorator.js';
import {
  ASYNC_OPTIONS_TYPE,
  ConfigurableModuleClass,
  OPTIONS_TYPE,
  type ServingModuleExtras,
  type ServingModuleOptions,
} from './serving.module-definition.js';
import { asyncServingProviders, servingProviders } from './serving.providers.js';
import { ServingRegistry } from './serving.registry.js';
import { ServingService } from './serving.service.js';
import { ServingShutdown } from './serving.shutdown.js';

/**
 * Registers named servings as injectable providers; what they own starts and ends with the
 * application.
 */
@Module({})
export class ServingModule extends ConfigurableModuleClass implements BeforeApplicationShutdown {
  constructor(
    application: ApplicationConfig,
    host: HttpAdapterHost,
    /** Not in modules of `forFeature`. */
    @Optional() private readonly registry?: ServingRegistry,
  ) {
    super();
    registerCallerContext(application, host);
  }

  /**
   * Waits for the calls of other nodes before any serving closes. Nest calls this hook after those
   * of the providers, so that all of them begin their shutdown at once.
   */
  async beforeApplicationShutdown(): Promise<void> {
    await this.registry?.router?.answered();
  }

  /** The servings of the application. Import it once, in the root module. */
  static override forRoot(options: typeof OPTIONS_TYPE = {}): DynamicModule {
    const { servings = [] } = options;
    const names = servings.map(({ name }) => name);
    return withCore(super.forRoot(options), names, servingProviders(servings));
  }

  /** As {@link forRoot}, with options from a factory, for example from a configuration service. */
  static override forRootAsync(options: typeof ASYNC_OPTIONS_TYPE): DynamicModule {
    const { names = [] } = options;
    return withCore(super.forRootAsync(options), names, asyncServingProviders(names));
  }

  /** Further servings, registered by the module that is about them. */
  static forFeature(
    options: Pick<ServingModuleOptions, 'servings'> & Pick<ServingModuleExtras, 'imports'>,
  ): DynamicModule {
    const { servings = [], imports = [] } = options;
    return {
      module: ServingModule,
      imports,
      providers: servingProviders(servings),
      exports: servings.map(getServingToken),
    };
  }
}

function withCore(
  module: DynamicModule,
  names: readonly string[],
  providers: readonly Provider[],
): DynamicModule {
  return {
    ...module,
    imports: [...(module.imports ?? []), DiscoveryModule],
    providers: [
      ...(module.providers ?? []),
      ...providers,
      ServingRegistry,
      BatchedMethods,
      ServingService,
      ServingShutdown,
    ],
    exports: [
      ...(module.exports ?? []),
      ...names.map(getServingToken),
      BatchedMethods,
      ServingService,
    ],
  };
}
