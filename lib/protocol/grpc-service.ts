import { fileURLToPath } from 'node:url';
import type { ServiceClientConstructor } from '@grpc/grpc-js';
import { InvalidServingError } from '../errors.js';

/**
 * The service `inference.GRPCInferenceService`: its client class, whose `service` is its definition
 * for a server.
 *
 * @param user the feature that needs it, for the error
 * @throws InvalidServingError when the packages of gRPC are not installed
 */
export async function loadInferenceService(user: string): Promise<ServiceClientConstructor> {
  const [{ loadPackageDefinition }, { load }] = await Promise.all([
    import('@grpc/grpc-js'),
    import('@grpc/proto-loader'),
  ]).catch((cause: unknown) => {
    throw new InvalidServingError(
      `${user} needs gRPC; install it: npm install @grpc/grpc-js @grpc/proto-loader`,
      { cause },
    );
  });
  const definition = await load(fileURLToPath(new URL('./inference.proto', import.meta.url)), {
    keepCase: true,
    longs: String,
    enums: String,
    arrays: true,
    objects: true,
    oneofs: true,
  });
  const { inference } = loadPackageDefinition(definition) as unknown as {
    readonly inference: { readonly GRPCInferenceService: ServiceClientConstructor };
  };
  return inference.GRPCInferenceService;
}
