import { isServingError, ServingLoadError } from '../../../index.js';
import { messageOf, formatValue, type ModelSignature } from '../../../internal.js';
import {
  EndpointConnection,
  type EndpointCall,
  type GrpcService,
  READY_TIMEOUT,
} from './endpoint-connection.js';
import { isUnimplemented } from './endpoint-errors.js';
import type { RemoteModel, ResolvedEndpoint } from './endpoint-options.js';
import {
  type BatchConfig,
  type EndpointMetadataReply,
  signatureOfEndpoint,
} from './endpoint-signature.js';
import { EndpointPartition } from './endpoint.partition.js';

/** A server. Its partitions share a connection. */
export class Endpoint {
  private connection: EndpointConnection | undefined;
  /** A server that later has a different model is not used. */
  private known: ModelSignature | undefined;

  constructor(
    private readonly loaded: GrpcService,
    private readonly options: ResolvedEndpoint,
    private readonly model: RemoteModel,
    /** Longest first pause, in milliseconds, while the server is busy. */
    private readonly pause: number,
  ) {}

  /** @throws ServingLoadError when the server does not report that the model is ready */
  async open(end: AbortSignal): Promise<EndpointPartition> {
    const { options, model } = this;
    const connection = this.connect();
    connection.acquire();
    try {
      const signature = await describe(connection, model, end);
      this.check(signature);
      return new EndpointPartition(connection, options.url, model, signature, this.pause);
    } catch (cause) {
      connection.release();
      throw isServingError(cause)
        ? cause
        : new ServingLoadError(
            `The model ${formatValue(model.name)} of the endpoint ${options.url} cannot be used: ` +
              `${messageOf(cause)}; check the address, and the name and version of the model there`,
            { cause },
          );
    }
  }

  /** From now on, a server with a different model is not used. */
  expect(signature: ModelSignature): void {
    this.known = signature;
  }

  private connect(): EndpointConnection {
    const { connection } = this;
    return connection && !connection.lost
      ? connection
      : (this.connection = new EndpointConnection(this.loaded, this.options));
  }

  private check(signature: ModelSignature): void {
    const { known } = this;
    if (known && !isSameModel(known, signature)) {
      throw new ServingLoadError(
        `The model ${formatValue(this.model.name)} of the endpoint ${this.options.url} has other ` +
          'inputs or outputs than at the start; start the application again to use it',
      );
    }
  }
}

/** True if the signatures are equal. */
export function isSameModel(one: ModelSignature, other: ModelSignature): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

async function describe(
  connection: EndpointConnection,
  model: RemoteModel,
  signal: AbortSignal,
): Promise<ModelSignature> {
  const { name, version } = model;
  const options: EndpointCall = { signal, deadline: new Date(Date.now() + READY_TIMEOUT) };
  const ask = <Reply>(method: string): Promise<Reply> =>
    connection.call<Reply>(method, { name, version }, options);
  await connection.ready(model, options);
  const metadata = await ask<EndpointMetadataReply>('ModelMetadata');
  return signatureOfEndpoint(metadata, await configOf(ask), model);
}

/** Only servers with Triton's extension have one. */
async function configOf(ask: <Reply>(method: string) => Promise<Reply>): Promise<BatchConfig> {
  try {
    const { config } = await ask<{ readonly config?: BatchConfig | null }>('ModelConfig');
    return config ?? undefined;
  } catch (error) {
    if (isUnimplemented(error)) {
      return undefined;
    }
    throw error;
  }
}
