import type { DeclaredAxes } from '../../../internal.js';

/** A TLS connection's certificates, in PEM format. */
export interface EndpointTls {
  /**
   * Certificate authorities for servers.
   *
   * @default the system's
   */
  readonly ca?: string | Uint8Array;
  /**
   * The client certificate for the server; needs `key`.
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

/** Metadata of calls (gRPC headers) by name. */
export type EndpointMetadata = Readonly<Record<string, string>>;

/** An Open Inference Protocol server. */
export interface EndpointOptions {
  /** `grpc://host:port`, or `grpcs://host:port` with TLS. */
  readonly url: string;
  /**
   * The server's concurrent batches, and so its share. With two, one is in transit while the other
   * runs.
   *
   * @default 2
   */
  readonly concurrency?: number;
  /**
   * The certificates for a `grpcs:` address.
   *
   * @default servers are checked against the certificates of the system
   */
  readonly tls?: EndpointTls;
  /**
   * Metadata of each call, such as `{ authorization: 'Bearer ...' }`. A function runs for each call
   * and may return a promise.
   *
   * @default {}
   */
  readonly metadata?: EndpointMetadata | (() => EndpointMetadata | Promise<EndpointMetadata>);
}

/** An endpoint's model and its axes. */
export interface EndpointModel {
  /**
   * The model's name on the server.
   *
   * @default the name of the serving
   */
  readonly name?: string;
  /**
   * Batch axes if the server's are wrong (`null` for no axis), and axes where rows may differ in
   * length.
   *
   * @default read from the server; rows of different lengths share no batch
   */
  readonly inputs?: DeclaredAxes;
  /**
   * Batch axes if the server's are wrong, and axes where rows are cut back to their own inputs'
   * length.
   *
   * @default read from the server
   */
  readonly outputs?: DeclaredAxes;
  /**
   * The outputs in the reply. Other outputs are fetched only for calls with hooks on them.
   *
   * @default all outputs
   */
  readonly fetches?: readonly string[];
}

export interface RemoteModel extends EndpointModel {
  readonly name: string;
  /** For '', the server chooses one. */
  readonly version: string;
}

export interface ResolvedEndpoint extends Omit<EndpointOptions, 'metadata'> {
  /** Host and port. */
  readonly target: string;
  readonly concurrency: number;
  readonly isSecure: boolean;
  readonly metadata: () => EndpointMetadata | Promise<EndpointMetadata>;
}

/** One place per concurrent batch. Endpoints alternate, so idle ones take turns. */
export function placesOf(endpoints: readonly ResolvedEndpoint[]): readonly ResolvedEndpoint[] {
  const rounds = Math.max(...endpoints.map(({ concurrency }) => concurrency));
  return Array.from({ length: rounds }, (_, round) =>
    endpoints.filter(({ concurrency }) => round < concurrency),
  ).flat();
}
