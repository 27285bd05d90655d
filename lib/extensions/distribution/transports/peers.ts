import dns from 'node:dns/promises';
import { Logger } from '@nestjs/common';
import {
  catchError,
  combineLatest,
  defer,
  EMPTY,
  NEVER,
  type Observable,
  of,
  race,
  repeat,
  tap,
  timer,
} from 'rxjs';
import type { AddressInfo } from 'node:net';
import type { ConnectionOptions, TlsOptions } from 'node:tls';
import { InvalidServingError } from '../../../index.js';
import { messageOf, formatValue } from '../../../doors/text.js';
import type { Secrets } from '../wire/signature.js';
import { checkSocketPath } from './socket-path.js';

/**
 * A node to connect to: `host:port` as a string or an object, a host name whose addresses are all
 * nodes, or, over TCP, a Unix socket.
 */
export type Peer =
  | string
  | {
      /** Host name or IP address. */
      readonly host: string;
      /** The node's port. */
      readonly port: number;
    }
  | {
      /** Absolute path of a Unix socket; may be given as a plain string. */
      readonly path: string;
    }
  | {
      /** Host name; each of its addresses is a node. */
      readonly dns: string;
      /** The nodes' port. */
      readonly port: number;
      /**
       * Milliseconds between lookups; the smallest in a list counts. Further lookups follow when a
       * node leaves or is lost, and while a call waits.
       *
       * @default 10000
       */
      readonly refresh?: number;
    };

/**
 * Nodes to connect to, or a function that returns them, called every 10 seconds, when a node leaves
 * or is lost, and while a call waits. May include the node itself.
 */
export type Peers = readonly Peer[] | (() => readonly Peer[] | Promise<readonly Peer[]>);

export interface NetworkEndpoint {
  readonly host: string;
  readonly port: number;
}

export interface SocketEndpoint {
  readonly path: string;
}

export type Endpoint = NetworkEndpoint | SocketEndpoint;

export function endpointName(endpoint: Endpoint): string {
  if ('path' in endpoint) {
    return endpoint.path;
  }
  const { host, port } = endpoint;
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}

export type Lookup = (name: string) => Promise<readonly string[]>;

const REFRESH = 10_000;
/** Least milliseconds between lookups. */
const SOON = 250;

const logger = new Logger('ServingTransport');

/**
 * Emits after each lookup, or once without any. A failed lookup changes nothing.
 *
 * @param sooner$ asks for an early lookup
 * @throws InvalidServingError for an invalid peer
 */
export function endpointsOf(
  peers: Peers,
  find: Lookup = allAddresses,
  sooner$: Observable<void> = NEVER,
): Observable<readonly Endpoint[]> {
  const book = new AddressBook(find);
  if (typeof peers === 'function') {
    return again(async () => book.endpointsOf((await peers()).map(checked)), REFRESH, sooner$);
  }
  const list = peers.map(checked);
  const names = list.filter((peer) => 'dns' in peer);
  return names.length === 0
    ? of(list.filter((peer) => 'host' in peer || 'path' in peer))
    : again(
        () => book.endpointsOf(list),
        Math.min(...names.map(({ refresh = REFRESH }) => refresh)),
        sooner$,
      );
}

function again<T>(ask: () => Promise<T>, pause: number, sooner$: Observable<void>): Observable<T> {
  let hasFailed = false;
  return defer(ask).pipe(
    tap(() => (hasFailed = false)),
    catchError((error: unknown) => {
      if (!hasFailed) {
        logger.warn(`The peers are not known: ${messageOf(error)}`);
      }
      hasFailed = true;
      return EMPTY;
    }),
    repeat({ delay: () => race(timer(pause), combineLatest([timer(SOON), sooner$])) }),
  );
}

class AddressBook {
  private readonly known = new Map<string, readonly string[]>();
  private readonly lost = new Set<string>();

  constructor(private readonly find: Lookup) {}

  async endpointsOf(peers: readonly Exclude<Peer, string>[]): Promise<readonly Endpoint[]> {
    const found = peers.map(async (peer) =>
      'dns' in peer
        ? (await this.addressesOf(peer.dns)).map((host) => ({ host, port: peer.port }))
        : [peer],
    );
    return (await Promise.all(found)).flat();
  }

  private async addressesOf(name: string): Promise<readonly string[]> {
    try {
      this.known.set(name, await this.find(name));
      this.lost.delete(name);
    } catch (error) {
      if (!this.lost.has(name)) {
        this.lost.add(name);
        logger.warn(`The addresses of ${name} are not known: ${messageOf(error)}`);
      }
    }
    return this.known.get(name) ?? [];
  }
}

function checked(peer: Peer): Exclude<Peer, string> {
  const parsed = typeof peer === 'string' ? parsePeer(peer) : peer;
  if ('path' in parsed) {
    checkSocketPath('A peer', parsed.path);
    return parsed;
  }
  const name: unknown = 'host' in parsed ? parsed.host : parsed.dns;
  if (
    typeof name !== 'string' ||
    name === '' ||
    !(Number.isInteger(parsed.port) && parsed.port > 0 && parsed.port < 65_536)
  ) {
    throw new InvalidServingError(
      'A peer is "host:port", the path of a Unix socket, { host, port }, { path } or ' +
        `{ dns, port }, not ${formatValue(peer)}`,
    );
  }
  return parsed;
}

function parsePeer(text: string): Endpoint {
  return text.startsWith('/') ? { path: text } : parseEndpoint(text);
}

/** IPv6 is in brackets; the port is NaN if invalid. */
export function parseEndpoint(text: string): NetworkEndpoint {
  const [, v6, host = v6 ?? '', port] = /^(?:\[(.+)\]|([^:]+)):(\d+)$/.exec(text) ?? [];
  return { host, port: Number(port) };
}

async function allAddresses(name: string): Promise<readonly string[]> {
  return (await dns.lookup(name, { all: true })).map(({ address }) => address);
}

export interface PeerSettings {
  /** The nodes to connect to. @default [] */
  readonly peers?: Peers | undefined;
  /** Shared by all nodes and clients. */
  readonly secret?: Secrets | undefined;
  /**
   * Allows listening beyond this machine without a secret or certificates of both sides.
   *
   * @default false
   */
  readonly insecure?: boolean | undefined;
}

export interface TlsSettings {
  /**
   * Node's `tls` options for both directions.
   *
   * @default no encryption
   */
  readonly tlsOptions?: TlsOptions & ConnectionOptions;
}

/** Undefined for a Unix socket. */
export function portOf(
  listener: { address(): AddressInfo | string | null } | undefined,
): number | undefined {
  const address = listener?.address();
  return typeof address === 'object' && address !== null ? address.port : undefined;
}

/**
 * Strangers could call servings through an unprotected port and impersonate a node.
 *
 * @throws InvalidServingError for a host beyond this machine without protection
 */
export function assertNotPublic(
  host: string,
  {
    tlsOptions,
    secret,
    insecure,
  }: { tlsOptions?: TlsOptions | undefined; secret?: Secrets | undefined; insecure: boolean },
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
