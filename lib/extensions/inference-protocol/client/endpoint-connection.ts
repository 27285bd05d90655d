import type { Client, ServiceClientConstructor, ServiceError } from '@grpc/grpc-js';
import { type AbortSignalLike, onAbort } from '../../../doors/calls.js';
import { kindOf, formatValue } from '../../../doors/text.js';
import { loadGrpc, loadInferenceService } from '../wire/grpc-service.js';
import { EndpointFailure, ModelNotReadyError, type StatusPlace } from './endpoint-errors.js';
import type { EndpointMetadata, RemoteModel, ResolvedEndpoint } from './endpoint-rules.js';

type Grpc = typeof import('@grpc/grpc-js');

export interface GrpcService {
  readonly grpc: Grpc;
  readonly service: ServiceClientConstructor;
}

/** @throws InvalidServingError if gRPC isn't installed */
export async function loadService(): Promise<GrpcService> {
  const user = 'A serving with an endpoint';
  const service = await loadInferenceService(user);
  return { grpc: loadGrpc(user).grpc, service };
}

export interface EndpointCall {
  readonly deadline?: Date | undefined;
  readonly signal?: AbortSignalLike | undefined;
}

/** Milliseconds. */
export const READY_TIMEOUT = 10_000;

const METADATA_TIMEOUT = 10_000;

const CANCELLED = 1;
const DEADLINE_EXCEEDED = 4;
const UNAVAILABLE = 14;

const CHANNEL_OPTIONS = {
  // The serving's retry policy decides which batches run again.
  'grpc.enable_retries': 0,
  // A new connection must not wait for the previous backoff.
  'grpc.use_local_subchannel_pool': 1,
  'grpc.initial_reconnect_backoff_ms': 100,
  'grpc.max_reconnect_backoff_ms': 5_000,
  'grpc.max_send_message_length': -1,
  'grpc.max_receive_message_length': -1,
  // C++ servers close idle connections that ping more often.
  'grpc.keepalive_time_ms': 300_000,
  'grpc.keepalive_timeout_ms': 20_000,
};

/** Closes after the last partition. */
export class EndpointConnection {
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

  /** Running calls continue. */
  lose(reason: Error): void {
    this.lost ??= reason;
    this.end(reason);
  }

  /** @throws EndpointFailure */
  call<Reply>(method: string, request: object, options: EndpointCall): Promise<Reply> {
    return this.send(method, this.encode(method, request), options);
  }

  /**
   * @throws ModelNotReadyError
   * @throws EndpointFailure
   */
  async ready({ name, version }: RemoteModel, options: EndpointCall): Promise<void> {
    const model = { name, version };
    const { ready } = await this.call<{ readonly ready: boolean }>('ModelReady', model, options);
    if (!ready) {
      throw new ModelNotReadyError();
    }
  }

  encode(method: string, request: object): Buffer {
    return this.loaded.service.service[method]!.requestSerialize(request);
  }

  /**
   * Reads the bytes until the reply, or after a failure possibly longer.
   *
   * @throws EndpointFailure
   */
  async send<Reply>(method: string, request: Buffer, options: EndpointCall): Promise<Reply> {
    const metadata = await this.metadata(options);
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
            reject(new EndpointFailure(endpoint.url, error.code, error.details, placeOf(error)));
          } else {
            resolve(reply as Reply);
          }
        },
      );
      const placeOf = ({ metadata: answered }: ServiceError): StatusPlace => {
        // The peer is the channel's target without a connection.
        if (call.getPeer() === client.getChannel().getTarget()) {
          return 'here';
        }
        // Only a server's answer has headers.
        return Object.keys(answered.getMap()).length > 0 ? 'server' : 'connection';
      };
      const cancel = (): void => call.cancel();
      signal?.addEventListener('abort', cancel);
      if (signal?.aborted) {
        cancel();
      }
    });
  }

  /** Values may be secrets: no error quotes them, nor errors of grpc-js or `metadata`. */
  private async metadata(call: EndpointCall): Promise<InstanceType<Grpc['Metadata']>> {
    const metadata = new this.loaded.grpc.Metadata();
    for (const [name, value] of Object.entries(await this.ownMetadata(call))) {
      if (typeof value !== 'string' || !/^[ -~]*$/.test(value)) {
        throw this.unsent(
          UNAVAILABLE,
          `its metadata ${formatValue(name)} is not a text that a header can have: a text of ` +
            'printable ASCII without line breaks, with which files of secrets often end',
        );
      }
      try {
        metadata.set(name, value);
      } catch {
        throw this.unsent(UNAVAILABLE, `its metadata has the invalid name ${formatValue(name)}`);
      }
    }
    return metadata;
  }

  /** A function must answer in time. */
  private async ownMetadata({ deadline, signal }: EndpointCall): Promise<EndpointMetadata> {
    let stop!: () => void;
    try {
      const made = this.endpoint.metadata();
      if (!('then' in made)) {
        return made;
      }
      const stopped = new Promise<never>((_, reject) => {
        const left = deadline ? deadline.getTime() - Date.now() : Infinity;
        const limit = Math.max(0, Math.min(left, METADATA_TIMEOUT));
        const timer = setTimeout(() => {
          const details = `its metadata function did not answer within ${Math.round(limit)} ms`;
          reject(this.unsent(DEADLINE_EXCEEDED, details));
        }, limit);
        const stopListening = onAbort(signal, () =>
          reject(this.unsent(CANCELLED, 'the call was cancelled before it had metadata')),
        );
        stop = () => {
          clearTimeout(timer);
          stopListening();
        };
      });
      return await Promise.race([made, stopped]).finally(stop);
    } catch (error) {
      throw error instanceof EndpointFailure
        ? error
        : this.unsent(UNAVAILABLE, `its metadata function failed with ${kindOf(error)}`);
    }
  }

  private unsent(code: number, details: string): EndpointFailure {
    return new EndpointFailure(this.endpoint.url, code, details, 'here');
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
