import type { InferenceSession, Tensor } from 'onnxruntime-common';
import type { Fill } from '../../batch/resize.js';
import type { VariableAxis } from '../../batch/template.js';
import { InvalidServingError } from '../../errors.js';
import { propertyOf } from '../../format.js';
import {
  axisOfInput,
  axisOfOutput,
  dynamicAxes,
  type FileShape,
  type FoundAxis,
  isUnnamed,
  rowMarksOf,
} from './batch-axes.js';

/** The axes of an output of a model. */
export interface DeclaredOutput {
  /**
   * The axis that counts rows; `null` for none.
   *
   * @default read from the model
   */
  readonly batchAxis?: number | null;
  /**
   * The axis on which rows may differ in length, and share a batch all the same: shorter rows of an
   * input are padded when the batch runs, and each row of an output is cut back to the length of its
   * own input. All inputs with such an axis have the same length in a call.
   *
   * @default rows of different lengths share no batch
   */
  readonly variableAxis?: number;
}

/** The axes of an input of a model. */
export interface DeclaredInput extends DeclaredOutput {
  /**
   * The element that shorter rows are padded with, as the data of the tensor stores it.
   *
   * @default 0, or the empty string
   */
  readonly padWith?: Fill;
}

/** The axes of a model's inputs or outputs by name, instead of those in its file. */
export type DeclaredAxes = Readonly<Record<string, DeclaredInput>>;

/** The options of a definition for the inputs and outputs of its model. */
export interface DeclaredPorts {
  readonly inputs: DeclaredAxes;
  readonly outputs: DeclaredAxes;
  /** The outputs of the reply; all by default, without states. */
  readonly fetches?: readonly string[] | undefined;
  /** The states of sessions: for each input, the output that it gets from the run before. */
  readonly state?: Readonly<Record<string, string>> | undefined;
}

/** One input or output of a model. */
export interface ModelPort {
  readonly name: string;
  readonly type: Tensor.Type;
  /** A number is fixed; a string is the name of a dynamic axis, possibly empty. */
  readonly shape: readonly (number | string)[];
  /**
   * The axis of the rows. `null`: it has none, and is shared by the batch; in a model without any
   * batch axis it belongs to one call.
   */
  readonly batchAxis: number | null;
  /** The axis on which rows that share a batch may differ in length. */
  readonly variable?: VariableAxis | undefined;
}

/** The signature of the file: states are still among its inputs. */
export type FileSignature = Omit<ModelSignature, 'dynamicallyQuantised' | 'states' | 'mostRows'>;

/** A state of sessions: an input that gets an output of the run before. */
export interface StatePort {
  readonly input: ModelPort;
  readonly output: string;
}

/** The inputs and outputs of an ONNX file, and its properties that concern batches. */
export interface ModelSignature {
  /** Those that callers give: all but states. */
  readonly inputs: readonly ModelPort[];
  readonly outputs: readonly ModelPort[];
  /** The names of the outputs of the reply. */
  readonly fetches: readonly string[];
  /** The states of sessions; none for most models. */
  readonly states: readonly StatePort[];
  /** The number of rows of each run, if the file fixes it. */
  readonly fixedBatch?: number;
  /** The largest number of rows of a run, if the server of the model limits it. */
  readonly mostRows?: number;
  /** It quantises at run time over the whole batch: results depend on the other rows. */
  readonly dynamicallyQuantised: boolean;
}

type Metadata = readonly InferenceSession.ValueMetadata[];
type TensorMetadata = Pick<ModelPort, 'name' | 'type' | 'shape'>;

/**
 * The signature with the batch axes of the shapes in the file; declared axes take precedence.
 *
 * @throws InvalidServingError when the file leaves an axis open and none is declared
 */
export function signatureOf(
  session: Pick<InferenceSession, 'inputMetadata' | 'outputMetadata'>,
  declared: DeclaredPorts,
): FileSignature {
  const files = {
    inputs: tensorsOf('input', session.inputMetadata, declared.inputs),
    outputs: tensorsOf('output', session.outputMetadata, declared.outputs),
  };
  const fetches = fetchesOf(files.outputs, declared);
  const marks = rowMarksOf(
    files.inputs.map(({ shape }) => shape),
    files.inputs.map(({ name }) => declaredAxis(declared.inputs, name)),
  );
  const inputs = portsOf('input', files.inputs, declared.inputs, (shape) =>
    axisOfInput(shape, marks),
  );
  if (inputs.length === 0) {
    throw new InvalidServingError('The model has no inputs, so it cannot run the rows of a call');
  }
  if (!hasRows(inputs)) {
    checkContradiction(files.outputs, declared.outputs);
    return { inputs, outputs: files.outputs.map(withoutRows), fetches };
  }
  const outputAxes = { ...axesOfStates(inputs, declared), ...declared.outputs };
  const fixedBatch = fixedBatchOf(inputs);
  if (fixedBatch !== undefined) {
    return fixedSignature(inputs, files.outputs, fetches, outputAxes, fixedBatch);
  }
  const isDynamic = files.outputs.some(({ shape }) => dynamicAxes(shape).length > 0);
  const outputs = portsOf('output', files.outputs, outputAxes, (shape) =>
    axisOfOutput(shape, marks, isDynamic),
  );
  checkOutputs(inputs, outputs, outputAxes);
  return { inputs, outputs, fetches };
}

/** The outputs of several steps are joined, so each needs a known batch axis. */
function fixedSignature(
  inputs: readonly ModelPort[],
  files: readonly TensorMetadata[],
  fetches: readonly string[],
  declared: DeclaredAxes,
  fixedBatch: number,
): FileSignature {
  const outputs = files.map(({ name, type, shape }) => {
    const axis = declaredAxis(declared, name) ?? (shape[0] === fixedBatch ? 0 : null);
    return { name, type, shape, batchAxis: axis };
  });
  const uncut = outputs.find(({ name, batchAxis }) => batchAxis === null && fetches.includes(name));
  if (!uncut) {
    return { inputs, outputs, fetches, fixedBatch };
  }
  if (fixedBatch === 1) {
    // Each call is a run of its own, since an output has no axis to tell the rows of calls apart.
    return { inputs: inputs.map(withoutRows), outputs: outputs.map(withoutRows), fetches };
  }
  const name = propertyOf(uncut.name);
  throw new InvalidServingError(
    `The model takes ${fixedBatch} rows at a time, and no axis of the output ` +
      `${describePort(uncut)} is known to count them. ` +
      `Declare it: outputs: { ${name}: { batchAxis: ... } }. If none does, leave the output ` +
      'out with fetches, or declare batchAxis: null for all inputs: then each call is one run',
  );
}

/** False for a model without a batch axis in its inputs: each call is a run of its own. */
export function hasRows(inputs: readonly ModelPort[]): boolean {
  return inputs.some(({ batchAxis }) => batchAxis !== null);
}

function withoutRows({ name, type, shape }: TensorMetadata): ModelPort {
  return { name, type, shape, batchAxis: null };
}

/** Without a batch axis in an input, no output can have one. */
function checkContradiction(outputs: readonly TensorMetadata[], declared: DeclaredAxes): void {
  const port = outputs.find(({ name }) => typeof declaredAxis(declared, name) === 'number');
  if (port) {
    throw new InvalidServingError(
      `The output ${describePort(port)} is declared with rows on axis ` +
        `${declaredAxis(declared, port.name)}, and no input of the model has a batch axis; ` +
        'declare that of an input too',
    );
  }
}

/** The number of rows of each run, if the file fixes it. */
function fixedBatchOf(inputs: readonly ModelPort[]): number | undefined {
  const sizes = new Set(
    inputs.flatMap(({ shape, batchAxis }) => (batchAxis === null ? [] : [shape[batchAxis]!])),
  );
  const size = [...sizes].find((dim) => typeof dim === 'number');
  if (size !== undefined && sizes.size > 1) {
    const axes = inputs.map((port) => `${describePort(port)} on axis ${port.batchAxis}`);
    throw new InvalidServingError(
      `The inputs of the model disagree on the number of rows: ${axes.join(', ')}; ` +
        'declare their axes: inputs: { name: { batchAxis: ... } }',
    );
  }
  return size;
}

/**
 * Refuses an output with several unnamed axes if the rows of an input are not on axis 0: a wrong
 * guess would mix rows up.
 */
function checkOutputs(
  inputs: readonly ModelPort[],
  outputs: readonly ModelPort[],
  declared: DeclaredAxes,
): void {
  const unclear = outputs.find(
    ({ name, shape }) =>
      declaredAxis(declared, name) === undefined &&
      isUnnamed(shape[0]) &&
      shape.filter(isUnnamed).length > 1,
  );
  const elsewhere = inputs.find(({ batchAxis }) => batchAxis !== null && batchAxis > 0);
  if (unclear && elsewhere) {
    throw new InvalidServingError(
      `The rows of the output ${describePort(unclear)} could lie on any axis, as those of the ` +
        `input ${describePort(elsewhere)} lie on axis ${elsewhere.batchAxis}; ` +
        `declare it: outputs: { ${propertyOf(unclear.name)}: { batchAxis: ... } }`,
    );
  }
}

function fetchesOf(
  outputs: readonly TensorMetadata[],
  { fetches: declared, state = {} }: DeclaredPorts,
): readonly string[] {
  const names = outputs.map(({ name }) => name);
  const unknown = declared?.find((name) => !names.includes(name));
  if (unknown !== undefined) {
    throw new InvalidServingError(
      `The model has no output "${unknown}" to fetch; it has ${names.join(', ')}`,
    );
  }
  return declared ?? names.filter((name) => !Object.values(state).includes(name));
}

/** The batch axes of outputs that are states: those of their inputs. */
function axesOfStates(inputs: readonly ModelPort[], { state = {} }: DeclaredPorts): DeclaredAxes {
  const axes = inputs.map(({ name, batchAxis }) => [state[name] ?? '', { batchAxis }] as const);
  return Object.fromEntries(axes.filter(([output]) => output !== ''));
}

/** `name: type[shape]`, for messages. */
export function describePort({
  name,
  type,
  shape,
}: Pick<ModelPort, 'name' | 'shape'> & { readonly type: string }): string {
  const label = name === '' ? '' : `${name}: `;
  return `${label}${type}[${shape.map((dim) => (dim === '' ? '?' : dim)).join(', ')}]`;
}

/** The batch axes by name; a single one also without a name, for a bare tensor. */
export function axesOf(ports: readonly ModelPort[]): Record<string, number | null> {
  const axes = Object.fromEntries(ports.map(({ name, batchAxis }) => [name, batchAxis]));
  return ports.length === 1 ? { ...axes, '': ports[0]!.batchAxis } : axes;
}

/** The inputs or outputs of the file. */
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
      open.map(({ name }) => `${propertyOf(name)}: { batchAxis: ${axis} }`).join(', ');
    throw new InvalidServingError(
      `The model's file does not define which axis of the ${kind} ` +
        `${open.map(describePort).join(' and of ')} counts rows. ` +
        `Declare it: ${kind}s: { ${entries('0')} } if axis 0 does, the number of another axis if ` +
        `that does, or ${kind}s: { ${entries('null')} } if none does` +
        (kind === 'input' ? '; a model without rows in any input runs one call at a time' : ''),
    );
  }
  return found;
}

function declaredAxis(declared: DeclaredAxes, name: string): number | null | undefined {
  return Object.hasOwn(declared, name) ? declared[name]!.batchAxis : undefined;
}

/** Warnings for the user of a model; each continues "The model ...". */
export function warningsOf({
  inputs = [],
  fixedBatch,
  dynamicallyQuantised,
}: Partial<ModelSignature> = {}): string[] {
  const warnings: string[] = [];
  if (dynamicallyQuantised) {
    warnings.push(
      'quantises its activations over the whole batch (DynamicQuantizeLinear): results depend a ' +
        'little on batch mates; use a float or statically quantised model where they must not',
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
        'run, which no other shares; export it with a dynamic batch axis',
    );
  }
  return warnings;
}
