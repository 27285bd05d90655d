import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import type { MethodDefinition, ServiceClientConstructor, ServiceDefinition } from '@grpc/grpc-js';
import { InvalidServingError } from '../../../index.js';

export interface GrpcPackages {
  readonly grpc: typeof import('@grpc/grpc-js');
  readonly loader: typeof import('@grpc/proto-loader');
}

/**
 * Loads at run time: bundlers would look for the packages in every application.
 *
 * @param user named in errors
 * @throws InvalidServingError if they aren't installed
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
 * The class's `service` is the server's definition.
 *
 * @param user named in errors
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

/** Fields of a `ModelInferRequest`: the last of model, version and id, and raw contents. */
const ID = 3;
const RAW_CONTENTS = 7;

/** Bytes of memory for any entry of raw contents. */
const COST_OF_AN_ENTRY = 1024;

/**
 * Limits a request's bytes outside its raw contents, such as elements in lists: the decoder reads
 * them in one go, about 30 ms for a megabyte. It reads only the model and id of a larger request;
 * then `isUndecoded` is true.
 */
export function withLimitOfLists(service: ServiceDefinition, limit: number): ServiceDefinition {
  const limited = (name: string) => {
    const method = service[name] as MethodDefinition<GrpcInferRequest, unknown>;
    const decode = method.requestDeserialize;
    return {
      ...method,
      requestDeserialize: (message: Buffer): GrpcInferRequest =>
        isBeyond(limit, message)
          ? { ...decode(headOf(message)), isUndecoded: true }
          : decode(message),
    };
  };
  const [ModelInfer, ModelStreamInfer] = ['ModelInfer', 'ModelStreamInfer'].map(limited);
  return { ...service, ModelInfer, ModelStreamInfer } as ServiceDefinition;
}

function isBeyond(limit: number, message: Buffer): boolean {
  let sum = 0;
  for (const { number, begin, end } of fieldsOf(message)) {
    sum += number === RAW_CONTENTS ? COST_OF_AN_ENTRY : end - begin;
    if (sum > limit) {
      return true;
    }
  }
  return false;
}

function headOf(message: Buffer): Buffer {
  let length = 0;
  for (const { number, end } of fieldsOf(message)) {
    if (number > ID) {
      break;
    }
    length = end;
  }
  return message.subarray(0, length);
}

interface Field {
  readonly number: number;
  /** Index of its tag. */
  readonly begin: number;
  readonly end: number;
}

/**
 * Lists a message's fields. An unknown one has all bytes that follow. See
 * https://protobuf.dev/programming-guides/encoding/
 */
function* fieldsOf(message: Buffer): Generator<Field, void> {
  const { length } = message;
  let at = 0;
  const varint = (): number => {
    let value = 0;
    for (let scale = 1; at < length; scale *= 128) {
      const byte = message[at++]!;
      value += (byte % 128) * scale;
      if (byte < 128) {
        break;
      }
    }
    return value;
  };
  while (at < length) {
    const begin = at;
    const tag = varint();
    switch (tag % 8) {
      case 0:
        varint();
        break;
      case 1:
        at += 8;
        break;
      case 2: {
        const size = varint();
        at += size;
        break;
      }
      case 5:
        at += 4;
        break;
      default:
        at = length;
    }
    yield { number: Math.floor(tag / 8), begin, end: Math.min(at, length) };
  }
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
  /** True if too large: only the model and id were decoded. */
  readonly isUndecoded?: boolean;
}

export interface GrpcInferResponse {
  readonly model_name: string;
  readonly model_version: string;
  readonly id?: string;
  readonly parameters?: GrpcParameters;
  readonly outputs: readonly GrpcTensor[];
  readonly raw_output_contents: readonly Buffer[];
}
