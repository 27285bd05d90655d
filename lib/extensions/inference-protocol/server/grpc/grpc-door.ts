import {
  type BeforeApplicationShutdown,
  Injectable,
  Logger,
  type OnApplicationBootstrap,
  type OnApplicationShutdown,
} from '@nestjs/common';
import { ExternalContextCreator } from '@nestjs/core';
import type {
  Metadata,
  sendUnaryData,
  ServiceDefinition,
  UntypedHandleCall,
  UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { InvalidServingError } from '../../../../index.js';
import { messageOf } from '../../../../doors/text.js';
import {
  type GrpcPackages,
  loadGrpc,
  loadInferenceService,
  withLimitOfLists,
} from '../../wire/grpc-service.js';
import { errorAnswer, FailedCall, statusOf } from '../error-answers.js';
import { InferenceServer } from '../inference-server.js';
import { GrpcListener } from './grpc-listener.js';
import { HealthCalls, loadHealth } from './health.js';
import { Reflection } from './reflection.js';
import { ProtocolCalls, type StreamCall, type UnaryCall } from './protocol-calls.js';

type Grpc = GrpcPackages['grpc'];
type Name = Exclude<keyof ProtocolCalls, 'stop'>;
type Run = (request: unknown, metadata: Metadata, call: UnaryCall | StreamCall) => Promise<unknown>;

/** Milliseconds for the last replies. */
const GRACE = 1000;

@Injectable()
export class GrpcDoor
  implements OnApplicationBootstrap, BeforeApplicationShutdown, OnApplicationShutdown
{
  port: number | undefined;
  private listener: GrpcListener | undefined;
  private closed: Promise<void> | undefined;
  private readonly logger = new Logger('InferenceProtocol');

  constructor(
    private readonly inference: InferenceServer,
    private readonly calls: ProtocolCalls,
    private readonly reflection: Reflection,
    private readonly contexts: ExternalContextCreator,
  ) {}

  /** @internal The servings have started. */
  async onApplicationBootstrap(): Promise<void> {
    const { grpc: options, bodyLimit } = this.inference.options;
    if (!options) {
      return;
    }
    const user = 'The option grpc of InferenceProtocolModule';
    const client = await loadInferenceService(user);
    const service = withLimitOfLists(client.service, options.listLimit);
    const { grpc, loader } = loadGrpc(user);
    const server = new grpc.Server({
      'grpc.max_receive_message_length': bodyLimit,
      'grpc.max_send_message_length': -1,
    });
    server.addService(service, this.handlers(grpc, service));
    const health = await loadHealth(loader);
    server.addService(
      health,
      new HealthCalls(this.inference, this.calls.stop.signal, grpc).handlers,
    );
    if (options.reflection) {
      for (const each of await this.reflection.load(loader)) {
        server.addService(each, this.handlers(grpc, each));
      }
    }
    const { port, host } = options;
    this.listener = new GrpcListener(server, grpc.ServerCredentials.createInsecure(), options);
    this.port = await listening(this.listener, host, port);
    this.logger.log(`The Open Inference Protocol is served by gRPC at ${host}:${this.port}`);
  }

  /** @internal Refuses new calls; idle streams end after running calls. */
  beforeApplicationShutdown(): void {
    // Only clients that don't read are left at the limit.
    this.closed = this.listener?.close(this.inference.shutdownLimit + GRACE);
    this.calls.stop.abort();
  }

  /** @internal Servings answer all calls until then. */
  async onApplicationShutdown(): Promise<void> {
    await this.closed;
  }

  private handlers(grpc: Grpc, service: ServiceDefinition): UntypedServiceImplementation {
    return Object.fromEntries(
      Object.entries(service).map(([name, { requestStream }]): [string, UntypedHandleCall] => {
        const run = this.inContext(name as Name);
        return [name, requestStream ? this.stream(grpc, run) : this.unary(grpc, run)];
      }),
    );
  }

  private inContext(name: Name): Run {
    const { calls, contexts } = this;
    return contexts.create(
      calls,
      calls[name] as (...args: unknown[]) => unknown,
      name,
      undefined,
      undefined,
      undefined,
      undefined,
      undefined,
      'rpc',
    ) as Run;
  }

  private unary(grpc: Grpc, run: Run) {
    return async (call: UnaryCall, reply: sendUnaryData<unknown>): Promise<void> => {
      const result = await resultOf(run(call.request, call.metadata, call));
      if (result instanceof FailedCall) {
        reply(statusOf(result.answer, new grpc.Metadata()));
      } else {
        reply(null, result);
      }
    };
  }

  private stream(grpc: Grpc, run: Run) {
    return async (call: StreamCall): Promise<void> => {
      // A client that disconnects is no application error.
      call.on('error', () => {});
      const result = await resultOf(run(call, call.metadata, call));
      if (result instanceof FailedCall) {
        call.emit('error', statusOf(result.answer, new grpc.Metadata()));
      } else {
        call.end();
      }
    };
  }
}

/** Filters answer most errors; the rest are their faults. */
function resultOf(running: Promise<unknown>): Promise<unknown> {
  return running.catch((error: unknown) => new FailedCall(errorAnswer(error)));
}

async function listening(listener: GrpcListener, host: string, port: number): Promise<number> {
  try {
    return await listener.listen(host, port);
  } catch (error) {
    throw new InvalidServingError(
      `InferenceProtocolModule cannot serve gRPC at ${host}:${port}: ${messageOf(error)}`,
      { cause: error },
    );
  }
}
