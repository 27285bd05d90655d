import type { AddressInfo } from 'node:net';
import type { ConnectionOptions, TlsOptions } from 'node:tls';
import type { Peers } from './peers.js';

/** What the transports have in common whose nodes dial each other. */
export interface DialledSettings {
  /** The nodes to connect to. @default [] */
  readonly peers?: Peers | undefined;
  /** What all nodes and clients know, and nobody else. */
  readonly secret?: string | undefined;
  /** Whether a node may listen beyond this machine with neither a secret nor certificates of both sides. @default false */
  readonly insecure?: boolean | undefined;
}

export interface DialledOptions {
  /** For both directions: certificates, authorities, `requestCert`, and what else Node's `tls` takes. @default no encryption */
  readonly tlsOptions?: TlsOptions & ConnectionOptions;
}

/** Where it listens, once it does. */
export function portOf(listener: { address(): AddressInfo | string | null } | undefined): number | undefined {
  const address = listener?.address();
  return typeof address === 'object' && address !== null ? address.port : undefined;
}
