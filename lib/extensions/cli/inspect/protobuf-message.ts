export class ProtobufError extends Error {
  override readonly name = 'ProtobufError';
}

const MAX_DEPTH = 100;

/**
 * Message without its schema: reads numbered fields when needed.
 *
 * https://protobuf.dev/programming-guides/encoding/
 */
export class ProtobufMessage {
  readonly #fields = new Map<number, (number | Uint8Array)[]>();

  /** @throws ProtobufError */
  constructor(
    bytes: Uint8Array,
    private readonly depth = 0,
  ) {
    if (depth > MAX_DEPTH) {
      throw new ProtobufError(`Messages are nested more than ${MAX_DEPTH} deep`);
    }
    const reader = new Reader(bytes);
    while (!reader.isAtEnd) {
      const tag = reader.varint();
      const field = Math.floor(tag / 8);
      const value = reader.value(tag % 8);
      if (field <= 0) {
        throw new ProtobufError(`Invalid number ${field} of a field`);
      }
      if (value !== undefined) {
        const values = this.#valuesOf(field);
        values.push(value);
        this.#fields.set(field, values);
      }
    }
  }

  /** Rounds beyond 2 ** 53. */
  number(field: number): number | undefined {
    return this.numbers(field).at(-1);
  }

  numbers(field: number): readonly number[] {
    return this.#valuesOf(field).flatMap((value) =>
      typeof value === 'number' ? value : numbersIn(value),
    );
  }

  text(field: number): string {
    const bytes = this.#bytesOf(field).at(-1);
    return bytes ? Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString() : '';
  }

  message(field: number): ProtobufMessage | undefined {
    const bytes = this.#bytesOf(field).at(-1);
    return bytes && new ProtobufMessage(bytes, this.depth + 1);
  }

  messages(field: number): readonly ProtobufMessage[] {
    return this.#bytesOf(field).map((bytes) => new ProtobufMessage(bytes, this.depth + 1));
  }

  #bytesOf(field: number): readonly Uint8Array[] {
    return this.#valuesOf(field).filter((value) => typeof value !== 'number');
  }

  #valuesOf(field: number): (number | Uint8Array)[] {
    return this.#fields.get(field) ?? [];
  }
}

/** Reads packed numbers. */
function numbersIn(bytes: Uint8Array): readonly number[] {
  const reader = new Reader(bytes);
  const numbers: number[] = [];
  while (!reader.isAtEnd) {
    numbers.push(reader.varint());
  }
  return numbers;
}

class Reader {
  #at = 0;

  constructor(private readonly bytes: Uint8Array) {}

  get isAtEnd(): boolean {
    return this.#at >= this.bytes.length;
  }

  /** Skips numbers of fixed size. */
  value(wireType: number): number | Uint8Array | undefined {
    switch (wireType) {
      case 0:
        return this.varint();
      case 1:
        return void this.#take(8);
      case 2:
        return this.#take(this.varint());
      case 5:
        return void this.#take(4);
      default:
        throw new ProtobufError(`Unknown wire type ${wireType}`);
    }
  }

  /** Sums 28 lower and 36 upper bits, so that negative numbers stay exact. */
  varint(): number {
    let [low, high] = [0, 0];
    for (let group = 0; group < 10; group++) {
      const byte = this.#take(1)[0]!;
      if (group < 4) {
        low += (byte & 127) * 128 ** group;
      } else {
        high += (byte & 127) * 128 ** (group - 4);
      }
      if (byte < 128) {
        return (high < 2 ** 35 ? high : high - 2 ** 36) * 2 ** 28 + low;
      }
    }
    throw new ProtobufError('A number has more than 10 bytes');
  }

  #take(size: number): Uint8Array {
    const start = this.#at;
    this.#at += size;
    if (size < 0 || this.#at > this.bytes.length) {
      throw new ProtobufError('The bytes end inside a field');
    }
    return this.bytes.subarray(start, this.#at);
  }
}
