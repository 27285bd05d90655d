import type { AddressInfo } from 'node:net';
import type { ConnectionOptions, TlsOptions } from 'node:tls';
import type { Peers } from './peers.js';
import { InvalidServingError } from '../../errors.js';

/** What the transports have in common whose nodes dial each other. */
export interface PeerSettings {
  /** The nodes to connect to. @default [] */
  readonly peers?: Peers | undefined;
  /** What all nodes and clients know, and nobody else. */
  readonly secret?: string | undefined;
  /**
   * Whether a node may listen beyond this machine with neither a secret nor certificates of both
   * sides. @default false
   */
  readonly insecure?: boolean | undefined;
}

export interface TlsSettings {
  /**
   * For both directions: certificates, authorities, `requestCert`, and what else Node's `tls`
   * takes. @default no encryption
   */
  readonly tlsOptions?: TlsOptions & ConnectionOptions;
}

/** Where it listens, once it does. */
export function portOf(
  listener: { address(): AddressInfo | string | null } | undefined,
): number | undefined {
  const address = listener?.address();
  return typeof address === 'object' && address !== null ? address.port : undefined;
}

/**
 * Anybody who reaches the port of a node can call its servings, and pass for a node.
 *
 * @throws InvalidServingError when a node would listen beyond this machine, and nothing keeps
 * strangers out
 */
export function assertNotPublic(
  host: string,
  {
    tlsOptions,
    secret,
    insecure,
  }: { tlsOptions?: TlsOptions | undefined; secret?: string | undefined; insecure: boolean },
): void {
  const isMutual = tlsOptions?.requestCert === true && tlsOptions.rejectUnauthorized !== false;
  if (!isLoopback(host) && !isMutual && !secret && !insecure) {
    throw new InvalidServingError(
      `A node that listens on ${host || 'every address'} can be called, and passed for, by ` +
        'anybody who reaches it. Give its nodes a secret, or certificates ' +
        'of both sides (tlsOptions with requestCert: true), let it listen on 127.0.0.1, or say ' +
        'insecure: true where the network itself keeps strangers out.',
    );
  }
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127(\.\d{1,3}){3}$/.test(host);
}
