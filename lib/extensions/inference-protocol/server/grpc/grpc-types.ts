import type { Metadata, ServerDuplexStream, ServerUnaryCall } from '@grpc/grpc-js';
import type { GrpcInferRequest, GrpcInferResponse } from '../../wire/grpc-messages.js';

/** A call with one request and one reply. */
export type UnaryCall = ServerUnaryCall<unknown, unknown>;

/** A message of `ModelStreamInfer`. */
export interface StreamMessage {
  readonly error_message: string;
  readonly infer_response: Partial<GrpcInferResponse>;
}

/** A call with many requests and replies. */
export type StreamCall = ServerDuplexStream<GrpcInferRequest, StreamMessage>;

export type AnyCall = UnaryCall | StreamCall;

/** Handler arguments, in the order of Nest's own gRPC handlers. */
export type HandlerArguments<Request, Call> = readonly [Request, Metadata, Call];
