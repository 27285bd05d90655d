import type { DeclaredAxes } from '../onnx/model-signature.js';

/** The certificates of a connection with TLS, in the PEM format. */
export interface EndpointTls {
  /**
   * The certificates that sign those of servers.
   *
   * @default those of the system
   */
  readonly ca?: string | Uint8Array;
  /**
   * The certificate that the server gets; needs `key`.
   *
   * @default none
   */
  readonly cert?: string | Uint8Array;
  /**
   * The private key of `cert`.
   *
   * @default none
   */
  readonly key?: string | Uint8Array;
}

/** The metadata of calls by name, which are the headers of gRPC. */
export type EndpointMetadata = Readonly<Record<string, string>>;

/** A server of the Open Inference Protocol. */
export interface EndpointOptions {
  /** `grpc://host:port`, or `grpcs://host:port` with TLS. */
  readonly url: string;
  /**
   * The number of batches that the server gets at once, and so its share of the batches. With two,
   * one is on the way while the other runs.
   *
   * @default 2
   */
  readonly concurrency?: number;
  /**
   * The certificates of a `grpcs:` address.
   *
   * @default servers are checked against the certificates of the system
   */
  readonly tls?: EndpointTls;
  /**
   * The metadata of each call, such as `{ authorization: 'Bearer ...' }`; a function is called for
   * each call, and may return a promise.
   *
   * @default {}
   */
  readonly metadata?: EndpointMetadata | (() => EndpointMetadata | Promise<EndpointMetadata>);
}

/** The model of an endpoint, and the axes of its inputs and outputs. */
export interface EndpointModel {
  /**
   * The name of the model on the server.
   *
   * @default the name of the serving
   */
  readonly name?: string;
  /**
   * Batch axes of inputs where the default, read from the server, is wrong; `null` for none. And
   * axes on which rows may differ in length.
   *
   * @default read from the server; rows of different lengths share no batch
   */
  readonly inputs?: DeclaredAxes;
  /**
   * Batch axes of outputs where the default, read from the server, is wrong. And axes on which the
   * rows are cut back to the length of their own inputs.
   *
   * @default read from the server
   */
  readonly outputs?: DeclaredAxes;
  /**
   * The outputs of the reply. Other outputs are fetched only for calls that ask for them as hooks.
   *
   * @default all outputs
   */
  readonly fetches?: readonly string[];
}

/** The model that an endpoint is to run. */
export interface RemoteModel extends EndpointModel {
  readonly name: string;
  /** The version on the server; the server chooses one for ''. */
  readonly version: string;
}

/** An endpoint with every default filled in. */
export interface ResolvedEndpoint extends Omit<EndpointOptions, 'metadata'> {
  /** The host and port, as gRPC takes them. */
  readonly target: string;
  readonly concurrency: number;
  readonly isSecure: boolean;
  readonly metadata: () => EndpointMetadata | Promise<EndpointMetadata>;
}

/** The places for batches: one endpoint after the other, so that idle ones take turns. */
export function placesOf(endpoints: readonly ResolvedEndpoint[]): readonly ResolvedEndpoint[] {
  const rounds = Math.max(...endpoints.map(({ concurrency }) => concurrency));
  return Array.from({ length: rounds }, (_, round) =>
    endpoints.filter(({ concurrency }) => round < concurrency),
  ).flat();
}
