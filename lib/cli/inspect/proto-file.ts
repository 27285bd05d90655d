import { closeSync, fstatSync, openSync, readSync } from 'node:fs';

/** Bytes of a file from `start` to before `end`. */
export interface Region {
  readonly start: number;
  readonly end: number;
}

/** One field of a protobuf message: its number, and its value or where its bytes lie. */
export interface Field extends Region {
  readonly number: number;
  /** The value of a varint; 0 for other fields. */
  readonly value: number;
}

/** The file is no protobuf: it is cut, or lengths in it lead out of their message. */
export class InvalidProtoError extends Error {
  override readonly name = 'InvalidProtoError';
}

const WINDOW = 1 << 16;

/**
 * Reads a protobuf file (https://protobuf.dev/programming-guides/encoding) field by field. What is
 * not asked for, such as the weights of a model, is skipped and never read.
 */
export class ProtoFile {
  readonly size: number;
  private readonly file: number;
  private readonly window = Buffer.allocUnsafe(WINDOW);
  private windowStart = 0;
  private windowEnd = 0;

  /** @throws a system error when the file cannot be opened */
  constructor(path: string) {
    this.file = openSync(path, 'r');
    this.size = fstatSync(this.file).size;
  }

  close(): void {
    closeSync(this.file);
  }

  /**
   * The fields of the message in that region, by default of the whole file.
   *
   * @throws InvalidProtoError
   */
  *fields({ start, end }: Region = { start: 0, end: this.size }): Generator<Field> {
    let at = start;
    while (at < end) {
      const tag = this.varint(at, end);
      const field = this.fieldAt(tag.end, end, tag.value);
      yield field;
      at = field.end;
    }
  }

  /** The region as UTF-8. */
  text({ start, end }: Region): string {
    const bytes = Buffer.alloc(end - start);
    readSync(this.file, bytes, 0, bytes.length, start);
    return bytes.toString();
  }

  /** The numbers of a repeated varint: packed in a region, or one alone. */
  numbers(field: Field): number[] {
    if (field.start === field.end) {
      return [field.value];
    }
    const numbers: number[] = [];
    for (let at = field.start; at < field.end;) {
      const { value, end } = this.varint(at, field.end);
      numbers.push(value);
      at = end;
    }
    return numbers;
  }

  private fieldAt(at: number, end: number, tag: number): Field {
    const number = Math.floor(tag / 8);
    const type = tag % 8;
    if (type === 0) {
      const { value, end: next } = this.varint(at, end);
      return { number, value, start: next, end: next };
    }
    const [start, length] =
      type === 2 ? this.lengthAt(at, end) : [at, type === 1 ? 8 : type === 5 ? 4 : NaN];
    if (!(start + length <= end)) {
      throw new InvalidProtoError(`Field ${number} at byte ${at} leads out of its message`);
    }
    return { number, value: 0, start, end: start + length };
  }

  private lengthAt(at: number, end: number): [start: number, length: number] {
    const { value, end: start } = this.varint(at, end);
    return [start, value];
  }

  /** A number in groups of 7 bits, the lowest first. A negative one is that of its 64 bits. */
  private varint(at: number, end: number): { readonly value: number; readonly end: number } {
    let value = 0;
    for (let i = 0; i < 10 && at + i < end; i++) {
      const byte = this.byteAt(at + i);
      value += (byte & 0x7f) * 2 ** (7 * i);
      if (byte < 0x80) {
        return { value, end: at + i + 1 };
      }
    }
    throw new InvalidProtoError(`The number at byte ${at} has no end`);
  }

  private byteAt(at: number): number {
    if (at < this.windowStart || at >= this.windowEnd) {
      const count = readSync(this.file, this.window, 0, WINDOW, at);
      this.windowStart = at;
      this.windowEnd = at + count;
      if (count === 0) {
        throw new InvalidProtoError(`The file ends at byte ${at}`);
      }
    }
    return this.window[at - this.windowStart]!;
  }
}
