import { messageOf } from '../../errors.js';
import { truncate } from '../../format.js';

/**
 * The first bytes of every packet, little-endian: 0x00, "SV", version, kind, flags, u16 blocks, u32
 * header length, u32 body length, f64 number of the call, f64 its timeout. The numbers stand here
 * so that most headers of a connection are equal, and are parsed once.
 */
export const PRELUDE = 32;

/** The version of the frames that this code writes and reads. */
export const VERSION = 3;

/**
 * The kinds of frames. From a caller to the owner of a serving: 1 to 15; back: 16 to 31; of nodes:
 * 32 to 47; of packets: 48.
 */
export const Kind = {
  /** A call: its options in the header, its input as the value. */
  request: 1,
  /** The next element of an input that is a lazy sequence. */
  input: 2,
  /** The end of such an input, or the error that it ended with. */
  inputEnd: 3,
  /** Credit: the caller has room for more chunks. */
  credit: 4,
  /** The caller no longer waits. */
  cancel: 5,
  /** The calls that the caller still waits for, with what it has received of each. */
  check: 6,
  /** The output of a call, which is over. */
  reply: 16,
  /** The next event of a stream. */
  chunk: 17,
  /** The end of a stream, with the number of chunks. */
  end: 18,
  /** The error of a call. */
  error: 19,
  /** Credit: the owner has room for more elements of the input; 0 if it wants no more. */
  inputCredit: 20,
  /** What has become of the calls that the owner has, or was asked about by a check. */
  status: 21,
  /** The state of a node and its servings. */
  heartbeat: 32,
  /** Asks every node that knows the sender for its heartbeat. */
  hello: 33,
  /** A node leaves the cluster. */
  goodbye: 34,
  /** Sent after some data, with a number. */
  mark: 35,
  /** A mark is returned: everything before it was received. */
  marked: 36,
  /** A part of a frame that is larger than a packet. */
  fragment: 48,
} as const;

export type Kind = (typeof Kind)[keyof typeof Kind];

/** The bits of the byte of flags; unused bits are 0. */
export const Flag = {
  /** The last {@link TRAILER} bytes of the body are a signature, see signature.ts. */
  signed: 1,
} as const;

/**
 * The bytes of a signature: u64 milliseconds since 1970, u64 of the sender, u64 counter, and the
 * HMAC-SHA256 of everything before it.
 */
export const TRAILER = 56;

/** Bytes that are no frame, or a frame that is not allowed here. */
export class FrameError extends Error {
  override readonly name = 'FrameError';
}

/** A frame larger than is allowed, or for which there is no room now. */
export class FrameTooLargeError extends FrameError {
  constructor(
    message: string,
    /** Its first bytes, with the header. */
    readonly beginning: Uint8Array,
  ) {
    super(message);
  }
}

/**
 * The length of the whole packet in bytes, from its prelude.
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

/** The length of the header, from the prelude. */
export function headLength(bytes: Uint8Array): number {
  return wholeAt(bytes, 8);
}

/** Reads without a DataView, which would be created three times a packet. */
function wholeAt(bytes: Uint8Array, at: number): number {
  return bytes[at]! + bytes[at + 1]! * 2 ** 8 + bytes[at + 2]! * 2 ** 16 + bytes[at + 3]! * 2 ** 24;
}

/** The numbers of a prelude. */
export interface Prelude {
  readonly kind: Kind;
  readonly flags: number;
  readonly blocks: number;
  /** The length of the header in bytes. */
  readonly head: number;
  /** The length of everything after the header. */
  readonly body: number;
  /** The number that the caller has given to the call; 0 in frames of no call. */
  readonly call: number;
  /** The milliseconds that a request has from now on; Infinity without a limit. */
  readonly timeout: number;
}

/** Writes the first {@link PRELUDE} bytes of a packet. */
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

/**
 * The number and the timeout of the call.
 *
 * @throws FrameError when they are none
 */
export function callIn(packet: Buffer): Pick<Prelude, 'call' | 'timeout'> {
  const call = packet.readDoubleLE(16);
  const timeout = packet.readDoubleLE(24);
  if (!Number.isSafeInteger(call) || call < 0 || !(timeout >= 0)) {
    throw new FrameError(`A frame of call ${call} with a timeout of ${timeout} ms`);
  }
  return { call, timeout };
}

/** Runs a function that reads received bytes. Any error it throws becomes a FrameError. */
export function reading<T>(read: () => T): T {
  try {
    return read();
  } catch (cause) {
    throw cause instanceof FrameError
      ? cause
      : new FrameError(`The frame cannot be read: ${truncate(messageOf(cause))}`, { cause });
  }
}

/** The next multiple of 8, where every part of a frame begins. */
export function padded(length: number): number {
  return length + (-length & 7);
}
