import { messageOf, truncate } from '../../../doors/text.js';

/**
 * Bytes of each packet's prelude, little-endian: 0x00, "SV", version, kind, flags, u16 blocks, u32
 * header length, u32 body length, f64 call number, f64 timeout. Without the last two, most headers
 * are equal and parsed once.
 */
export const PRELUDE = 32;

export const VERSION = 3;

/**
 * Kinds of frames: 1 to 15 from a caller to a serving's owner, 16 to 31 back, 32 to 47 of nodes, 48
 * of packets.
 */
export const Kind = {
  /** Options in the header, input in the value. */
  request: 1,
  /** A lazy input's next element. */
  input: 2,
  /** A lazy input's end or error. */
  inputEnd: 3,
  /** The caller has room for more chunks. */
  credit: 4,
  /** The caller has left. */
  cancel: 5,
  /** The caller's open calls, and what it has received. */
  check: 6,
  /** A call's output, which ends it. */
  reply: 16,
  /** A stream's next event. */
  chunk: 17,
  /** A stream's end, with the number of chunks. */
  end: 18,
  error: 19,
  /** The owner has room for more input elements; 0 for the end. */
  inputCredit: 20,
  /** The owner's calls, or the calls in a check. */
  status: 21,
  /** A node's state. */
  heartbeat: 32,
  /** Asks for a heartbeat; nodes with the sender as a member answer. */
  hello: 33,
  goodbye: 34,
  /** Numbered; sent after some data. */
  mark: 35,
  /** Everything before the mark was received or lost. */
  marked: 36,
  fragment: 48,
} as const;

export type Kind = (typeof Kind)[keyof typeof Kind];

/** Unused bits are 0. */
export const Flag = {
  /** The body's last {@link TRAILER} bytes are a signature (signature.ts). */
  signed: 1,
} as const;

/** Bytes of a signature: u64 time in ms, u64 sender, u64 counter, HMAC-SHA256. */
export const TRAILER = 56;

export class FrameError extends Error {
  override readonly name = 'FrameError';
}

/** A frame beyond the limit, or without room now. */
export class FrameTooLargeError extends FrameError {
  constructor(
    message: string,
    /** The first bytes, with the header. */
    readonly beginning: Uint8Array,
  ) {
    super(message);
  }
}

/**
 * Returns bytes.
 *
 * @throws FrameError if the bytes don't begin a packet of this version
 */
export function packetLength(bytes: Uint8Array): number {
  if (bytes.byteLength < PRELUDE || bytes[0] !== 0 || bytes[1] !== 0x53 || bytes[2] !== 0x56) {
    throw new FrameError('These bytes are no frame');
  }
  if (bytes[3] !== VERSION) {
    throw new FrameError(
      `A frame of version ${bytes[3]}; only version ${VERSION} is understood here`,
    );
  }
  return PRELUDE + padded(headLength(bytes)) + wholeAt(bytes, 12);
}

/** Returns bytes. */
export function headLength(bytes: Uint8Array): number {
  return wholeAt(bytes, 8);
}

/** A DataView would mean three per packet. */
function wholeAt(bytes: Uint8Array, at: number): number {
  return bytes[at]! + bytes[at + 1]! * 2 ** 8 + bytes[at + 2]! * 2 ** 16 + bytes[at + 3]! * 2 ** 24;
}

export interface Prelude {
  readonly kind: Kind;
  readonly flags: number;
  readonly blocks: number;
  readonly head: number;
  readonly body: number;
  /** 0 without a call. */
  readonly call: number;
  /** Milliseconds left, or Infinity. */
  readonly timeout: number;
}

export function writePrelude(
  packet: Buffer,
  { kind, flags, blocks, head, body, call, timeout }: Prelude,
): void {
  packet[0] = 0;
  packet[1] = 0x53;
  packet[2] = 0x56;
  packet[3] = VERSION;
  packet[4] = kind;
  packet[5] = flags;
  packet.writeUInt16LE(blocks, 6);
  packet.writeUInt32LE(head, 8);
  packet.writeUInt32LE(body, 12);
  packet.writeDoubleLE(call, 16);
  packet.writeDoubleLE(timeout, 24);
}

/** @throws FrameError */
export function callIn(packet: Buffer): Pick<Prelude, 'call' | 'timeout'> {
  const call = packet.readDoubleLE(16);
  const timeout = packet.readDoubleLE(24);
  if (!Number.isSafeInteger(call) || call < 0 || !(timeout >= 0)) {
    throw new FrameError(`A frame of call ${call} with a timeout of ${timeout} ms`);
  }
  return { call, timeout };
}

export function reading<T>(read: () => T): T {
  try {
    return read();
  } catch (cause) {
    throw cause instanceof FrameError
      ? cause
      : new FrameError(`The frame cannot be read: ${truncate(messageOf(cause))}`, { cause });
  }
}

/** Parts begin at multiples of 8 bytes. */
export function padded(length: number): number {
  return length + (-length & 7);
}
