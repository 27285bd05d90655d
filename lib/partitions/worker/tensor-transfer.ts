import {
  copyOfData,
  type Tensor,
  type TensorData,
  tensorOf,
  type TypedData,
} from '../../batch/tensor.js';
import type { ModelPort } from '../onnx/model-signature.js';

/** Tensors of a model on their way. Both ends have their names and types, in this order. */
export interface WireTensors {
  readonly data: readonly TensorData[];
  readonly dims: readonly (readonly number[])[];
}

/** The wire form of tensors, and the buffers that move with it instead of being copied. */
export function packTensors(tensors: readonly Tensor[]): [WireTensors, ArrayBuffer[]] {
  const transfer = new Set<ArrayBuffer>();
  const data = tensors.map((tensor) => movable(tensor.data, transfer));
  return [{ data, dims: tensors.map(({ dims }) => dims) }, [...transfer]];
}

export function unpackTensors({ data, dims }: WireTensors, ports: readonly ModelPort[]): Tensor[] {
  return ports.map(({ type }, i) => tensorOf({ type, data: data[i]!, dims: dims[i]! }));
}

/** The data in a buffer of its own, which is added to `transfer`; strings as they are. */
export function movable(data: TensorData, transfer: Set<ArrayBuffer>): TensorData {
  if (!ArrayBuffer.isView(data)) {
    return data;
  }
  const own = isWhole(data) && !transfer.has(data.buffer) ? data : copyOfData(data);
  transfer.add(own.buffer as ArrayBuffer);
  return own;
}

/** False for a view of a part: the whole buffer would move, or be copied, with it. */
function isWhole(data: TypedData): data is TypedData & { readonly buffer: ArrayBuffer } {
  return data.byteLength === data.buffer.byteLength && !(data.buffer instanceof SharedArrayBuffer);
}
