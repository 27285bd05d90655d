import { isPlainObject } from '../../../internal.js';
import type { Address } from '../transport.js';
import { parseJson } from './json-text.js';
import type { WireLimits } from './limits.js';
import { FrameError, PRELUDE } from './prelude.js';
import type { Header } from './record-reader.js';

/** Receivers to keep encoded headers for. */
const MOST_RECEIVERS = 1024;

/**
 * A header to send, with both nodes' addresses. It's encoded once per receiver, so reuse the object
 * for equal headers.
 */
export class SentHeader {
  private readonly encoded = new Map<Address | undefined, Uint8Array>();

  constructor(private readonly fields: object) {}

  /** Without a receiver, the header is for all nodes. */
  bytes(from: Address, to?: Address): Uint8Array {
    const known = this.encoded.get(to);
    if (known) {
      return known;
    }
    if (this.encoded.size >= MOST_RECEIVERS) {
      this.encoded.clear();
    }
    const bytes = headerBytes({ from, to, ...this.fields });
    this.encoded.set(to, bytes);
    return bytes;
  }
}

export function headerBytes(header: object): Uint8Array {
  return Buffer.from(JSON.stringify(header));
}

/** Headers to keep, and most bytes of one. */
const MOST_KNOWN = 256;
const MOST_BYTES = 512;

/** Reads frames' headers; parses a repeated header once. */
export class HeaderReader {
  private readonly known = new Map<string, Header>();

  constructor(private readonly limits: WireLimits) {}

  /** @throws FrameError if the header exceeds the limits, or isn't a plain object */
  read(frame: Buffer, length: number): Header {
    if (length > this.limits.headerBytes) {
      throw new FrameError(
        `A frame with a header of ${length} bytes; at most ${this.limits.headerBytes} are allowed`,
      );
    }
    if (length > MOST_BYTES) {
      return this.parse(frame, length);
    }
    // In latin1, different bytes are different text.
    const text = frame.toString('latin1', PRELUDE, PRELUDE + length);
    return this.known.get(text) ?? this.add(text, this.parse(frame, length));
  }

  private add(text: string, header: Header): Header {
    if (this.known.size >= MOST_KNOWN) {
      this.known.clear();
    }
    this.known.set(text, header);
    return header;
  }

  private parse(frame: Buffer, length: number): Header {
    const header = parseJson(frame.subarray(PRELUDE, PRELUDE + length), this.limits);
    if (!isPlainObject(header) || holdsProto(header)) {
      throw new FrameError('The header of a frame is no plain object');
    }
    return header as Header;
  }
}

function holdsProto(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) {
    return false;
  }
  return Object.hasOwn(value, '__proto__') || Object.values(value).some(holdsProto);
}
