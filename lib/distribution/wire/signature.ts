import {
  createHmac,
  createSecretKey,
  type KeyObject,
  randomBytes,
  timingSafeEqual,
} from 'node:crypto';
import { Flag, FrameError, PRELUDE, TRAILER } from './prelude.js';

/** All nodes have it, and no one else. */
export type Secret = string | Uint8Array;

/** The secret of one namespace. Packets of other namespaces are invalid with it. */
export function namespaceSecret(secret: Secret, namespace: string): Secret {
  return createHmac('sha256', secret).update(`packets of namespace ${namespace}`).digest();
}

/**
 * Packets signed longer ago than this many milliseconds are refused, and those signed as far in the
 * future.
 */
const WINDOW = 60_000;

const MAC = 32;

/**
 * Writes signatures: time, sender, counter, and the HMAC-SHA256 of all of it. No sender uses a
 * number twice.
 */
export class Signer {
  private readonly key: KeyObject;
  /** Random; new with each start. */
  private readonly sender = randomBytes(8);
  private counter = 0n;

  constructor(
    secret: Secret,
    private readonly now: () => number,
  ) {
    this.key = keyOf(secret);
  }

  /** Signs the packet in the bytes that it leaves free at its end. */
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

/** Checks signatures, and that no packet is received twice. */
export class Verifier {
  private readonly key: KeyObject;
  private readonly received = new ReplayWindow();
  private sweptAt = 0;

  /**
   * @param now milliseconds since 1970
   * @param uptime milliseconds of a monotonic clock
   */
  constructor(
    secret: Secret,
    private readonly now: () => number,
    private readonly uptime: () => number,
  ) {
    this.key = keyOf(secret);
  }

  /**
   * @throws FrameError when the packet is not signed with the secret, is too old, or was received
   * before
   */
  verify(packet: Uint8Array): void {
    if (packet.byteLength < PRELUDE + TRAILER || !isSigned(packet)) {
      throw new FrameError('A packet without a signature');
    }
    const { signed, mac } = partsOf(packet);
    if (!timingSafeEqual(mac, macOf(this.key, signed))) {
      throw new FrameError(
        'A packet whose signature is wrong: do all nodes have the same secret and namespace?',
      );
    }
    const trailer = signed.subarray(-(TRAILER - MAC));
    const now = this.now();
    const signedAt = Number(trailer.readBigUInt64LE(0));
    if (Math.abs(now - signedAt) > WINDOW) {
      throw new FrameError(
        `A packet that was signed ${now - signedAt} ms ago: do the clocks of all nodes agree?`,
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

/** The signed part without the MAC, and the MAC. */
function partsOf({ buffer, byteOffset, byteLength }: Uint8Array): { signed: Buffer; mac: Buffer } {
  const packet = Buffer.from(buffer, byteOffset, byteLength);
  return { signed: packet.subarray(0, -MAC), mac: packet.subarray(-MAC) };
}

/** The number of counters in a page. */
const PAGE = 4096;

/** The number of senders that are remembered. A sender is one start of a node with the secret. */
const MOST_SENDERS = 2 ** 16;

/** A bit for each counter of a page. */
interface Page {
  readonly bits: Uint8Array;
  /** The largest counter. */
  largest: number;
  /** When the last packet of the page was received. */
  receivedAt: number;
}

/** The received counters of one sender. */
interface Sender {
  readonly pages: Map<number, Page>;
  /** Counters below this one are refused: their pages were dropped. */
  floor: number;
}

/**
 * The counters received from each sender, against replay. Senders count up, so the counters of the
 * last minutes are a few pages of bits. After RFC 4303, 3.4.3, except that a packet may be late by
 * any number of others, as long as its page is kept.
 *
 * Times are those of a monotonic clock and do not decide whether a counter is new: a dropped page
 * leaves its largest counter.
 */
export class ReplayWindow {
  private readonly senders = new Map<string, Sender>();

  /** The number of pages. */
  get pages(): number {
    return [...this.senders.values()].reduce((sum, { pages }) => sum + pages.size, 0);
  }

  /** False when the counter of the sender was added before, or may have been. */
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

  /** Drops the pages that have received nothing since then. */
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

  /** Drops the sender that has received nothing for longest. */
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
