import type { Client, ServiceClientConstructor, ServiceError } from '@grpc/grpc-js';
import type { AbortSignalLike } from '../../context/call-options.js';
import { messageOf } from '../../errors.js';
import { loadGrpc, loadInferenceService } from '../../protocol/grpc-service.js';
import { EndpointFailure } from './endpoint-errors.js';
import type { ResolvedEndpoint } from './endpoint-options.js';

type Grpc = typeof import('@grpc/grpc-js');

/** The package of gRPC, and the service of the protocol. */
export interface GrpcService {
  readonly grpc: Grpc;
  readonly service: ServiceClientConstructor;
}

/** Loads gRPC; @throws InvalidServingError when it is not installed */
export async function loadService(): Promise<GrpcService> {
  const user = 'A serving with an endpoint';
  const service = await loadInferenceService(user);
  return { grpc: loadGrpc(user).grpc, service };
}

/** The terms of a call. */
export interface EndpointCall {
  /** When the server stops working on it. */
  readonly deadline?: Date | undefined;
  /** Cancels it. */
  readonly signal?: AbortSignalLike | undefined;
}

/** UNAVAILABLE. */
const NO_CONNECTION = 14;

const CHANNEL_OPTIONS = {
  // The retry policy of the serving decides which batches run again.
  'grpc.enable_retries': 0,
  // A new connection does not wait for the backoff of the one before.
  'grpc.use_local_subchannel_pool': 1,
  'grpc.initial_reconnect_backoff_ms': 100,
  'grpc.max_reconnect_backoff_ms': 5_000,
  'grpc.max_send_message_length': -1,
  'grpc.max_receive_message_length': -1,
  // Servers in C++ end connections that ping more often while they have nothing to send.
  'grpc.keepalive_time_ms': 300_000,
  'grpc.keepalive_timeout_ms': 20_000,
};

/** One channel to an endpoint, for all its partitions. It closes after the last of them. */
export class EndpointConnection {
  /** Resolves with the reason once the connection is lost. */
  readonly ended: Promise<Error>;
  lost: Error | undefined;
  private readonly client: Client;
  private users = 0;
  private end!: (reason: Error) => void;

  constructor(
    private readonly loaded: GrpcService,
    private readonly endpoint: ResolvedEndpoint,
  ) {
    this.ended = new Promise((resolve) => (this.end = resolve));
    this.client = new loaded.service(
      endpoint.target,
      credentialsOf(loaded.grpc, endpoint),
      CHANNEL_OPTIONS,
    );
  }

  acquire(): void {
    this.users++;
  }

  release(): void {
    if (--this.users === 0) {
      this.lose(new Error('The connection was closed'));
      this.client.close();
    }
  }

  /** No more calls are made with it. Those that run go on. */
  lose(reason: Error): void {
    this.lost ??= reason;
    this.end(reason);
  }

  /** @throws EndpointFailure */
  call<Reply>(method: string, request: object, options: EndpointCall): Promise<Reply> {
    return this.send(method, this.encode(method, request), options);
  }

  /** The bytes of a request. */
  encode(method: string, request: object): Buffer {
    return this.loaded.service.service[method]!.requestSerialize(request);
  }

  /**
   * Sends a request of these bytes. They are read until the reply is there; after a failure they may
   * still be read.
   *
   * @throws EndpointFailure
   */
  async send<Reply>(method: string, request: Buffer, options: EndpointCall): Promise<Reply> {
    const metadata = await this.metadata();
    const { path, responseDeserialize } = this.loaded.service.service[method]!;
    const { client, endpoint } = this;
    const { deadline, signal } = options;
    return new Promise((resolve, reject) => {
      const call = client.makeUnaryRequest(
        path,
        (encoded: Buffer) => encoded,
        responseDeserialize,
        request,
        metadata,
        deadline ? { deadline } : {},
        (error: ServiceError | null, reply: unknown) => {
          signal?.removeEventListener('abort', cancel);
          if (error) {
            // The peer of a call that no connection took is the target of the channel.
            const isSent = call.getPeer() !== client.getChannel().getTarget();
            reject(new EndpointFailure(endpoint.url, error.code, error.details, isSent));
          } else {
            resolve(reply as Reply);
          }
        },
      );
      const cancel = (): void => call.cancel();
      signal?.addEventListener('abort', cancel);
      if (signal?.aborted) {
        cancel();
      }
    });
  }

  private async metadata(): Promise<InstanceType<Grpc['Metadata']>> {
    const { endpoint, loaded } = this;
    const metadata = new loaded.grpc.Metadata();
    try {
      for (const [name, value] of Object.entries(await endpoint.metadata())) {
        metadata.set(name, value);
      }
    } catch (error) {
      const details = `its metadata cannot be sent: ${messageOf(error)}`;
      throw new EndpointFailure(endpoint.url, NO_CONNECTION, details, false);
    }
    return metadata;
  }
}

function credentialsOf({ credentials }: Grpc, { isSecure, tls = {} }: ResolvedEndpoint) {
  return isSecure
    ? credentials.createSsl(bytes(tls.ca), bytes(tls.key), bytes(tls.cert))
    : credentials.createInsecure();
}

function bytes(pem: string | Uint8Array | undefined): Buffer | null {
  return pem === undefined ? null : Buffer.from(pem);
}
