/** One field of a protobuf message, as it lies in the file. */
export interface Field {
  readonly number: number;
  /** The payload of a length-delimited field; of any other it is empty. */
  readonly content: Buffer;
  /** Tag, length and payload: what to copy to leave the field as it is. */
  readonly raw: Buffer;
}

/**
 * The fields of a message in the order of the file:
 * https://protobuf.dev/programming-guides/encoding/.
 */
export function* fieldsOf(message: Buffer): Generator<Field> {
  let offset = 0;
  const varint = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = message.readUInt8(offset++);
      value += (byte & 127) * factor;
      if (byte < 128) {
        return value;
      }
    }
  };

  while (offset < message.length) {
    const start = offset;
    const tag = varint();
    const contentAt = (size: number) => message.subarray(offset, (offset += size));
    let content: Buffer = Buffer.alloc(0);
    switch (tag & 7) {
      case 0:
        varint();
        break;
      case 1:
        offset += 8;
        break;
      case 2:
        content = contentAt(varint());
        break;
      case 5:
        offset += 4;
        break;
      default:
        throw new Error(`Byte ${start} starts no protobuf field`);
    }
    yield { number: Math.floor(tag / 8), content, raw: message.subarray(start, offset) };
  }
}

/** A length-delimited field: a message of such parts, or a text. */
export function field(number: number, ...parts: readonly (Uint8Array | string)[]): Buffer {
  const content = Buffer.concat(
    parts.map((part) => (typeof part === 'string' ? Buffer.from(part) : part)),
  );
  return Buffer.concat([varintOf(number * 8 + 2), varintOf(content.length), content]);
}

export function integerField(number: number, value: number): Buffer {
  return Buffer.concat([varintOf(number * 8), varintOf(value)]);
}

function varintOf(value: number): Buffer {
  const bytes: number[] = [];
  let rest = value;
  for (; rest > 127; rest = Math.floor(rest / 128)) {
    bytes.push((rest % 128) + 128);
  }
  return Buffer.from([...bytes, rest]);
}
