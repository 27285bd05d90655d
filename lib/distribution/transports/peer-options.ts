import type { AddressInfo } from 'node:net';
import type { ConnectionOptions, TlsOptions } from 'node:tls';
import type { Peers } from './peers.js';
import { InvalidServingError } from '../../errors.js';

/** Options of the transports whose nodes dial each other. */
export interface PeerSettings {
  /** The nodes to connect to. @default [] */
  readonly peers?: Peers | undefined;
  /** The secret of all nodes and clients. */
  readonly secret?: string | undefined;
  /**
   * Whether a node may listen beyond this machine with neither a secret nor certificates of both
   * sides. @default false
   */
  readonly insecure?: boolean | undefined;
}

export interface TlsSettings {
  /**
   * For both directions: certificates, authorities, `requestCert`, and other options of Node's
   * `tls`. @default no encryption
   */
  readonly tlsOptions?: TlsOptions & ConnectionOptions;
}

/** The port on which the node listens. */
export function portOf(
  listener: { address(): AddressInfo | string | null } | undefined,
): number | undefined {
  const address = listener?.address();
  return typeof address === 'object' && address !== null ? address.port : undefined;
}

/**
 * Anyone who reaches the port of a node can call its servings, and impersonate a node.
 *
 * @throws InvalidServingError when a node would listen beyond this machine without protection
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
