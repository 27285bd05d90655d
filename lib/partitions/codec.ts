import { DefaultDeserializer, serialize } from 'node:v8';

/**
 * A message as bytes, for another process. Of a typed array only its own elements, not the rest of the buffer that it views.
 *
 * @throws when there is something in it that cannot be cloned
 */
export function encode(message: unknown): Buffer<ArrayBuffer> {
  return serialize(message);
}

/** The message, each of whose typed arrays has memory of its own. */
export function decode(bytes: Uint8Array): unknown {
  const deserializer = new OwningDeserializer(bytes);
  deserializer.readHeader();
  return deserializer.readValue();
}

/** The method is documented, and missing in the types of Node. */
const Base = DefaultDeserializer as new (bytes: Uint8Array) => DefaultDeserializer & { _readHostObject(): ArrayBufferView };

/** By itself, Node lets typed arrays view the bytes of the whole message, in which there are those of other callers. */
class OwningDeserializer extends Base {
  override _readHostObject(): ArrayBufferView {
    const view = super['_readHostObject']();
    const { buffer, byteOffset, byteLength, constructor } = view;
    return byteLength === buffer.byteLength
      ? view
      : new (constructor as new (buffer: ArrayBufferLike) => ArrayBufferView)(buffer.slice(byteOffset, byteOffset + byteLength));
  }
}
