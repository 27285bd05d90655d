import type { Tensor } from 'onnxruntime-common';
import { wordOfNumber } from '../../../encoding/element-types.js';
import { readTensor, typeOfDatatype } from '../../../encoding/json-tensor.js';
import type { ReadContext } from '../../../encoding/json.js';
import type { GrpcContents, GrpcTensor } from './grpc-service.js';
import { bytesOfTensor, datatypeOfTensor, tensorOfBytes, elementOf } from './tensor-bytes.js';

/** Elements are in the tensors' order. */
export interface GrpcTensors {
  readonly tensors: readonly GrpcTensor[];
  readonly raw: readonly Buffer[];
}

export function toGrpcTensors(tensors: ReadonlyMap<string, Tensor>): GrpcTensors {
  return {
    tensors: Array.from(tensors, ([name, tensor]) => ({
      name,
      datatype: datatypeOfTensor(tensor),
      shape: tensor.dims,
    })),
    raw: Array.from(tensors.values(), bytesOfTensor),
  };
}

/**
 * Elements are all in `raw` or all in `contents`.
 *
 * @throws InvalidInputError naming the tensor
 */
export function fromGrpcTensors(
  { tensors, raw }: GrpcTensors,
  context: ReadContext,
): Map<string, Tensor> {
  const isRaw = raw.length > 0;
  if (isRaw && raw.length !== tensors.length) {
    context.fail(`has ${tensors.length} tensors and raw contents of ${raw.length}`);
  }
  const byName = new Map<string, Tensor>();
  tensors.forEach((tensor, i) => {
    const { name, datatype, contents } = tensor;
    if (byName.has(name)) {
      context.fail('is there twice', name);
    }
    const read = (): Tensor => {
      if (isRaw && hasElements(contents)) {
        context.fail('has both raw contents and contents; send one of them');
      }
      const shape = shapeOf(tensor, context);
      return isRaw
        ? tensorOfBytes(datatype, shape, raw[i]!, context)
        : readTensor({ shape, datatype, data: elementsOf(datatype, contents, context) }, context);
    };
    byName.set(name, context.at(name, read));
  });
  return byName;
}

function shapeOf({ shape }: GrpcTensor, context: ReadContext): number[] {
  if (shape.length > context.limits.rank) {
    context.fail(`has ${shape.length} axes; at most ${context.limits.rank} are allowed`);
  }
  return shape.map((size) =>
    Number(size) >= 0 && Number(size) < 2 ** 32
      ? Number(size)
      : context.fail(`has an axis of ${size}; give whole numbers from 0 to 2 ** 32 - 1`),
  );
}

function hasElements(contents: GrpcContents | null | undefined): boolean {
  return Object.values(contents ?? {}).some((list: readonly unknown[]) => list.length > 0);
}

function elementsOf(
  datatype: string,
  contents: GrpcContents | null | undefined,
  context: ReadContext,
): readonly unknown[] {
  const field = fieldOf(datatype);
  if (!field) {
    return context.fail(`has the datatype ${datatype}, whose elements are sent as raw contents`);
  }
  const list = contents?.[field] ?? [];
  return field === 'bytes_contents'
    ? (list as readonly Buffer[]).map((bytes, i) => elementOf(bytes, i, context))
    : field === 'fp32_contents' || field === 'fp64_contents'
      ? (list as readonly number[]).map((number) => wordOfNumber(number) ?? number)
      : list;
}

/** Undefined for datatypes that must be raw. */
function fieldOf(datatype: string): keyof GrpcContents | undefined {
  switch (typeOfDatatype(datatype)) {
    case 'bool':
      return 'bool_contents';
    case 'int8':
    case 'int16':
    case 'int32':
      return 'int_contents';
    case 'int64':
      return 'int64_contents';
    case 'uint8':
    case 'uint16':
    case 'uint32':
      return 'uint_contents';
    case 'uint64':
      return 'uint64_contents';
    case 'float32':
      return 'fp32_contents';
    case 'float64':
      return 'fp64_contents';
    case 'string':
      return 'bytes_contents';
    default:
      return undefined;
  }
}
