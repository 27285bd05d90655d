import type { Tensor } from 'onnxruntime-common';
import type { Origin } from '../../../index.js';
import type { AbortSignalLike } from '../../../internal.js';

/** 64-bit integers may be bigints. */
export type ParameterValue = string | number | boolean | bigint;

export type Parameters = ReadonlyMap<string, ParameterValue>;

export interface InferenceRequest {
  readonly model: string;
  /** If empty, the server chooses. */
  readonly version?: string | undefined;
  readonly id?: string | undefined;
  readonly parameters: Parameters;
  /** BYTES elements that aren't UTF-8 are Uint8Arrays in a string tensor. */
  readonly inputs: ReadonlyMap<string, Tensor>;
  readonly inputParameters?: ReadonlyMap<string, Parameters>;
  /** Requested outputs; undefined for all. */
  readonly outputs?: ReadonlyMap<string, Parameters> | undefined;
}

export interface InferenceCaller {
  readonly signal?: AbortSignalLike | undefined;
  /** Milliseconds since 1970. */
  readonly deadline?: number | undefined;
  readonly tenant?: string | undefined;
  readonly origin?: Origin | undefined;
}

export interface InferenceReply {
  readonly model: string;
  readonly version: string;
  /** The request's id, unless empty. */
  readonly id: string | undefined;
  /** Binary BYTES elements are Uint8Arrays in a string tensor. */
  readonly outputs: ReadonlyMap<string, Tensor>;
}

export interface StreamedReply extends InferenceReply {
  /** A decoupled model's last reply has no outputs. */
  readonly isFinal: boolean;
}
