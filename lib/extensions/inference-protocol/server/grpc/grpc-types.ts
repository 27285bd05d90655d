import type { Metadata, ServerDuplexStream, ServerUnaryCall } from '@grpc/grpc-js';
import type { GrpcInferRequest, GrpcInferResponse } from '../../wire/grpc-messages.js';

export type UnaryCall = ServerUnaryCall<unknown, unknown>;

export interface StreamMessage {
  readonly error_message: string;
  readonly infer_response: Partial<GrpcInferResponse>;
}

export type StreamCall = ServerDuplexStream<GrpcInferRequest, StreamMessage>;

export type AnyCall = UnaryCall | StreamCall;

/** In the order of Nest's own gRPC handlers. */
export type HandlerArguments<Request, Call> = readonly [Request, Metadata, Call];
