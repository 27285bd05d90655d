import {
  createHmac,
  createSecretKey,
  type KeyObject,
  randomBytes,
  timingSafeEqual,
} from 'node:crypto';
import { Flag, FrameError, PRELUDE, TRAILER } from './prelude.js';

type Secret = string | Uint8Array;

/** Shared by all nodes and clients. Of a list, the first signs and all are valid. */
export type Secrets = Secret | readonly Secret[];

export function secretsIn(secrets: Secrets): readonly Secret[] {
  return typeof secrets === 'string' || ArrayBuffer.isView(secrets) ? [secrets] : secrets;
}

/** Makes other namespaces' packets invalid. */
export function namespaceSecret(secrets: Secrets, namespace: string): Secrets {
  return secretsIn(secrets).map((secret) =>
    createHmac('sha256', secret).update(`packets of namespace ${namespace}`).digest(),
  );
}

/** Milliseconds between a packet's time and ours. */
const WINDOW = 60_000;

const MAC = 32;

/**
 * Signs with time, sender, counter, and an HMAC-SHA256 of everything before. No sender repeats a
 * counter.
 */
export class Signer {
  private readonly key: KeyObject;
  /** Random, new with each start. */
  private readonly sender = randomBytes(8);
  private counter = 0n;

  constructor(
    secrets: Secrets,
    private readonly now: () => number,
  ) {
    this.key = keyOf(secretsIn(secrets)[0]!);
  }

  sign(packet: Uint8Array): void {
    if (!isSigned(packet)) {
      throw new FrameError(
        'A packet has no room for its signature: encode its frame with the bytes to spare',
      );
    }
    const { signed, mac } = partsOf(packet);
    const trailer = signed.subarray(-(TRAILER - MAC));
    trailer.writeBigUInt64LE(BigInt(Math.floor(this.now())), 0);
    trailer.set(this.sender, 8);
    trailer.writeBigUInt64LE(this.counter++, 16);
    mac.set(macOf(this.key, signed));
  }
}

export class Verifier {
  private readonly keys: readonly KeyObject[];
  private readonly received = new ReplayWindow();
  private sweptAt = 0;

  /**
   * @param now milliseconds since 1970
   * @param uptime milliseconds of a monotonic clock
   */
  constructor(
    secrets: Secrets,
    private readonly now: () => number,
    private readonly uptime: () => number,
  ) {
    this.keys = secretsIn(secrets).map(keyOf);
  }

  /** @throws FrameError for a missing, wrong or old signature, or a replay */
  verify(packet: Uint8Array): void {
    if (packet.byteLength < PRELUDE + TRAILER || !isSigned(packet)) {
      throw new FrameError('A packet without a signature');
    }
    const { signed, mac } = partsOf(packet);
    if (!this.keys.some((key) => timingSafeEqual(mac, macOf(key, signed)))) {
      throw new FrameError(
        'A packet whose signature is wrong: do all nodes have the same secret and namespace?',
      );
    }
    const trailer = signed.subarray(-(TRAILER - MAC));
    const now = this.now();
    const signedAt = Number(trailer.readBigUInt64LE(0));
    if (Math.abs(now - signedAt) > WINDOW) {
      throw new FrameError(
        `A packet that was signed ${now - signedAt} ms ago: do the clocks of all nodes agree? With ` +
          `a secret they must agree within ${WINDOW} ms`,
      );
    }
    const uptime = this.uptime();
    if (uptime - this.sweptAt > WINDOW) {
      this.received.dropBefore(uptime - WINDOW);
      this.sweptAt = uptime;
    }
    if (
      !this.received.add(
        trailer.toString('latin1', 8, 16),
        Number(trailer.readBigUInt64LE(16)),
        uptime,
      )
    ) {
      throw new FrameError('A packet that was received before');
    }
  }
}

export function isSigned(packet: Uint8Array): boolean {
  return (packet[5]! & Flag.signed) !== 0;
}

function keyOf(secret: Secret): KeyObject {
  return createSecretKey(Buffer.from(secret));
}

function macOf(key: KeyObject, signed: Uint8Array): Buffer {
  return createHmac('sha256', key).update(signed).digest();
}

function partsOf({ buffer, byteOffset, byteLength }: Uint8Array): { signed: Buffer; mac: Buffer } {
  const packet = Buffer.from(buffer, byteOffset, byteLength);
  return { signed: packet.subarray(0, -MAC), mac: packet.subarray(-MAC) };
}

const PAGE = 4096;

/** Each start of a node is a sender. */
const MOST_SENDERS = 2 ** 16;

interface Page {
  readonly bits: Uint8Array;
  largest: number;
  receivedAt: number;
}

interface Sender {
  readonly pages: Map<number, Page>;
  /** Lower counters are refused: their pages were dropped. */
  floor: number;
}

/**
 * Senders count up, so the last minutes fit into a few pages of bits. Follows
 * https://www.rfc-editor.org/rfc/rfc4303#section-3.4.3, except that any number of packets may
 * overtake another while its page is kept.
 *
 * Times are monotonic and don't decide if a counter is new: a dropped page leaves its largest
 * counter.
 */
export class ReplayWindow {
  private readonly senders = new Map<string, Sender>();

  get pages(): number {
    return [...this.senders.values()].reduce((sum, { pages }) => sum + pages.size, 0);
  }

  add(sender: string, counter: number, now: number): boolean {
    const { pages, floor } = this.senderOf(sender);
    if (counter < floor) {
      return false;
    }
    const page = pageOf(pages, Math.floor(counter / PAGE));
    const [byte, bit] = [(counter % PAGE) >> 3, 1 << (counter % 8)];
    if ((page.bits[byte]! & bit) !== 0) {
      return false;
    }
    page.bits[byte]! |= bit;
    page.largest = Math.max(page.largest, counter);
    page.receivedAt = now;
    return true;
  }

  dropBefore(time: number): void {
    for (const sender of this.senders.values()) {
      for (const [number, { receivedAt, largest }] of sender.pages) {
        if (receivedAt < time) {
          sender.pages.delete(number);
          sender.floor = Math.max(sender.floor, largest + 1);
        }
      }
    }
  }

  private senderOf(name: string): Sender {
    let sender = this.senders.get(name);
    if (!sender) {
      this.makeRoom();
      sender = { pages: new Map(), floor: 0 };
      this.senders.set(name, sender);
    }
    return sender;
  }

  private makeRoom(): void {
    if (this.senders.size < MOST_SENDERS) {
      return;
    }
    for (const [name, { pages }] of this.senders) {
      if (pages.size === 0) {
        this.senders.delete(name);
        return;
      }
    }
  }
}

function pageOf(pages: Map<number, Page>, number: number): Page {
  let page = pages.get(number);
  if (!page) {
    page = { bits: new Uint8Array(PAGE / 8), largest: 0, receivedAt: 0 };
    pages.set(number, page);
  }
  return page;
}
