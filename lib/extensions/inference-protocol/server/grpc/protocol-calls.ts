import { setMaxListeners } from 'node:events';
import {
  type CanActivate,
  type ExecutionContext,
  Injectable,
  UseFilters,
  UseGuards,
} from '@nestjs/common';
import type { Metadata, ServerDuplexStream, ServerUnaryCall } from '@grpc/grpc-js';
import type { GrpcInferRequest, GrpcInferResponse } from '../../wire/grpc-service.js';
import { InferenceServer } from '../inference-server.js';
import { ProtocolGuards, RepositoryGuards } from '../protocol-guards.js';
import { GrpcExceptionFilter } from '../error-answers.js';
import { answerStream } from './infer-stream.js';
import { Reflection, type ReflectionCall } from './reflection.js';
import { readInferRequest, writeInferReply } from './messages.js';
import { CallCancelledError } from '../../../../index.js';
import type { InferenceCaller } from '../inference-request.js';

/** Nest makes one instance for `@UseGuards` and one for injection; both need these. */
const tenantsOfCalls = new WeakMap<AnyCall, string | undefined>();

/** Only guards get the context. */
@Injectable()
export class GrpcTenants implements CanActivate {
  constructor(private readonly server: InferenceServer) {}

  canActivate(context: ExecutionContext): boolean {
    const { tenant } = this.server.options;
    if (tenant) {
      tenantsOfCalls.set(context.getArgByIndex<AnyCall>(2), tenant(context));
    }
    return true;
  }

  of(call: AnyCall): string | undefined {
    return tenantsOfCalls.get(call);
  }
}

interface OfModel {
  readonly name: string;
  readonly version: string;
}

interface OfRepository {
  readonly model_name: string;
  readonly parameters: object;
}

/**
 * The protocol's gRPC calls, with guards, interceptors and filters as for microservice handlers.
 */
@Injectable()
@UseFilters(GrpcExceptionFilter)
export class ProtocolCalls {
  readonly stop = new AbortController();

  constructor(
    private readonly server: InferenceServer,
    private readonly tenants: GrpcTenants,
    private readonly reflection: Reflection,
  ) {
    setMaxListeners(0, this.stop.signal);
  }

  ServerLive(): object {
    return { live: true };
  }

  ServerReady(): object {
    return { ready: this.server.isReady };
  }

  @UseGuards(ProtocolGuards)
  ServerMetadata(): object {
    return this.server.metadata();
  }

  @UseGuards(ProtocolGuards)
  ModelReady({ name, version }: OfModel): object {
    return { ready: this.server.isModelReady(name, version) };
  }

  @UseGuards(ProtocolGuards)
  ModelMetadata({ name, version }: OfModel): object {
    return this.server.modelMetadata(name, version);
  }

  @UseGuards(ProtocolGuards)
  ModelConfig({ name, version }: OfModel): object {
    return { config: this.server.modelConfig(name, version) };
  }

  @UseGuards(ProtocolGuards)
  ModelStatistics({ name, version }: OfModel): object {
    return { model_stats: this.server.statistics(name, version) };
  }

  @UseGuards(ProtocolGuards)
  RepositoryIndex({ ready }: { readonly ready: boolean }): object {
    return { models: this.server.index(ready) };
  }

  @UseGuards(ProtocolGuards, RepositoryGuards)
  async RepositoryModelLoad({ model_name, parameters }: OfRepository): Promise<object> {
    await this.server.load(model_name, Object.keys(parameters));
    return {};
  }

  @UseGuards(ProtocolGuards, RepositoryGuards)
  RepositoryModelUnload({ model_name }: OfRepository): object {
    this.server.unload(model_name);
    return {};
  }

  @UseGuards(ProtocolGuards, GrpcTenants)
  async ModelInfer(
    message: GrpcInferRequest,
    _metadata: Metadata,
    call: UnaryCall,
  ): Promise<GrpcInferResponse> {
    const { server, tenants } = this;
    const caller = grpcCaller(call, tenants.of(call));
    const request = readInferRequest(message, server.options);
    return writeInferReply(await server.infer(request, caller));
  }

  @UseGuards(ProtocolGuards, GrpcTenants)
  async ModelStreamInfer(
    _messages: StreamCall,
    metadata: Metadata,
    call: StreamCall,
  ): Promise<object> {
    const endsOnError = metadata.get('triton_grpc_error')[0] === 'true';
    const caller = grpcCaller(call, this.tenants.of(call));
    await answerStream(this.server, call, caller, this.stop.signal, endsOnError);
    return {};
  }

  @UseGuards(ProtocolGuards)
  async ServerReflectionInfo(
    _questions: ReflectionCall,
    _metadata: Metadata,
    call: ReflectionCall,
  ): Promise<object> {
    await this.reflection.answer(call, this.stop.signal);
    return {};
  }
}

export function grpcCaller(call: AnyCall, tenant: string | undefined): InferenceCaller {
  const left = new AbortController();
  const abort = (): void =>
    left.abort(new CallCancelledError('The client has left before it was answered'));
  call.once('cancelled', abort);
  if (call.cancelled) {
    abort();
  }
  const deadline = Number(call.getDeadline());
  return {
    signal: left.signal,
    deadline: deadline < Infinity ? deadline : undefined,
    tenant,
    origin: 'rpc',
  };
}

export type UnaryCall = ServerUnaryCall<unknown, unknown>;

export interface StreamMessage {
  readonly error_message: string;
  readonly infer_response: Partial<GrpcInferResponse>;
}

export type StreamCall = ServerDuplexStream<GrpcInferRequest, StreamMessage>;

export type AnyCall = UnaryCall | StreamCall;

/** Ordered like Nest's own gRPC handlers. */
export type HandlerArguments<Request, Call> = readonly [Request, Metadata, Call];
