import { messageOf } from '../../errors.js';
import { truncate } from '../../format.js';

/**
 * The bytes that every packet begins with, little-endian: 0x00, "SV", version, kind, flags, u16
 * blocks, u32 header length, u32 body length.
 */
export const PRELUDE = 16;

/** The version of the frames that this code writes and reads. */
export const VERSION = 1;

/**
 * What a frame says. From a caller to the owner of a serving: 1 to 15; back: 16 to 31; of nodes
 * themselves: 32 to 47; of packets: 48.
 */
export const Kind = {
  /** A call: its options in the header, its input as the value. */
  request: 1,
  /** The next element of an input that is a lazy sequence. */
  input: 2,
  /** The end of such an input, or the error that it ended with. */
  inputEnd: 3,
  /** The caller has room for so many more chunks. */
  credit: 4,
  /** The caller waits no more. */
  cancel: 5,
  /** The output of a call, which is over. */
  reply: 16,
  /** The next event of a stream. */
  chunk: 17,
  /** The end of a stream: how many chunks there were. */
  end: 18,
  /** Why a call came to nothing. */
  error: 19,
  /** The owner has room for so many more elements of the input; 0: it wants no more. */
  inputCredit: 20,
  /** How a node is, and what it serves. */
  heartbeat: 32,
  /** Asks every node that knows the sender for its beat. */
  hello: 33,
  /** A node leaves. */
  goodbye: 34,
  /** A part of a frame that is larger than a packet may be. */
  fragment: 48,
} as const;

export type Kind = (typeof Kind)[keyof typeof Kind];

/** The bits of the byte of flags; the others are 0. */
export const Flag = {
  /** The last {@link TRAILER} bytes of the body are a signature, see signature.ts. */
  signed: 1,
} as const;

/**
 * The bytes of a signature: u64 milliseconds since 1970, u64 of the sender, u64 counter, and the
 * HMAC-SHA256 of all before it.
 */
export const TRAILER = 56;

/** Bytes that are no frame, or not one that is allowed here. */
export class FrameError extends Error {
  override readonly name = 'FrameError';
}

/** A frame that is larger than is allowed here, or for which there is no room now. */
export class FrameTooLargeError extends FrameError {
  constructor(
    message: string,
    /** Its first bytes; what it is about stands there. */
    readonly beginning: Uint8Array,
  ) {
    super(message);
  }
}

/**
 * The length of the whole packet, by its first {@link PRELUDE} bytes.
 *
 * @throws FrameError when they do not begin a packet of this version
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

/** The bytes of the header, by the prelude. */
export function headLength(bytes: Uint8Array): number {
  return wholeAt(bytes, 8);
}

/** Without the DataView that would be made for it three times a packet. */
function wholeAt(bytes: Uint8Array, at: number): number {
  return bytes[at]! + bytes[at + 1]! * 2 ** 8 + bytes[at + 2]! * 2 ** 16 + bytes[at + 3]! * 2 ** 24;
}

/** Writes the first {@link PRELUDE} bytes of a packet. */
export function writePrelude(
  packet: Buffer,
  {
    kind,
    flags,
    blocks,
    head,
    body,
  }: Readonly<Record<'flags' | 'blocks' | 'head' | 'body', number>> & { readonly kind: Kind },
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
}

/**
 * What the function reads of bytes that others sent; whatever is thrown on the way, they are at
 * fault.
 */
export function reading<T>(read: () => T): T {
  try {
    return read();
  } catch (cause) {
    throw cause instanceof FrameError
      ? cause
      : new FrameError(`The frame cannot be read: ${truncate(messageOf(cause))}`, { cause });
  }
}

/** The next multiple of 8, where every block of a frame begins. */
export function padded(length: number): number {
  return length + (-length & 7);
}
