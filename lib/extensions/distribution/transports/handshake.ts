import { createHmac, randomUUID, timingSafeEqual } from 'node:crypto';
import type { EventEmitter } from 'node:events';
import type { Socket } from 'node:net';
import { InvalidInputError, InvalidServingError } from '../../../index.js';
import { formatValue, messageOf } from '../../../doors/text.js';
import type { Address } from '../transport.js';
import { VERSION } from '../wire/prelude.js';
import { type Secrets, secretsIn } from '../wire/signature.js';
import type { PeerConnection, PeerConnections } from './peer-connections.js';

interface Introduction {
  readonly address: Address;
  readonly version: number;
  readonly nonce: string;
  readonly proof?: string | undefined;
}

/** @param option the options that hold the address */
export function brokerError(
  broker: string,
  address: string,
  option: string,
  cause: unknown,
): InvalidServingError {
  // An address may have a password.
  const shown = address.replaceAll(/[^/\s,@]*@/g, '');
  return new InvalidServingError(
    `ServingClusterModule: the ${broker} server at ${shown} cannot be used: ${messageOf(cause)}; ` +
      `its address is in the options ${option}`,
    { cause },
  );
}

export type Ask = (pattern: string, data: object) => Promise<unknown>;

/** Undefined `link`: no connection was made. */
export interface HandshakeResult<L extends PeerConnection = PeerConnection> {
  readonly address: Address;
  readonly link?: L | undefined;
}

/**
 * The dialling node asks for the address, then proposes a connection. Each end proves its secret,
 * if any, by an HMAC over both nonces.
 */
export class Handshake<Connection extends EventEmitter, L extends PeerConnection> {
  readonly answers: ReadonlyMap<string, (data: unknown, connection: Connection) => unknown>;
  private readonly whoPattern: string;
  private readonly linkPattern: string;
  private readonly nonces = new WeakMap<Connection, readonly [theirs: string, ours: string]>();

  constructor(
    private readonly own: Address,
    private readonly namespace: string,
    private readonly secret: Secrets | undefined,
    private readonly links: PeerConnections<Connection, L>,
  ) {
    this.whoPattern = `sv.${escapeName(namespace)}.who`;
    this.linkPattern = `sv.${escapeName(namespace)}.link`;
    this.answers = new Map([
      [
        this.whoPattern,
        (data: unknown, connection: Connection): unknown => this.introduce(data, connection),
      ],
      [
        this.linkPattern,
        (data: unknown, connection: Connection): unknown => this.accept(data, connection),
      ],
    ]);
  }

  /** @param connection called when the other end has answered */
  async dial(connection: () => Connection, ask: Ask): Promise<HandshakeResult<L>> {
    const ours = randomUUID();
    const { address, version, nonce, proof } = introductionOf(await this.askWho(ask, ours));
    if (version !== VERSION) {
      throw new Error(`It speaks version ${version}; only version ${VERSION} is understood here`);
    }
    if (!isValidHmac(proof, this.secret, 'who', this.namespace, ours, nonce, address)) {
      throw new Error('Its secret is not that of this node: all nodes have the same one, or none');
    }
    if (address === this.own) {
      return { address };
    }
    const propose = async (): Promise<boolean> => {
      const proposal = {
        address: this.own,
        proof: hmacOf(this.secret, 'link', this.namespace, ours, nonce, this.own),
      };
      return (await ask(this.linkPattern, proposal)) === true;
    };
    return { address, link: await this.links.propose(address, connection(), propose) };
  }

  private async askWho(ask: Ask, nonce: string): Promise<unknown> {
    try {
      return await ask(this.whoPattern, { nonce });
    } catch (error) {
      // The other end's errors arrive as plain values.
      throw error instanceof Error
        ? error
        : new Error(
            `No node of namespace ${formatValue(this.namespace)} is there: ${messageOf(error)}`,
          );
    }
  }

  private introduce(data: unknown, connection: Connection): Introduction {
    const { nonce: theirs } = partsOf(data);
    if (typeof theirs !== 'string' || theirs.length > 128) {
      throw new InvalidInputError(
        `A nonce of at most 128 characters is needed, not ${formatValue(theirs)}`,
      );
    }
    const ours = randomUUID();
    this.nonces.set(connection, [theirs, ours]);
    const proof = hmacOf(this.secret, 'who', this.namespace, theirs, ours, this.own);
    return { address: this.own, version: VERSION, nonce: ours, proof };
  }

  private accept(data: unknown, connection: Connection): boolean {
    const { address, proof } = partsOf(data);
    const nonces = this.nonces.get(connection);
    this.nonces.delete(connection);
    if (!nonces || !isAddress(address)) {
      throw new InvalidInputError(
        'A connection must be proposed by a node that has introduced itself with an address, not ' +
          formatValue(address),
      );
    }
    if (!isValidHmac(proof, this.secret, 'link', this.namespace, ...nonces, address)) {
      throw new InvalidInputError("The node's secret differs from ours");
    }
    return address !== this.own && this.links.accept(address, connection);
  }
}

function introductionOf(answer: unknown): Introduction {
  const { address, version, nonce, proof } = partsOf(answer);
  if (
    !isAddress(address) ||
    typeof version !== 'number' ||
    typeof nonce !== 'string' ||
    !isOptionalText(proof)
  ) {
    throw new Error(`It answered ${formatValue(answer)} instead of introducing itself`);
  }
  return { address, version, nonce, proof };
}

function isOptionalText(value: unknown): value is string | undefined {
  return value === undefined || typeof value === 'string';
}

function partsOf(data: unknown): Readonly<Record<string, unknown>> {
  return typeof data === 'object' && data !== null ? { ...data } : {};
}

export function hmacOf(
  secrets: Secrets | undefined,
  ...words: readonly string[]
): string | undefined {
  return hmacsOf(secrets, words)[0];
}

function hmacsOf(secrets: Secrets | undefined, words: readonly string[]): readonly string[] {
  return (secrets === undefined ? [] : secretsIn(secrets)).map((secret) =>
    createHmac('sha256', secret).update(JSON.stringify(words)).digest('base64'),
  );
}

/** True without a secret and a proof. */
export function isValidHmac(
  proof: unknown,
  secrets: Secrets | undefined,
  ...words: readonly string[]
): boolean {
  if (secrets === undefined || typeof proof !== 'string') {
    return secrets === undefined && proof === undefined;
  }
  const given = Buffer.from(proof);
  return hmacsOf(secrets, words)
    .map((expected) => Buffer.from(expected))
    .some((right) => given.byteLength === right.byteLength && timingSafeEqual(given, right));
}

/** Most bytes of a handshake's text. */
export const HANDSHAKE_BYTES = 16 * 1024;

/** Milliseconds. Dialling nodes give up earlier. */
export const HANDSHAKE_TIMEOUT = 10_000;

export function closeUnlessLinked(socket: Socket, isLinked: () => boolean): void {
  const timer = setTimeout(() => isLinked() || socket.destroy(), HANDSHAKE_TIMEOUT).unref();
  socket.once('close', () => clearTimeout(timer));
}

/** Send buffer limit in bytes. Beyond it the peer counts as stalled. */
export const SEND_BUFFER_LIMIT = 128 * 1024 * 1024;

/** Bytes that a server may not have read. */
export class SendBuffer {
  private bytes = 0;

  constructor(private readonly server: string) {}

  /** @throws Error beyond the limit; don't send then */
  add(bytes: number): void {
    if (this.bytes + bytes > SEND_BUFFER_LIMIT) {
      throw new Error(`The ${this.server} server does not read: ${this.bytes} bytes wait for it`);
    }
    this.bytes += bytes;
  }

  /** Call it once the bytes are read or lost. */
  remove(bytes: number): void {
    this.bytes -= bytes;
  }
}

/** Each UTF-8 byte except letters, digits, `_` and `-` becomes `=XX`. */
export function escapeName(name: string): string {
  return name === ''
    ? '='
    : name.replace(/[^\w-]+/g, (characters) =>
        [...Buffer.from(characters)].map(escapeByte).join(''),
      );
}

function escapeByte(byte: number): string {
  return `=${byte.toString(16).toUpperCase().padStart(2, '0')}`;
}

export function isAddress(value: unknown): value is string {
  return typeof value === 'string' && /^[\w-]{1,128}$/.test(value);
}

export function servingPattern(namespace: string, serving: string): string {
  return `sv.${escapeName(namespace)}.s.${escapeName(serving)}`;
}

/** @throws RangeError: the sender must split larger packets */
export function checkSize(packet: Uint8Array, most: number): void {
  if (packet.byteLength > most) {
    throw new RangeError(`A packet of ${packet.byteLength} bytes, where ${most} are the most`);
  }
}
