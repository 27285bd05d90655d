import type { TlsOptions } from 'node:tls';
import { InvalidServingError } from '../../errors.js';

/**
 * Anybody who reaches the port of a node can call its servings, and pass for a node.
 *
 * @throws InvalidServingError when a node would listen beyond this machine, and nothing keeps strangers out
 */
export function refuseExposure(
  host: string,
  { tlsOptions, secret, insecure }: { tlsOptions?: TlsOptions | undefined; secret?: string | undefined; insecure: boolean },
): void {
  const isMutual = tlsOptions?.requestCert === true && tlsOptions.rejectUnauthorized !== false;
  if (!isLoopback(host) && !isMutual && !secret && !insecure) {
    throw new InvalidServingError(
      `A node that listens on ${host || 'every address'} can be called, and passed for, by anybody who reaches it. Give its nodes a secret, or certificates ` +
        'of both sides (tlsOptions with requestCert: true), let it listen on 127.0.0.1, or say insecure: true where the network itself keeps strangers out.',
    );
  }
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127(\.\d{1,3}){3}$/.test(host);
}
