import { ConfigurableModuleBuilder, Module, type Provider } from '@nestjs/common';
import { ApplicationConfig, HttpAdapterHost, ModuleRef, ModulesContainer } from '@nestjs/core';
import { checkedModule, refuseSecond } from '../../../doors/options.js';
import { GrpcDoor } from './grpc/grpc-door.js';
import { GrpcTenants, ProtocolCalls } from './grpc/protocol-calls.js';
import { Reflection } from './grpc/reflection.js';
import { HealthController, InferenceController } from './http/inference.controller.js';
import { RepositoryController, SharedMemoryController } from './http/repository.controller.js';
import { leaveBodiesUnparsed } from './http/routes.js';
import { InferenceServer } from './inference-server.js';
import { type InferenceProtocolOptions, OWNER, resolveProtocol, rules } from './options.js';
import { ProtocolGuards, RepositoryGuards } from './protocol-guards.js';

const { ConfigurableModuleClass, MODULE_OPTIONS_TOKEN } =
  new ConfigurableModuleBuilder<InferenceProtocolOptions>({ moduleName: 'InferenceProtocol' })
    .setClassMethodName('forRoot')
    .build();

const serverProvider: Provider = {
  provide: InferenceServer,
  inject: [MODULE_OPTIONS_TOKEN, ModuleRef],
  useFactory: (options: InferenceProtocolOptions, moduleRef: ModuleRef) =>
    new InferenceServer(resolveProtocol(options), moduleRef),
};

/**
 * Offers the application's servings to clients of the Open Inference Protocol, version 2, such as
 * Triton's and KServe's. Import it once, next to `ServingModule`.
 */
@Module({
  controllers: [
    HealthController,
    InferenceController,
    RepositoryController,
    SharedMemoryController,
  ],
  providers: [
    serverProvider,
    ProtocolGuards,
    RepositoryGuards,
    GrpcTenants,
    Reflection,
    ProtocolCalls,
    GrpcDoor,
  ],
})
export class InferenceProtocolModule extends checkedModule(ConfigurableModuleClass, OWNER, rules) {
  constructor(host: HttpAdapterHost, config: ApplicationConfig, modules: ModulesContainer) {
    super();
    refuseSecond(modules, InferenceProtocolModule, OWNER);
    const prefixes = (): string[] => [config.getGlobalPrefix(), modulePathIn(modules)];
    // Runs before the application initialises its body parsers.
    if (host.httpAdapter) {
      leaveBodiesUnparsed(host.httpAdapter, prefixes);
    } else if ('init$' in host) {
      // A testing module gets its adapter later, an application context never.
      host.init$.subscribe(
        () => host.httpAdapter && leaveBodiesUnparsed(host.httpAdapter, prefixes),
      );
    }
  }
}

/** Nest's `RouterModule` stores the path here. */
function modulePathIn({ applicationId }: ModulesContainer): string {
  return Reflect.getMetadata(`__module_path__${applicationId}`, InferenceProtocolModule) ?? '';
}
