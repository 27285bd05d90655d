import { setMaxListeners } from 'node:events';
import { Injectable, UseFilters, UseGuards } from '@nestjs/common';
import type { Metadata } from '@grpc/grpc-js';
import type { GrpcInferRequest, GrpcInferResponse } from '../../wire/grpc-messages.js';
import { InferenceServer } from '../inference-server.js';
import { ProtocolGuards, RepositoryGuards } from '../protocol-guards.js';
import { grpcCaller, GrpcTenants } from './grpc-caller.js';
import { GrpcExceptionFilter } from './grpc-exception.filter.js';
import type { StreamCall, UnaryCall } from './grpc-types.js';
import { answerStream } from './infer-stream.js';
import { readInferRequest } from './read-infer-request.js';
import { writeInferReply } from './write-infer-reply.js';

interface OfModel {
  readonly name: string;
  readonly version: string;
}

interface OfRepository {
  readonly model_name: string;
  readonly parameters: object;
}

/**
 * The protocol's gRPC calls, by name, with guards, interceptors and filters as for microservice
 * handlers.
 */
@Injectable()
@UseFilters(GrpcExceptionFilter)
export class ProtocolCalls {
  /** Stops reading streams' requests. */
  readonly stop = new AbortController();

  constructor(
    private readonly server: InferenceServer,
    private readonly tenants: GrpcTenants,
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
    const request = readInferRequest(message, server.options.bodyLimit);
    return writeInferReply(await server.infer(request, caller));
  }

  /** Writes its own replies, then resolves. */
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
}
