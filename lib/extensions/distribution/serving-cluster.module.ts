import {
  ConfigurableModuleBuilder,
  type DynamicModule,
  Inject,
  Module,
  type ModuleMetadata,
  Optional,
  type Provider,
} from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import type { Transport } from '@nestjs/microservices';
import { InvalidServingError, getServingToken } from '../../index.js';
import {
  DEFAULT_EXTRAS,
  withExtras,
  ServingRegistry,
  SERVING_ROUTER,
} from '../../doors/servings.js';
import { checkedModule } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { ExportedServings } from './calls/exported-servings.js';
import type { DistributionOptions } from './options.js';
import { OWNER, resolveDistribution, rules } from './resolve-options.js';
import { ServingCluster } from './serving-cluster.js';
import type { ServingTransport } from './transport.js';

export interface ServingClusterModuleExtras {
  /**
   * True if modules can inject `ServingCluster` and `remotes` without importing this module.
   *
   * @default true
   */
  readonly isGlobal?: boolean;
  /** Modules that export what the factory of `forRootAsync` injects. */
  readonly imports?: ModuleMetadata['imports'];
  /**
   * For `forRootAsync`: the names in its factory's `remotes`, because Nest must know all injectable
   * servings before the factory runs.
   */
  readonly names?: readonly string[];
}

const { ConfigurableModuleClass, MODULE_OPTIONS_TOKEN, OPTIONS_TYPE, ASYNC_OPTIONS_TYPE } =
  new ConfigurableModuleBuilder<DistributionOptions>({ moduleName: 'ServingCluster' })
    .setClassMethodName('forRoot')
    .setExtras<ServingClusterModuleExtras>(DEFAULT_EXTRAS, withExtras)
    .build();

/** Makes the application a node of a cluster. Import it once, next to `ServingModule`. */
@Module({})
export class ServingClusterModule extends checkedModule(ConfigurableModuleClass, OWNER, rules, [
  'isGlobal',
  'names',
]) {
  constructor(@Optional() @Inject(ServingCluster) cluster?: ServingCluster) {
    super();
    if (!cluster) {
      throw new InvalidServingError(
        'A module imports ServingClusterModule without options: write ' +
          'ServingClusterModule.forRoot({ transport: ... }) in the root module',
      );
    }
  }

  /** Makes the application a node with these options. */
  static override forRoot(options: typeof OPTIONS_TYPE): DynamicModule {
    return withCluster(super.forRoot(options), remoteNamesIn(options));
  }

  /** Like {@link forRoot}, with options from a factory. */
  static override forRootAsync(options: typeof ASYNC_OPTIONS_TYPE): DynamicModule {
    return withCluster(super.forRootAsync(options), options.names ?? []);
  }
}

function withCluster(module: DynamicModule, remotes: readonly string[]): DynamicModule {
  return {
    ...module,
    providers: [
      ...(module.providers ?? []),
      clusterProvider(remotes),
      routerProvider,
      ...remotes.map(remoteProvider),
    ],
    exports: [...(module.exports ?? []), ServingCluster, ...remotes.map(getServingToken)],
  };
}

function clusterProvider(remotes: readonly string[]): Provider {
  return {
    provide: ServingCluster,
    inject: [MODULE_OPTIONS_TOKEN, ModuleRef],
    useFactory: async (options: DistributionOptions, moduleRef: ModuleRef) => {
      const resolved = resolveDistribution(options);
      checkNames(remotes, remoteNamesIn(options));
      // Fails early; we look again on use, as the instance may not exist yet.
      registryOf(moduleRef);
      let registry: ServingRegistry | undefined;
      const exported = new ExportedServings(() => (registry ??= registryOf(moduleRef)).all);
      return new ServingCluster(resolved, await transportOf(options), exported);
    },
  };
}

/** The core discovers it by token. */
const routerProvider: Provider = {
  provide: SERVING_ROUTER,
  inject: [ServingCluster],
  useFactory: ({ router }: ServingCluster) => router,
};

function remoteProvider(name: string): Provider {
  return {
    provide: getServingToken(name),
    inject: [ServingCluster],
    useFactory: ({ router }: ServingCluster) => router.remote(name),
  };
}

function registryOf(moduleRef: ModuleRef): ServingRegistry {
  try {
    // ServingModule need not be global.
    return moduleRef.get(ServingRegistry, { strict: false });
  } catch (cause) {
    throw new InvalidServingError(
      'ServingClusterModule needs the servings of the application; import ServingModule.forRoot ' +
        'next to it',
      { cause },
    );
  }
}

/** Packages that a transport needs in addition. */
const CLIENTS: Partial<Record<Transport, string>> = {
  1: ' ioredis',
  2: ' @nats-io/transport-node (with Nest 11, nats)',
  4: ' @grpc/grpc-js @grpc/proto-loader',
};

async function transportOf(options: DistributionOptions): Promise<ServingTransport> {
  try {
    const { openTransport } = await import('./open-transport.js');
    return await openTransport(options);
  } catch (cause) {
    if (!isMissing(cause)) {
      throw cause;
    }
    const client = CLIENTS[options.transport as Transport] ?? '';
    throw new InvalidServingError(
      `${OWNER}: ${cause.message}; install all it needs: npm install @nestjs/microservices${client}`,
      { cause },
    );
  }
}

function isMissing(error: unknown): error is Error {
  return (
    error instanceof Error && 'code' in error && String(error.code).endsWith('MODULE_NOT_FOUND')
  );
}

/** @throws InvalidServingError for a missing name */
function remoteNamesIn(options: DistributionOptions): readonly string[] {
  const remotes: unknown = options.remotes ?? [];
  return Array.isArray(remotes) ? remotes.map(nameOf) : refuse(remotes);
}

function nameOf(remote: unknown): string {
  const name: unknown =
    typeof remote === 'object' && remote !== null && 'name' in remote ? remote.name : remote;
  return typeof name === 'string' && name !== '' ? name : refuse(remote);
}

function refuse(remote: unknown): never {
  throw new InvalidServingError(
    'ServingClusterModule: option "remotes" is a list of names, or of objects with a name, not ' +
      formatValue(remote),
  );
}

function checkNames(names: readonly string[], remotes: readonly string[]): void {
  if (names.length !== remotes.length || remotes.some((remote) => !names.includes(remote))) {
    throw new InvalidServingError(
      `The factory of ServingClusterModule.forRootAsync returns the remotes ` +
        `[${remotes.join(', ')}], but "names" lists [${names.join(', ')}]; they must be the same`,
    );
  }
}
