import { readFileSync } from 'node:fs';
import { ProtobufError, ProtobufMessage } from './protobuf-message.js';

export interface OnnxPort {
  readonly name: string;
  /** Type, or `unknown` if ONNX does not define its number. */
  readonly type: string;
  readonly isTensor: boolean;
  /** Fixed numbers, and names of dynamic axes, possibly empty. */
  readonly shape: readonly (number | string)[];
}

export interface OnnxWeights {
  readonly count: number;
  readonly bytes: number;
  readonly byType: ReadonlyMap<string, number>;
  /** Relative to the model's folder. */
  readonly externalFiles: ReadonlySet<string>;
}

export interface OnnxFile {
  readonly bytes: number;
  readonly irVersion: number;
  readonly producer: string;
  /** Versions by domain; ONNX's own is `ai.onnx`. */
  readonly opsets: ReadonlyMap<string, number>;
  /** Inputs without a value in the file. */
  readonly inputs: readonly OnnxPort[];
  readonly outputs: readonly OnnxPort[];
  /** Operators such as `Conv` or `com.microsoft.Gelu`, also of inner graphs. */
  readonly operators: ReadonlyMap<string, number>;
  readonly weights: OnnxWeights;
}

export class InvalidOnnxError extends Error {
  override readonly name = 'InvalidOnnxError';
}

/** Field numbers of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto. */
const MODEL = {
  irVersion: 1,
  producerName: 2,
  producerVersion: 3,
  graph: 7,
  opsetImport: 8,
  functions: 25,
};
const OPERATOR_SET = { domain: 1, version: 2 };
const FUNCTION = { node: 7 };
const GRAPH = { node: 1, initializer: 5, input: 11, output: 12 };
const NODE = { opType: 4, attribute: 5, domain: 7 };
const ATTRIBUTE = { t: 5, g: 6, tensors: 10, graphs: 11 };
const TENSOR = { dims: 1, dataType: 2, name: 8, externalData: 13 };
const ENTRY = { key: 1, value: 2 };
const PORT = { name: 1, type: 2 };
const TYPE = { tensorType: 1 };
const TENSOR_TYPE = { elemType: 1, shape: 2 };
const SHAPE = { dim: 1 };
const AXIS = { dimValue: 1, dimParam: 2 };

/** Types by field of `TypeProto`. */
const otherTypes = new Map([
  [4, 'sequence'],
  [5, 'map'],
  [8, 'sparse tensor'],
  [9, 'optional'],
]);

/** Types, with bits per element, by number in `TensorProto.DataType`. */
const elementTypes = new Map<number, readonly [type: string, bits: number]>([
  [1, ['float32', 32]],
  [2, ['uint8', 8]],
  [3, ['int8', 8]],
  [4, ['uint16', 16]],
  [5, ['int16', 16]],
  [6, ['int32', 32]],
  [7, ['int64', 64]],
  [8, ['string', 0]],
  [9, ['bool', 8]],
  [10, ['float16', 16]],
  [11, ['float64', 64]],
  [12, ['uint32', 32]],
  [13, ['uint64', 64]],
  [14, ['complex64', 64]],
  [15, ['complex128', 128]],
  [16, ['bfloat16', 16]],
  [17, ['float8e4m3fn', 8]],
  [18, ['float8e4m3fnuz', 8]],
  [19, ['float8e5m2', 8]],
  [20, ['float8e5m2fnuz', 8]],
  [21, ['uint4', 4]],
  [22, ['int4', 4]],
  [23, ['float4e2m1', 4]],
]);

/** @throws InvalidOnnxError if it is truncated or isn't ONNX */
export function readOnnxFile(path: string): OnnxFile {
  const bytes = readFileSync(path);
  try {
    return onnxFileOf(new ProtobufMessage(bytes), bytes.length);
  } catch (cause) {
    if (cause instanceof ProtobufError) {
      throw new InvalidOnnxError(cause.message, { cause });
    }
    throw cause;
  }
}

function onnxFileOf(model: ProtobufMessage, bytes: number): OnnxFile {
  const graph = model.message(MODEL.graph);
  const opsets = model.messages(MODEL.opsetImport);
  if (!graph || opsets.length === 0) {
    throw new InvalidOnnxError('It has no graph and no version of operators, so it is not ONNX');
  }
  const graphs = [graph];
  const operators = new Map<string, number>();
  const tensorLists: (readonly ProtobufMessage[])[] = [];
  const readNode = (node: ProtobufMessage): void => {
    const [type, domain] = [node.text(NODE.opType), node.text(NODE.domain)];
    const name = domain === '' || domain === 'ai.onnx' ? type : `${domain}.${type}`;
    operators.set(name, (operators.get(name) ?? 0) + 1);
    for (const attribute of node.messages(NODE.attribute)) {
      tensorLists.push(attribute.messages(ATTRIBUTE.t), attribute.messages(ATTRIBUTE.tensors));
      for (const field of [ATTRIBUTE.g, ATTRIBUTE.graphs]) {
        attribute.messages(field).forEach((inner) => graphs.push(inner));
      }
    }
  };
  for (const each of model.messages(MODEL.functions)) {
    each.messages(FUNCTION.node).forEach(readNode);
  }
  for (const each of graphs) {
    each.messages(GRAPH.node).forEach(readNode);
    tensorLists.push(each.messages(GRAPH.initializer));
  }
  const tensors = tensorLists.flat();
  const initialized = new Set(tensors.map((tensor) => tensor.text(TENSOR.name)));
  return {
    bytes,
    irVersion: model.number(MODEL.irVersion) ?? 0,
    producer: `${model.text(MODEL.producerName)} ${model.text(MODEL.producerVersion)}`.trim(),
    opsets: new Map(
      opsets.map((each) => [
        each.text(OPERATOR_SET.domain) || 'ai.onnx',
        each.number(OPERATOR_SET.version) ?? 0,
      ]),
    ),
    inputs: graph
      .messages(GRAPH.input)
      .map(portOf)
      .filter(({ name }) => !initialized.has(name)),
    outputs: graph.messages(GRAPH.output).map(portOf),
    operators,
    weights: weightsOf(tensors),
  };
}

function weightsOf(tensors: readonly ProtobufMessage[]): OnnxWeights {
  const byType = new Map<string, number>();
  const externalFiles = new Set<string>();
  let [weights, total] = [0, 0];
  for (const tensor of tensors) {
    const [type, bits] = elementTypes.get(tensor.number(TENSOR.dataType) ?? 0) ?? ['unknown', 0];
    const count = tensor.numbers(TENSOR.dims).reduce((product, size) => product * size, 1);
    const bytes = Math.ceil((count * bits) / 8);
    weights += count;
    total += bytes;
    byType.set(type, (byType.get(type) ?? 0) + bytes);
    tensor
      .messages(TENSOR.externalData)
      .filter((entry) => entry.text(ENTRY.key) === 'location')
      .forEach((entry) => externalFiles.add(entry.text(ENTRY.value)));
  }
  return { count: weights, bytes: total, byType, externalFiles };
}

function portOf(port: ProtobufMessage): OnnxPort {
  const name = port.text(PORT.name);
  const type = port.message(PORT.type);
  const tensorType = type?.message(TYPE.tensorType);
  if (!tensorType) {
    const [, kind = 'unknown'] = [...otherTypes].find(([field]) => type?.message(field)) ?? [];
    return { name, isTensor: false, type: kind, shape: [] };
  }
  const axes = tensorType.message(TENSOR_TYPE.shape)?.messages(SHAPE.dim) ?? [];
  return {
    name,
    isTensor: true,
    type: elementTypes.get(tensorType.number(TENSOR_TYPE.elemType) ?? 0)?.[0] ?? 'unknown',
    shape: axes.map((axis) => axis.number(AXIS.dimValue) ?? axis.text(AXIS.dimParam)),
  };
}
