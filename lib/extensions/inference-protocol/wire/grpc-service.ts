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

/**
 * `inference.proto` in proto-loader's form. 64-bit integers are strings, to keep all digits;
 * received `bytes` are views at any offset.
 */

/** One field is set. */
export interface GrpcParameter {
  readonly bool_param?: boolean;
  readonly int64_param?: string | number;
  readonly string_param?: string;
  readonly double_param?: number;
  readonly uint64_param?: string | number;
}

export type GrpcParameters = Readonly<Record<string, GrpcParameter>>;

/** Elements by type, if not in `raw_input_contents`. */
export interface GrpcContents {
  readonly bool_contents?: readonly boolean[];
  readonly int_contents?: readonly number[];
  readonly int64_contents?: readonly string[];
  readonly uint_contents?: readonly number[];
  readonly uint64_contents?: readonly string[];
  readonly fp32_contents?: readonly number[];
  readonly fp64_contents?: readonly number[];
  readonly bytes_contents?: readonly Buffer[];
}

export interface GrpcTensor {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly (string | number)[];
  readonly parameters?: GrpcParameters;
  readonly contents?: GrpcContents | null;
}

export interface GrpcInferRequest {
  readonly model_name: string;
  readonly model_version?: string;
  readonly id?: string;
  readonly parameters?: GrpcParameters;
  readonly inputs: readonly GrpcTensor[];
  readonly outputs?: readonly { readonly name: string; readonly parameters?: GrpcParameters }[];
  readonly raw_input_contents: readonly Buffer[];
}

export interface GrpcInferResponse {
  readonly model_name: string;
  readonly model_version: string;
  readonly id?: string;
  readonly parameters?: GrpcParameters;
  readonly outputs: readonly GrpcTensor[];
  readonly raw_output_contents: readonly Buffer[];
}
