import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import type { ServiceClientConstructor } from '@grpc/grpc-js';
import { InvalidServingError } from '../../../index.js';

export interface GrpcPackages {
  readonly grpc: typeof import('@grpc/grpc-js');
  readonly loader: typeof import('@grpc/proto-loader');
}

/**
 * Loads at run time: bundlers would look for the packages in every application.
 *
 * @param user the feature named in the error
 * @throws InvalidServingError if they are not installed
 */
export function loadGrpc(user: string): GrpcPackages {
  const load = createRequire(import.meta.url);
  try {
    return {
      grpc: load('@grpc/grpc-js') as GrpcPackages['grpc'],
      loader: load('@grpc/proto-loader') as GrpcPackages['loader'],
    };
  } catch (cause) {
    throw new InvalidServingError(
      `${user} needs gRPC; install it: npm install @grpc/grpc-js @grpc/proto-loader`,
      { cause },
    );
  }
}

/**
 * Loads the client class; its `service` is the server's definition.
 *
 * @param user the feature named in the error
 * @throws InvalidServingError without gRPC
 */
export async function loadInferenceService(user: string): Promise<ServiceClientConstructor> {
  const { grpc, loader } = loadGrpc(user);
  const file = fileURLToPath(new URL('./inference.proto', import.meta.url));
  const definition = await loader.load(file, {
    keepCase: true,
    longs: String,
    enums: String,
    arrays: true,
    objects: true,
    oneofs: true,
  });
  const { inference } = grpc.loadPackageDefinition(definition) as unknown as {
    readonly inference: { readonly GRPCInferenceService: ServiceClientConstructor };
  };
  return inference.GRPCInferenceService;
}
