import { readFileSync } from 'node:fs';
import protobuf from 'protobufjs';
import { messageOf } from '../../../internal.js';

export interface OnnxPort {
  readonly name: string;
  /** `unknown` for a number that ONNX does not define. */
  readonly type: string;
  readonly isTensor: boolean;
  /** A number is fixed; a text names a dynamic axis and may be empty. */
  readonly shape: readonly (number | string)[];
}

/** Weights in the model's file or next to it. */
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
  /** Without those that have a value in the file. */
  readonly inputs: readonly OnnxPort[];
  readonly outputs: readonly OnnxPort[];
  /** Inner graphs included: `Conv`, `com.microsoft.Gelu`. */
  readonly operators: ReadonlyMap<string, number>;
  readonly weights: OnnxWeights;
}

/** Not ONNX, or truncated. */
export class InvalidOnnxError extends Error {
  override readonly name = 'InvalidOnnxError';
}

/**
 * A part of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto; readers skip unknown fields.
 */
const SCHEMA = `
  syntax = "proto3";
  message Model {
    int64 ir_version = 1;
    string producer_name = 2;
    string producer_version = 3;
    Graph graph = 7;
    repeated OperatorSet opset_import = 8;
    repeated Function functions = 25;
  }
  message OperatorSet { string domain = 1; int64 version = 2; }
  message Function { repeated Node node = 7; }
  message Graph {
    repeated Node node = 1;
    repeated Tensor initializer = 5;
    repeated Port input = 11;
    repeated Port output = 12;
  }
  message Node {
    string op_type = 4;
    repeated Attribute attribute = 5;
    string domain = 7;
  }
  message Attribute {
    Tensor t = 5;
    Graph g = 6;
    repeated Tensor tensors = 10;
    repeated Graph graphs = 11;
  }
  message Tensor {
    repeated int64 dims = 1;
    int32 data_type = 2;
    string name = 8;
    repeated Entry external_data = 13;
  }
  message Entry { string key = 1; string value = 2; }
  message Port { string name = 1; Type type = 2; }
  message Type {
    oneof value {
      TensorType tensor_type = 1;
      Other sequence_type = 4;
      Other map_type = 5;
      Other sparse_tensor_type = 8;
      Other optional_type = 9;
    }
  }
  message TensorType { int32 elem_type = 1; Shape shape = 2; }
  message Shape { repeated Axis dim = 1; }
  message Axis { oneof value { int64 dim_value = 1; string dim_param = 2; } }
  message Other {}
`;

interface Model {
  readonly irVersion: number;
  readonly producerName: string;
  readonly producerVersion: string;
  readonly graph: Graph | null;
  readonly opsetImport: readonly { readonly domain: string; readonly version: number }[];
  readonly functions: readonly { readonly node: readonly Node[] }[];
}

interface Graph {
  readonly node: readonly Node[];
  readonly initializer: readonly Tensor[];
  readonly input: readonly Port[];
  readonly output: readonly Port[];
}

interface Node {
  readonly opType: string;
  readonly domain: string;
  readonly attribute: readonly {
    readonly t: Tensor | null;
    readonly g: Graph | null;
    readonly tensors: readonly Tensor[];
    readonly graphs: readonly Graph[];
  }[];
}

interface Tensor {
  readonly dims: readonly number[];
  readonly dataType: number;
  readonly name: string;
  readonly externalData: readonly { readonly key: string; readonly value: string }[];
}

interface Port {
  readonly name: string;
  readonly type: {
    /** The set field's name. */
    readonly value?: string;
    readonly tensorType?: { readonly elemType: number; readonly shape: { dim: Axis[] } | null };
  } | null;
}

type Axis = { readonly dimValue?: number; readonly dimParam?: string };

/** With bits per element, by number in `TensorProto.DataType`. */
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

/** @throws InvalidOnnxError if it isn't ONNX or is truncated */
export function readOnnxFile(path: string): OnnxFile {
  const bytes = readFileSync(path);
  const { irVersion, producerName, producerVersion, graph, opsetImport, functions } =
    decoded(bytes);
  if (!graph || opsetImport.length === 0) {
    throw new InvalidOnnxError('It has no graph and no version of operators, so it is not ONNX');
  }
  const graphs = [graph];
  const operators = new Map<string, number>();
  const tensorLists: (readonly Tensor[])[] = [];
  const readNode = ({ opType, domain, attribute }: Node): void => {
    const name = domain === '' || domain === 'ai.onnx' ? opType : `${domain}.${opType}`;
    operators.set(name, (operators.get(name) ?? 0) + 1);
    for (const { t, tensors, g, graphs: inner } of attribute) {
      tensorLists.push(t ? [t, ...tensors] : tensors);
      (g ? [g, ...inner] : inner).forEach((each) => graphs.push(each));
    }
  };
  functions.forEach(({ node }) => node.forEach(readNode));
  for (const each of graphs) {
    each.node.forEach(readNode);
    tensorLists.push(each.initializer);
  }
  const tensors = tensorLists.flat();
  const initialized = new Set(tensors.map(({ name }) => name));
  return {
    bytes: bytes.length,
    irVersion,
    producer: `${producerName} ${producerVersion}`.trim(),
    opsets: new Map(
      opsetImport.map(({ domain, version }) => [domain === '' ? 'ai.onnx' : domain, version]),
    ),
    inputs: graph.input.map(portOf).filter(({ name }) => !initialized.has(name)),
    outputs: graph.output.map(portOf),
    operators,
    weights: weightsOf(tensors),
  };
}

const modelType = protobuf.parse(SCHEMA).root.lookupType('Model');

function decoded(bytes: Uint8Array): Model {
  try {
    const options = { longs: Number, defaults: true, arrays: true, oneofs: true };
    return modelType.toObject(modelType.decode(bytes), options) as Model;
  } catch (cause) {
    throw new InvalidOnnxError(messageOf(cause), { cause });
  }
}

function weightsOf(tensors: readonly Tensor[]): OnnxWeights {
  const byType = new Map<string, number>();
  const externalFiles = new Set<string>();
  let [weights, total] = [0, 0];
  for (const { dims, dataType, externalData } of tensors) {
    const [type, bits] = elementTypes.get(dataType) ?? ['unknown', 0];
    const count = dims.reduce((product, size) => product * size, 1);
    const bytes = Math.ceil((count * bits) / 8);
    weights += count;
    total += bytes;
    byType.set(type, (byType.get(type) ?? 0) + bytes);
    externalData
      .filter(({ key }) => key === 'location')
      .forEach(({ value }) => externalFiles.add(value));
  }
  return { count: weights, bytes: total, byType, externalFiles };
}

function portOf({ name, type }: Port): OnnxPort {
  if (!type?.tensorType) {
    const kind = type?.value?.replace('Type', '').replace('T', ' t');
    return { name, isTensor: false, type: kind ?? 'unknown', shape: [] };
  }
  const { elemType, shape } = type.tensorType;
  return {
    name,
    isTensor: true,
    type: elementTypes.get(elemType)?.[0] ?? 'unknown',
    shape: shape?.dim.map(({ dimValue, dimParam }) => dimValue ?? dimParam ?? '') ?? [],
  };
}
