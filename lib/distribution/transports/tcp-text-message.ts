import { FrameError } from '../wire/prelude.js';

const HASH = 0x23;
/** More digits than this are no length. */
const MOST_DIGITS = 16;

/** Finds where one of Nest's own messages ends: `length#text`, where the length counts UTF-16 units and the text comes as UTF-8. */
export class TextMessage {
  private digits = '';
  /** Units that are still to come, once that is known. */
  private units: number | undefined;
  /** Bytes that are still to come of a character that has begun. */
  private rest = 0;

  /** Whether a message has begun and not ended. */
  get isOpen(): boolean {
    return this.units !== undefined || this.digits !== '';
  }

  /** How many of the bytes belong to the message. */
  take(bytes: Buffer): number {
    let at = this.units === undefined ? this.takeLength(bytes) : 0;
    if (this.units === undefined) {
      return at;
    }
    while (at < bytes.byteLength && (this.units > 0 || this.rest > 0)) {
      this.units -= this.unitsOf(bytes[at++]!);
    }
    if (this.units <= 0 && this.rest === 0) {
      this.units = undefined;
      this.digits = '';
    }
    return at;
  }

  private takeLength(bytes: Buffer): number {
    const head = bytes.subarray(0, MOST_DIGITS + 1);
    const end = head.indexOf(HASH);
    this.digits += head.toString('latin1', 0, end === -1 ? head.byteLength : end);
    if (this.digits.length > MOST_DIGITS) {
      throw new FrameError('Neither a packet nor a message begins like this');
    }
    if (end === -1) {
      return head.byteLength;
    }
    // What is no number is for Nest's own socket to refuse.
    this.units = Number.parseInt(this.digits, 10) || 0;
    return end + 1;
  }

  /** A character counts with its first byte. */
  private unitsOf(byte: number): number {
    if (this.rest > 0 && byte >> 6 === 0b10) {
      this.rest--;
      return 0;
    }
    this.rest = byte < 0xc0 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    return byte < 0xf0 ? 1 : 2;
  }
}
