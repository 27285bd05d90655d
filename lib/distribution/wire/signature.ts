import {
  createHmac,
  createSecretKey,
  type KeyObject,
  randomBytes,
  timingSafeEqual,
} from 'node:crypto';
import { Flag, FrameError, PRELUDE, TRAILER } from './prelude.js';

/** What all nodes know, and nobody else. */
export type Secret = string | Uint8Array;

/** The secret of one namespace. Packets of another namespace are not valid with it. */
export function namespaceSecret(secret: Secret, namespace: string): Secret {
  return createHmac('sha256', secret).update(`packets of namespace ${namespace}`).digest();
}

/**
 * Packets signed longer ago than this many milliseconds are refused, and those signed so far in the
 * future.
 */
const WINDOW = 60_000;

const MAC = 32;

/**
 * Writes signatures: when, by whom, a counter, and the HMAC-SHA256 of all of it. Nobody's counter
 * has a number twice.
 */
export class Signer {
  private readonly key: KeyObject;
  /** Random, and new with each start. */
  private readonly sender = randomBytes(8);
  private counter = 0n;

  constructor(
    secret: Secret,
    private readonly now: () => number,
  ) {
    this.key = keyOf(secret);
  }

  /** Signs the packet in the bytes that it has left free at its end. */
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

/** Checks signatures, and that no packet comes twice. */
export class Verifier {
  private readonly key: KeyObject;
  private readonly seen = new ReplayWindow();
  private sweptAt = 0;

  /**
   * @param now milliseconds since 1970
   * @param uptime milliseconds of a clock that is never set
   */
  constructor(
    secret: Secret,
    private readonly now: () => number,
    private readonly uptime: () => number,
  ) {
    this.key = keyOf(secret);
  }

  /** @throws FrameError when the packet is not signed with the secret, too old, or known */
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
      this.seen.forgetBefore(uptime - WINDOW);
      this.sweptAt = uptime;
    }
    if (
      !this.seen.add(trailer.toString('latin1', 8, 16), Number(trailer.readBigUInt64LE(16)), uptime)
    ) {
      throw new FrameError('A packet that has come before');
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

/** What is signed, all but the MAC, and the MAC. */
function partsOf({ buffer, byteOffset, byteLength }: Uint8Array): { signed: Buffer; mac: Buffer } {
  const packet = Buffer.from(buffer, byteOffset, byteLength);
  return { signed: packet.subarray(0, -MAC), mac: packet.subarray(-MAC) };
}

/** The counters of a page. */
const PAGE = 4096;

/** Senders that are remembered. A sender is one start of a node that has the secret. */
const MOST_SENDERS = 2 ** 16;

/** A bit for each counter of a page that was seen. */
interface Page {
  readonly bits: Uint8Array;
  /** The largest of them. */
  largest: number;
  /** When the last packet of the page came. */
  heardAt: number;
}

/** What has come of one sender. */
interface Sender {
  readonly pages: Map<number, Page>;
  /** Counters below this one are refused: their pages are forgotten. */
  floor: number;
}

/**
 * Which counters of which senders were seen. Senders count up, so the counters of the last minutes
 * are a few pages of bits. After RFC 4303, 3.4.3, with the difference that packets may be late by
 * any number of others, as long as their page is kept.
 *
 * All times are those of a clock that is never set, and have no part in the decision whether a
 * counter is new: of a page that is forgotten its largest counter stays.
 */
export class ReplayWindow {
  private readonly senders = new Map<string, Sender>();

  /** The pages that are kept. */
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
    page.heardAt = now;
    return true;
  }

  /** Forgets the pages of which nothing has come since then. */
  forgetBefore(time: number): void {
    for (const sender of this.senders.values()) {
      for (const [number, { heardAt, largest }] of sender.pages) {
        if (heardAt < time) {
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

  /** Forgets the oldest sender of which nothing has come for long. */
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
    page = { bits: new Uint8Array(PAGE / 8), largest: 0, heardAt: 0 };
    pages.set(number, page);
  }
  return page;
}
