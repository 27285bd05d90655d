import { type Field, InvalidProtoError, ProtoFile, type Region } from './proto-file.js';

/** One input or output in an ONNX file. */
export interface OnnxPort {
  readonly name: string;
  /** The name of its element type; `unknown` for a number that ONNX does not define. */
  readonly type: string;
  readonly isTensor: boolean;
  /** A number is fixed, a text names a dynamic axis and may be empty. */
  readonly shape: readonly (number | string)[];
}

/** The numbers of a model that lie in its file, or in files beside it. */
export interface OnnxWeights {
  readonly count: number;
  readonly bytes: number;
  /** Bytes by element type. */
  readonly byType: ReadonlyMap<string, number>;
  /** The files that it refers to, relative to its own folder. */
  readonly externalFiles: ReadonlySet<string>;
}

/** The description of a model, without its weights. */
export interface OnnxFile {
  readonly bytes: number;
  readonly irVersion: number;
  readonly producer: string;
  /** The version of each set of operators by its domain; that of ONNX itself is `ai.onnx`. */
  readonly opsets: ReadonlyMap<string, number>;
  /** Without those that have a value in the file. */
  readonly inputs: readonly OnnxPort[];
  readonly outputs: readonly OnnxPort[];
  /** How often each operator is in the graph and its inner graphs: `Conv`, `com.microsoft.Gelu`. */
  readonly operators: ReadonlyMap<string, number>;
  readonly weights: OnnxWeights;
}

/**
 * The names of the element types, and the bits of an element, by their numbers in
 * `TensorProto.DataType`.
 */
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

/** Graphs inside graphs, as the branches of an `If`, go no deeper than this. */
const DEEPEST = 32;

/**
 * Reads the description of an ONNX file (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).
 * Its weights are skipped.
 *
 * @throws InvalidProtoError when it is no ONNX file, or is cut
 */
export function readOnnxFile(path: string): OnnxFile {
  const file = new ProtoFile(path);
  try {
    return new OnnxReader(file).read();
  } finally {
    file.close();
  }
}

class OnnxReader {
  private readonly operators = new Map<string, number>();
  private readonly initialized = new Set<string>();
  private readonly byType = new Map<string, number>();
  private readonly externalFiles = new Set<string>();
  private weights = 0;

  constructor(private readonly file: ProtoFile) {}

  read(): OnnxFile {
    const { file } = this;
    const opsets = new Map<string, number>();
    const ports: { inputs: OnnxPort[]; outputs: OnnxPort[] } = { inputs: [], outputs: [] };
    let irVersion = 0;
    const producer: string[] = [];
    let graphs = 0;
    for (const field of file.fields()) {
      switch (field.number) {
        case 1:
          irVersion = field.value;
          break;
        case 2:
        case 3:
          producer.push(file.text(field));
          break;
        case 7:
          graphs++;
          this.readGraph(field, 0, ports);
          break;
        case 8: {
          const [domain, version] = this.opsetOf(field);
          opsets.set(domain, version);
          break;
        }
        case 25:
          // A function of the model: its nodes have the number 7.
          this.readNodes(field, 7, 0);
          break;
        default:
      }
    }
    if (graphs !== 1 || opsets.size === 0) {
      throw new InvalidProtoError('It has no graph and no version of operators, so it is not ONNX');
    }
    return {
      bytes: file.size,
      irVersion,
      producer: producer.join(' ').trim(),
      opsets,
      inputs: ports.inputs.filter(({ name }) => !this.initialized.has(name)),
      outputs: ports.outputs,
      operators: this.operators,
      weights: {
        count: this.weights,
        bytes: [...this.byType.values()].reduce((sum, bytes) => sum + bytes, 0),
        byType: this.byType,
        externalFiles: this.externalFiles,
      },
    };
  }

  /** @param ports gets the inputs and outputs; those of inner graphs are not kept */
  private readGraph(
    graph: Region,
    depth: number,
    ports?: { inputs: OnnxPort[]; outputs: OnnxPort[] },
  ): void {
    if (depth > DEEPEST) {
      throw new InvalidProtoError(`Its graphs are nested more than ${DEEPEST} deep`);
    }
    for (const field of this.file.fields(graph)) {
      switch (field.number) {
        case 1:
          this.readNode(field, depth);
          break;
        case 5:
          this.readWeights(field);
          break;
        case 11:
          ports?.inputs.push(this.portOf(field));
          break;
        case 12:
          ports?.outputs.push(this.portOf(field));
          break;
        default:
      }
    }
  }

  private readNodes(owner: Region, number: number, depth: number): void {
    for (const field of this.file.fields(owner)) {
      if (field.number === number) {
        this.readNode(field, depth);
      }
    }
  }

  private readNode(node: Region, depth: number): void {
    let operator = '';
    let domain = '';
    for (const field of this.file.fields(node)) {
      if (field.number === 4) {
        operator = this.file.text(field);
      } else if (field.number === 7) {
        domain = this.file.text(field);
      } else if (field.number === 5) {
        this.readAttribute(field, depth);
      }
    }
    const name = domain === '' || domain === 'ai.onnx' ? operator : `${domain}.${operator}`;
    this.operators.set(name, (this.operators.get(name) ?? 0) + 1);
  }

  /** The graphs of an attribute are those of `If`, `Loop` and `Scan`. */
  private readAttribute(attribute: Region, depth: number): void {
    for (const field of this.file.fields(attribute)) {
      if (field.number === 6 || field.number === 11) {
        this.readGraph(field, depth + 1);
      } else if (field.number === 5) {
        this.readWeights(field);
      }
    }
  }

  private readWeights(tensor: Region): void {
    const { file } = this;
    let dims: number[] = [];
    let type = 0;
    for (const field of file.fields(tensor)) {
      if (field.number === 1) {
        dims = [...dims, ...file.numbers(field)];
      } else if (field.number === 2) {
        type = field.value;
      } else if (field.number === 8) {
        this.initialized.add(file.text(field));
      } else if (field.number === 13) {
        this.readExternal(field);
      }
    }
    const [name, bits] = elementTypes.get(type) ?? ['unknown', 0];
    const count = dims.reduce((product, size) => product * size, 1);
    this.weights += count;
    this.byType.set(name, (this.byType.get(name) ?? 0) + Math.ceil((count * bits) / 8));
  }

  /** An entry of `external_data`: a key and its value. */
  private readExternal(entry: Region): void {
    const [key, value] = this.pairOf(entry);
    if (key === 'location') {
      this.externalFiles.add(value);
    }
  }

  private pairOf(entry: Region): [key: string, value: string] {
    const parts = ['', ''];
    for (const field of this.file.fields(entry)) {
      parts[field.number - 1] = this.file.text(field);
    }
    return [parts[0]!, parts[1]!];
  }

  private opsetOf(entry: Region): [domain: string, version: number] {
    let domain = '';
    let version = 0;
    for (const field of this.file.fields(entry)) {
      if (field.number === 1) {
        domain = this.file.text(field);
      } else if (field.number === 2) {
        version = field.value;
      }
    }
    return [domain === '' ? 'ai.onnx' : domain, version];
  }

  private portOf(value: Region): OnnxPort {
    let name = '';
    let type: Pick<OnnxPort, 'type' | 'isTensor' | 'shape'> = {
      type: 'unknown',
      isTensor: false,
      shape: [],
    };
    for (const field of this.file.fields(value)) {
      if (field.number === 1) {
        name = this.file.text(field);
      } else if (field.number === 2) {
        type = this.typeOf(field);
      }
    }
    return { name, ...type };
  }

  private typeOf(value: Region): Pick<OnnxPort, 'type' | 'isTensor' | 'shape'> {
    const kinds = new Map([
      [4, 'sequence'],
      [5, 'map'],
      [8, 'sparse tensor'],
      [9, 'optional'],
    ]);
    for (const field of this.file.fields(value)) {
      if (field.number === 1) {
        return { isTensor: true, ...this.tensorTypeOf(field) };
      }
      const kind = kinds.get(field.number);
      if (kind !== undefined) {
        return { isTensor: false, type: kind, shape: [] };
      }
    }
    return { isTensor: false, type: 'unknown', shape: [] };
  }

  private tensorTypeOf(value: Region): Pick<OnnxPort, 'type' | 'shape'> {
    let type = 'unknown';
    let shape: (number | string)[] = [];
    for (const field of this.file.fields(value)) {
      if (field.number === 1) {
        type = elementTypes.get(field.value)?.[0] ?? 'unknown';
      } else if (field.number === 2) {
        shape = Array.from(this.file.fields(field), (axis) => this.sizeOf(axis));
      }
    }
    return { type, shape };
  }

  private sizeOf(axis: Field): number | string {
    for (const field of this.file.fields(axis)) {
      if (field.number === 1) {
        return field.value;
      }
      if (field.number === 2) {
        return this.file.text(field);
      }
    }
    return '';
  }
}
