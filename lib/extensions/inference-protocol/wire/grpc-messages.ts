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
