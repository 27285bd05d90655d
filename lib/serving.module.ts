import {
  type BeforeApplicationShutdown,
  type DynamicModule,
  Inject,
  Module,
  Optional,
  type Provider,
} from '@nestjs/common';
import { ApplicationConfig, DiscoveryModule, HttpAdapterHost } from '@nestjs/core';
import { BatchedMethods } from './batched/batched-methods.js';
import { registerCallerContext } from './context/caller-context.interceptor.js';
import type { Cluster } from './distribution/cluster.js';
import { InvalidServingError } from './errors.js';
import { CLUSTER, clusterProvider, remoteNamesIn, remoteProvider } from './serving.cluster.js';
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
    @Optional() @Inject(CLUSTER) private readonly cluster?: Cluster,
  ) {
    super();
    registerCallerContext(application, host);
  }

  /**
   * Waits for the calls of other nodes before anything is closed. Nest calls this hook after those
   * of the providers, none of which must wait.
   */
  async beforeApplicationShutdown(): Promise<void> {
    await this.cluster?.answered();
  }

  /** The servings of the application. Import it once, in the root module. */
  static override forRoot(options: typeof OPTIONS_TYPE = {}): DynamicModule {
    const { servings = [], distribution } = options;
    const remotes = remoteNamesIn(distribution);
    const names = [...servings.map(({ name }) => name), ...remotes];
    return withCore(super.forRoot(options), names, [
      ...servingProviders(servings),
      ...remotes.map(remoteProvider),
    ]);
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
    if ('distribution' in options) {
      throw new InvalidServingError(
        'ServingModule.forFeature has the option "distribution": an application is one node, by ' +
          'the option of ServingModule.forRoot, and others may call all its servings',
      );
    }
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
      clusterProvider,
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
