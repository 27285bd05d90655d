import { Tensor } from 'onnxruntime-common';

/** The element storage of a tensor: a typed array, or strings. */
export type TensorData = Tensor['data'];

/** The storage of numbers and truth values. */
export type TypedData = Exclude<TensorData, string[]>;

/** True for a tensor of any copy of onnxruntime-common, which `instanceof` would miss. */
export function isTensor(value: unknown): value is Tensor {
  if (typeof value !== 'object' || value === null || !('dims' in value && 'type' in value && 'data' in value)) {
    return false;
  }
  const { dims, type, data } = value;
  return Array.isArray(dims) && (type === 'string' ? Array.isArray(data) : ArrayBuffer.isView(data));
}

/** The tensor with an axis of length 1 in front; the data is shared. */
export function asRow(tensor: Tensor): Tensor {
  return new Tensor(tensor.type, tensor.data, [1, ...tensor.dims]);
}

/** The tensor in storage of its own. */
export function copyOf({ type, data, dims }: Tensor): Tensor {
  return new Tensor(type, Array.isArray(data) ? [...data] : copyOfData(data), [...dims]);
}

/** The elements in a buffer of their own, of just their size. */
export function copyOfData<T extends TypedData>(data: T): T {
  return new (storageOf(data))(data);
}

/** A tensor of zeros (empty strings) with the element type and storage of `like`. */
export function zerosLike(like: Tensor, dims: readonly number[]): Tensor {
  return new Tensor(like.type, allocate(like.data, product(dims, 0, dims.length)), dims);
}

/** Zeros (empty strings) for a tensor of the type and shape. */
export function zerosOf(type: Tensor.Type, dims: readonly number[]): TensorData {
  const length = product(dims, 0, dims.length);
  return type === 'string' ? allocate([], length) : new (storageClasses[type] ?? Float32Array)(length);
}

/** Where there is no class for the type, as for numbers of 16 bits before Node 24, onnxruntime takes another. */
const storageClasses: Readonly<Record<string, new (length: number) => TypedData>> = {
  float32: Float32Array,
  float64: Float64Array,
  float16: (globalThis as { Float16Array?: typeof Uint16Array }).Float16Array ?? Uint16Array,
  int8: Int8Array,
  uint8: Uint8Array,
  bool: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
};

function allocate(like: TensorData, length: number): TensorData {
  if (Array.isArray(like)) {
    return Array.from({ length }, () => '');
  }
  return new (storageOf(like))(length);
}

/** The class of the typed array; a Buffer, which can share its memory with others, is for this an Uint8Array. */
function storageOf<T extends TypedData>(data: T): new (from: number | T) => T {
  return (Buffer.isBuffer(data) ? Uint8Array : data.constructor) as new (from: number | T) => T;
}

/**
 * Copies `count` rows, counted on `axis`, from `source` to `target`.
 *
 * Rows on axis 0 lie together and are one block; on a later axis each step of the axes before it holds a block of its own.
 */
export function copyRows(
  target: Tensor,
  targetStart: number,
  source: Tensor,
  sourceStart: number,
  count: number,
  axis: number,
): void {
  const inner = product(source.dims, axis + 1, source.dims.length);
  const outer = product(source.dims, 0, axis);
  const sourceStride = inner * source.dims[axis]!;
  const targetStride = inner * target.dims[axis]!;
  for (let block = 0; block < outer; block++) {
    const from = block * sourceStride + sourceStart * inner;
    copyBlock(target.data, block * targetStride + targetStart * inner, source.data, from, count * inner);
  }
}

function copyBlock(target: TensorData, at: number, source: TensorData, from: number, length: number): void {
  if (Array.isArray(target) || Array.isArray(source)) {
    for (let i = 0; i < length; i++) {
      target[at + i] = source[from + i]!;
    }
    return;
  }
  const block = source.subarray(from, from + length);
  (target as { set(block: unknown, at: number): void }).set(block, at);
}

function product(dims: readonly number[], from: number, to: number): number {
  let result = 1;
  for (let axis = from; axis < to; axis++) {
    result *= dims[axis]!;
  }
  return result;
}
