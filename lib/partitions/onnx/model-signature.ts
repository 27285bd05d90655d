import type { InferenceSession, Tensor } from 'onnxruntime-common';
import { InvalidServingError } from '../../errors.js';
import {
  axisOfInput,
  axisOfOutput,
  dynamicAxes,
  type FileShape,
  type FoundAxis,
  isUnnamed,
  rowMarksOf,
} from './batch-axes.js';

/** Where the rows of a model's input or output lie, if not where its file says; by name. */
export type DeclaredAxes = Readonly<Record<string, { readonly batchAxis: number | null }>>;

/** What a definition says of the inputs and outputs of its model. */
export interface DeclaredPorts {
  readonly inputs: DeclaredAxes;
  readonly outputs: DeclaredAxes;
  /** The outputs that make the reply; all, if there is no list. */
  readonly fetches?: readonly string[] | undefined;
}

/** One input or output of a model. */
export interface ModelPort {
  readonly name: string;
  readonly type: Tensor.Type;
  /** A number is fixed; a string is the name of a dynamic axis, possibly empty. */
  readonly shape: readonly (number | string)[];
  /**
   * The axis of the rows; `null`: it has none, and is shared by the batch or, where no input has
   * rows, belongs to one call.
   */
  readonly batchAxis: number | null;
}

/** What an ONNX file says of itself. */
export interface ModelSignature {
  readonly inputs: readonly ModelPort[];
  readonly outputs: readonly ModelPort[];
  /** The names of the outputs that make the reply. */
  readonly fetches: readonly string[];
  /** The number of rows that the model takes at a time, where its file fixes that. */
  readonly fixedBatch?: number;
  /** Its weights are quantised at run time over the whole batch: results depend on batch mates. */
  readonly dynamicallyQuantised: boolean;
}

type Metadata = readonly InferenceSession.ValueMetadata[];
type TensorMetadata = Pick<ModelPort, 'name' | 'type' | 'shape'>;

/**
 * Reads the batch axes off the shapes in the file; what is declared wins.
 *
 * @throws InvalidServingError where the file leaves an axis open and nothing is declared
 */
export function signatureOf(
  session: Pick<InferenceSession, 'inputMetadata' | 'outputMetadata'>,
  declared: DeclaredPorts,
): Omit<ModelSignature, 'dynamicallyQuantised'> {
  const files = {
    inputs: tensorsOf('input', session.inputMetadata, declared.inputs),
    outputs: tensorsOf('output', session.outputMetadata, declared.outputs),
  };
  const fetches = fetchesOf(files.outputs, declared.fetches);
  const marks = rowMarksOf(
    files.inputs.map(({ shape }) => shape),
    files.inputs.map(({ name }) => declaredAxis(declared.inputs, name)),
  );
  const inputs = portsOf('input', files.inputs, declared.inputs, (shape) =>
    axisOfInput(shape, marks),
  );
  if (inputs.length === 0) {
    throw new InvalidServingError('The model has no inputs, so a call could not give it anything');
  }
  if (!hasRows(inputs)) {
    checkContradiction(files.outputs, declared.outputs);
    return { inputs, outputs: files.outputs.map(withoutRows), fetches };
  }
  const fixedBatch = fixedBatchOf(inputs);
  if (fixedBatch !== undefined) {
    return fixedSignature(inputs, files.outputs, fetches, declared.outputs, fixedBatch);
  }
  const isDynamic = files.outputs.some(({ shape }) => dynamicAxes(shape).length > 0);
  const outputs = portsOf('output', files.outputs, declared.outputs, (shape) =>
    axisOfOutput(shape, marks, isDynamic),
  );
  checkOutputs(inputs, outputs, declared.outputs);
  return { inputs, outputs, fetches };
}

/** The outputs of several steps are joined, for which each must have its rows on a known axis. */
function fixedSignature(
  inputs: readonly ModelPort[],
  files: readonly TensorMetadata[],
  fetches: readonly string[],
  declared: DeclaredAxes,
  fixedBatch: number,
): Omit<ModelSignature, 'dynamicallyQuantised'> {
  const outputs = files.map(({ name, type, shape }) => {
    const axis = declaredAxis(declared, name) ?? (shape[0] === fixedBatch ? 0 : null);
    return { name, type, shape, batchAxis: axis };
  });
  const uncut = outputs.find(({ name, batchAxis }) => batchAxis === null && fetches.includes(name));
  if (!uncut) {
    return { inputs, outputs, fetches, fixedBatch };
  }
  if (fixedBatch === 1) {
    // What the rows of several calls give could not be told apart, so each call is a run of its
    // own.
    return { inputs: inputs.map(withoutRows), outputs: outputs.map(withoutRows), fetches };
  }
  const name = quoted(uncut.name);
  throw new InvalidServingError(
    `The model takes ${fixedBatch} rows at a time, and no axis of the output ` +
      `${describePort(uncut)} is known to count them. ` +
      `Declare it: outputs: { ${name}: { batchAxis: ... } }. Where none does, leave the output ` +
      'out with fetches, ' +
      'or declare batchAxis: null for all inputs: then each call is one run',
  );
}

/** False for a model that takes one call at a time, since no input has a batch axis. */
export function hasRows(inputs: readonly ModelPort[]): boolean {
  return inputs.some(({ batchAxis }) => batchAxis !== null);
}

function withoutRows({ name, type, shape }: TensorMetadata): ModelPort {
  return { name, type, shape, batchAxis: null };
}

/** The outputs of a model whose inputs have no batch axis have none either. */
function checkContradiction(outputs: readonly TensorMetadata[], declared: DeclaredAxes): void {
  const port = outputs.find(({ name }) => typeof declaredAxis(declared, name) === 'number');
  if (port) {
    throw new InvalidServingError(
      `The output ${describePort(port)} is declared with rows on axis ` +
        `${declaredAxis(declared, port.name)}, ` +
        'and no input of the model has a batch axis; declare that of an input too',
    );
  }
}

/** The rows of one run, where the file fixes them. */
function fixedBatchOf(inputs: readonly ModelPort[]): number | undefined {
  const sizes = new Set(
    inputs.flatMap(({ shape, batchAxis }) => (batchAxis === null ? [] : [shape[batchAxis]!])),
  );
  const size = [...sizes].find((dim) => typeof dim === 'number');
  if (size !== undefined && sizes.size > 1) {
    const axes = inputs.map((port) => `${describePort(port)} on axis ${port.batchAxis}`);
    throw new InvalidServingError(
      `The inputs of the model disagree on the number of rows: ${axes.join(', ')}; ` +
        'say where they lie: inputs: { name: { batchAxis: ... } }',
    );
  }
  return size;
}

/**
 * Where rows lie on another axis in an input, several axes without names could each be that of an
 * output; a guess could mix rows up.
 */
function checkOutputs(
  inputs: readonly ModelPort[],
  outputs: readonly ModelPort[],
  declared: DeclaredAxes,
): void {
  const unclear = outputs.find(
    ({ name, shape }) =>
      !Object.hasOwn(declared, name) && isUnnamed(shape[0]) && shape.filter(isUnnamed).length > 1,
  );
  const elsewhere = inputs.find(({ batchAxis }) => batchAxis !== null && batchAxis > 0);
  if (unclear && elsewhere) {
    throw new InvalidServingError(
      `The rows of the output ${describePort(unclear)} could lie on any axis, as those of the ` +
        `input ${describePort(elsewhere)} lie on axis ${elsewhere.batchAxis}; ` +
        `say where: outputs: { ${quoted(unclear.name)}: { batchAxis: ... } }`,
    );
  }
}

function fetchesOf(
  outputs: readonly TensorMetadata[],
  declared?: readonly string[],
): readonly string[] {
  const names = outputs.map(({ name }) => name);
  const unknown = declared?.find((name) => !names.includes(name));
  if (unknown !== undefined) {
    throw new InvalidServingError(
      `The model has no output "${unknown}" to fetch; it has ${names.join(', ')}`,
    );
  }
  return declared ?? names;
}

/** `name: type[shape]`, as messages show it. */
export function describePort({
  name,
  type,
  shape,
}: Pick<ModelPort, 'name' | 'type' | 'shape'>): string {
  const label = name === '' ? '' : `${name}: `;
  return `${label}${type}[${shape.map((dim) => (dim === '' ? '?' : dim)).join(', ')}]`;
}

/**
 * The batch axes by name, as batches want them; a lone one also without name, for a bare tensor.
 */
export function axesOf(ports: readonly ModelPort[]): Record<string, number | null> {
  const axes = Object.fromEntries(ports.map(({ name, batchAxis }) => [name, batchAxis]));
  return ports.length === 1 ? { ...axes, '': ports[0]!.batchAxis } : axes;
}

/** What the file says of its inputs or outputs. */
function tensorsOf(kind: string, metadata: Metadata, declared: DeclaredAxes): TensorMetadata[] {
  const names = metadata.map(({ name }) => name);
  const unknown = Object.keys(declared).find((name) => !names.includes(name));
  if (unknown !== undefined) {
    throw new InvalidServingError(
      `The model has no ${kind} "${unknown}"; it has ${names.join(', ')}`,
    );
  }
  return metadata.map((port) => {
    if (!port.isTensor) {
      throw new InvalidServingError(
        `The ${kind} "${port.name}" is no tensor; sequences and maps cannot be batched`,
      );
    }
    const axis = declaredAxis(declared, port.name) ?? null;
    if (axis !== null && (!Number.isInteger(axis) || axis < 0 || axis >= port.shape.length)) {
      throw new InvalidServingError(
        `The ${kind} ${describePort(port)} has no axis ${axis}; batchAxis can be 0 to ` +
          `${port.shape.length - 1}, or null for none`,
      );
    }
    return port;
  });
}

function portsOf(
  kind: string,
  ports: readonly TensorMetadata[],
  declared: DeclaredAxes,
  find: (shape: FileShape) => FoundAxis,
): ModelPort[] {
  const open: TensorMetadata[] = [];
  const found = ports.map((port) => {
    const { name, type, shape } = port;
    const stated = declaredAxis(declared, name);
    const axis = stated === undefined ? find(shape) : stated;
    if (axis === 'open') {
      open.push(port);
    }
    return { name, type, shape, batchAxis: axis === 'open' ? null : axis };
  });
  if (open.length > 0) {
    const entries = (axis: string): string =>
      open.map(({ name }) => `${quoted(name)}: { batchAxis: ${axis} }`).join(', ');
    throw new InvalidServingError(
      `The model's file does not say which axis of the ${kind} ` +
        `${open.map(describePort).join(' and of ')} counts rows. ` +
        `Declare it: ${kind}s: { ${entries('0')} } if axis 0 does, the number of another axis if ` +
        'that does, ' +
        `or ${kind}s: { ${entries('null')} } if none does` +
        (kind === 'input' ? '; a model without rows in any input runs one call at a time' : ''),
    );
  }
  return found;
}

function declaredAxis(declared: DeclaredAxes, name: string): number | null | undefined {
  return Object.hasOwn(declared, name) ? declared[name]!.batchAxis : undefined;
}

function quoted(name: string): string {
  return /^[A-Za-z_$][\w$]*$/.test(name) ? name : `'${name}'`;
}

/** What the users of a model must know of it; each goes on from "The model ...". */
export function warningsOf({
  inputs = [],
  fixedBatch,
  dynamicallyQuantised,
}: Partial<ModelSignature> = {}): string[] {
  const warnings: string[] = [];
  if (dynamicallyQuantised) {
    warnings.push(
      'quantises its activations over the whole batch (DynamicQuantizeLinear): results depend a ' +
        'little on batch mates; ' +
        'use a float or statically quantised model where they must not',
    );
  }
  if (fixedBatch !== undefined) {
    const gain = fixedBatch === 1 ? ' and gains nothing' : ', the last one padded';
    warnings.push(
      `has a fixed batch of ${fixedBatch}: a batch runs in steps of ${fixedBatch}${gain}; export ` +
        'it with a dynamic batch axis',
    );
  }
  if (!hasRows(inputs) && inputs.some(({ shape }) => shape[0] === 1)) {
    warnings.push(
      'takes one row at a time, and no rows can be told apart in its output: each call is one ' +
        'run, which no other shares; ' +
        'export it with a dynamic batch axis',
    );
  }
  return warnings;
}
