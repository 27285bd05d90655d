import { createHmac, createSecretKey, type KeyObject, randomBytes, timingSafeEqual } from 'node:crypto';
import { Flag, FrameError, PRELUDE, TRAILER } from './prelude.js';
import { SeenCounters } from './seen-counters.js';

/** What all nodes know, and nobody else. */
export type Secret = string | Uint8Array;

/** The secret for the packets of one namespace: those of another namespace do not verify with it. */
export function namespaceSecret(secret: Secret, namespace: string): Secret {
  return createHmac('sha256', secret).update(`packets of namespace ${namespace}`).digest();
}

/** Packets signed longer ago than this many milliseconds are refused, and those signed so far in the future. */
const WINDOW = 60_000;

const MAC = 32;

/** Writes signatures: when, by whom, a counter, and the HMAC-SHA256 of all of it. Nobody's counter has a number twice. */
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
      throw new FrameError('A packet has no room for its signature: encode its frame with the bytes to spare');
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
  private readonly seen = new SeenCounters();
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
      throw new FrameError('A packet whose signature is wrong: do all nodes have the same secret and namespace?');
    }
    const trailer = signed.subarray(-(TRAILER - MAC));
    const now = this.now();
    const signedAt = Number(trailer.readBigUInt64LE(0));
    if (Math.abs(now - signedAt) > WINDOW) {
      throw new FrameError(`A packet that was signed ${now - signedAt} ms ago: do the clocks of all nodes agree?`);
    }
    const uptime = this.uptime();
    if (uptime - this.sweptAt > WINDOW) {
      this.seen.forgetBefore(uptime - WINDOW);
      this.sweptAt = uptime;
    }
    if (!this.seen.add(trailer.toString('latin1', 8, 16), Number(trailer.readBigUInt64LE(16)), uptime)) {
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
