import { Deserializer, Serializer } from 'node:v8';

export interface Packet {
  readonly head: Uint8Array;
  /** Kept apart, so that their buffers are not sent as a whole. */
  readonly views: readonly ArrayBufferView[];
}

/** Node reads a message's length as a signed 32-bit number. */
export const MAX_BYTES = 2 ** 31 - 1;

/** Most bytes that Node adds to a message and to each array. */
const OVERHEAD = 64;

/** Most bytes in transit. */
export function lengthOf({ head, views }: Packet): number {
  return views.reduce(
    (sum, { byteLength }) => sum + byteLength + OVERHEAD,
    head.byteLength + 2 * OVERHEAD,
  );
}

/** @throws if a value can't be cloned */
export function encode(message: unknown): Packet {
  const writer = new Writer();
  writer.writeHeader();
  writer.writeValue(message);
  return { head: writer.releaseBuffer(), views: writer.views };
}

/** @throws when objects are nested too deeply */
export function decode({ head, views }: Packet): unknown {
  const reader = new Reader(head, views);
  reader.readHeader();
  return reader.readValue();
}

/** Copies, since Node returns views of a buffer that other packets share. */
export function owned({ head, views }: Packet): Packet {
  return { head: new Uint8Array(head), views: views.map(copyOf) };
}

/** Documented, but missing in Node's types. */
interface HostObjects {
  _setTreatArrayBufferViewsAsHostObjects(treat: boolean): void;
  _writeHostObject(view: unknown): void;
}

const WriterBase = Serializer as new () => Serializer & HostObjects;

class Writer extends WriterBase {
  readonly views: ArrayBufferView[] = [];

  constructor() {
    super();
    this['_setTreatArrayBufferViewsAsHostObjects'](true);
  }

  override _writeHostObject(view: unknown): void {
    if (!ArrayBuffer.isView(view)) {
      throw new TypeError(`${String(view)} could not be cloned.`);
    }
    this.writeUint32(this.views.push(view) - 1);
  }
}

class Reader extends Deserializer {
  constructor(
    head: Uint8Array,
    private readonly views: readonly ArrayBufferView[],
  ) {
    super(head);
  }

  _readHostObject(): ArrayBufferView {
    return this.views[this.readUint32()]!;
  }
}

function copyOf(view: ArrayBufferView): ArrayBufferView {
  const { buffer, byteOffset, byteLength } = view;
  const type = (Buffer.isBuffer(view) ? Uint8Array : view.constructor) as new (
    bytes: ArrayBufferLike,
  ) => ArrayBufferView;
  return new type(buffer.slice(byteOffset, byteOffset + byteLength));
}
