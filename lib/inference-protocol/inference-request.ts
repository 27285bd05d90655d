import type { Tensor } from 'onnxruntime-common';
import type { AbortSignalLike } from '../context/call-options.js';
import type { Origin } from '../context/caller-context.js';

/** A parameter of a request, a tensor or a reply. Whole numbers of 64 bits may be bigints. */
export type ParameterValue = string | number | boolean | bigint;

export type Parameters = ReadonlyMap<string, ParameterValue>;

/** A request for inference, whichever door it came through. */
export interface InferenceRequest {
  readonly model: string;
  /** The server chooses where this is undefined or empty. */
  readonly version?: string | undefined;
  readonly id?: string | undefined;
  readonly parameters: Parameters;
  /** Elements of BYTES that are not UTF-8 are Uint8Arrays in a tensor of strings. */
  readonly inputs: ReadonlyMap<string, Tensor>;
  /** The parameters of inputs that have some. */
  readonly inputParameters?: ReadonlyMap<string, Parameters>;
  /** The names of the outputs of the reply, with their parameters; all where this is undefined. */
  readonly outputs?: ReadonlyMap<string, Parameters> | undefined;
}

/** The client of a request. */
export interface InferenceCaller {
  /** Aborts when the client has left. */
  readonly signal?: AbortSignalLike | undefined;
  /** The time of its deadline, in milliseconds since 1970. */
  readonly deadline?: number | undefined;
  readonly tenant?: string | undefined;
  readonly origin?: Origin | undefined;
}

/** A reply, or one of several. */
export interface InferenceReply {
  readonly model: string;
  readonly version: string;
  /** That of the request; undefined where it is empty. */
  readonly id: string | undefined;
  /** Binary elements of BYTES are Uint8Arrays in a tensor of strings. */
  readonly outputs: ReadonlyMap<string, Tensor>;
}

/** A reply of a stream. */
export interface StreamedReply extends InferenceReply {
  /** No reply follows. The final reply of a decoupled model has no outputs. */
  readonly isFinal: boolean;
}
