import type { InferenceSession, Tensor } from 'onnxruntime-common';
import type { Fill } from '../../batch/tensor.js';
import type { VariableAxis } from '../../batch/template.js';
import { InvalidServingError } from '../../errors.js';
import { countOfRows, propertyOf } from '../../format.js';

/** The axes of a model output. */
interface DeclaredOutput {
  /**
   * The axis that counts rows; `null` if there is none.
   *
   * @default read from the model
   */
  readonly batchAxis?: number | null;
  /**
   * The axis where rows of one batch may differ in length. Shorter input rows are padded when
   * the batch runs, and each output row is cut back to its own input's length. A call's inputs with
   * such an axis all have the same length.
   *
   * @default rows of different lengths share no batch
   */
  readonly variableAxis?: number;
}

/** The axes of a model input. */
export interface DeclaredInput extends DeclaredOutput {
  /**
   * The element that pads shorter rows, as the tensor's data stores it.
   *
   * @default 0, or the empty string
   */
  readonly padWith?: Fill;
}

/**
 * Axes by input or output name, instead of the file's. A `variableAxis` named `*` is for all other
 * inputs where the axis is dynamic, and all other outputs where it has the name of an input's
 * variable axis.
 */
export type DeclaredAxes = Readonly<Record<string, DeclaredInput>>;

export interface DeclaredPorts {
  readonly inputs: DeclaredAxes;
  readonly outputs: DeclaredAxes;
  /** Defaults to all outputs except states. */
  readonly fetches?: readonly string[] | undefined;
  /** Each input's output in the previous run. */
  readonly state?: Readonly<Record<string, string>> | undefined;
}

export interface ModelPort {
  readonly name: string;
  readonly type: Tensor.Type;
  /** A number is fixed; a string is a dynamic axis's name, possibly empty. */
  readonly shape: readonly (number | string)[];
  /** `null`: the batch shares the value; in a model without batch axes, it belongs to one call. */
  readonly batchAxis: number | null;
  readonly variable?: VariableAxis | undefined;
  /** Nothing in the file connects the output's batch axis with the inputs' rows. */
  readonly isGuessed?: boolean;
}

/** Its inputs include states. */
export type FileSignature = Omit<ModelSignature, 'dynamicallyQuantised' | 'states' | 'mostRows'>;

interface StatePort {
  readonly input: ModelPort;
  readonly output: string;
}

export interface ModelSignature {
  /** Excludes states. */
  readonly inputs: readonly ModelPort[];
  readonly outputs: readonly ModelPort[];
  readonly fetches: readonly string[];
  readonly states: readonly StatePort[];
  /** Rows per run, if fixed. */
  readonly fixedBatch?: number;
  /** Limit of the model's server. */
  readonly mostRows?: number;
  /** Quantises at run time over the whole batch: results depend on other rows. */
  readonly dynamicallyQuantised: boolean;
}

/** A tensor of a serving's rows or results. */
export interface TensorSignature {
  /** Name in the model, or path in a container; empty for a tensor without a name. */
  readonly name: string;
  /** Its elements' type. */
  readonly type: Tensor.Type;
  /**
   * Elements along each axis: a number is fixed, a text names a size that may vary, `null` is any
   * size.
   */
  readonly shape: readonly (number | string | null)[];
  /** The axis that counts rows; `null` if a batch's rows share the tensor. */
  readonly batchAxis: number | null;
}

/**
 * Tensors that a serving's runner takes and returns: what `preprocess` gives and `postprocess`
 * gets, or, without them, what callers pass and receive.
 */
export interface ServingSignature {
  /** All inputs, in the model's or template's order. */
  readonly inputs: readonly TensorSignature[];
  /** The reply's outputs; `undefined` if only the inputs are declared. */
  readonly outputs: readonly TensorSignature[] | undefined;
}

type Metadata = readonly InferenceSession.ValueMetadata[];
type TensorMetadata = Pick<ModelPort, 'name' | 'type' | 'shape'>;

/**
 * Reads batch axes from the file's shapes; declared axes take precedence.
 *
 * @throws InvalidServingError for an undeclared open axis
 */
export function signatureOf(
  file: Pick<InferenceSession, 'inputMetadata' | 'outputMetadata'>,
  declared: DeclaredPorts,
): FileSignature {
  const files = {
    inputs: tensorsOf('input', file.inputMetadata, declared.inputs),
    outputs: tensorsOf('output', usedOutputs(file.outputMetadata, declared), declared.outputs),
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
  return { inputs, outputs: outputs.map(guessesMarked(marks, outputAxes)), fetches };
}

/** Marks outputs whose batch axis is neither declared nor named as the inputs' rows. */
function guessesMarked({ names }: RowMarks, declared: DeclaredAxes) {
  return (port: ModelPort): ModelPort => {
    const { name, shape, batchAxis } = port;
    const isKnown =
      batchAxis === null ||
      declaredAxis(declared, name) !== undefined ||
      names.has(String(shape[batchAxis]));
    return isKnown ? port : { ...port, isGuessed: true };
  };
}

/** Steps' outputs are joined, so each fetched one needs a known batch axis. */
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
    // No output axis tells calls' rows apart, so calls run alone.
    return { inputs: inputs.map(withoutRows), outputs: outputs.map(withoutRows), fetches };
  }
  const name = propertyOf(uncut.name);
  throw new InvalidServingError(
    `The model takes ${countOfRows(fixedBatch)} at a time, and no axis of the output ` +
      `${describePort(uncut)} is known to count them. ` +
      `Declare it: outputs: { ${name}: { batchAxis: ... } }. If none does, leave the output ` +
      'out with fetches, or declare batchAxis: null for all inputs: then each call is one run',
  );
}

/** False if calls run alone. */
export function hasRows(inputs: readonly ModelPort[]): boolean {
  return inputs.some(({ batchAxis }) => batchAxis !== null);
}

function withoutRows({ name, type, shape }: TensorMetadata): ModelPort {
  return { name, type, shape, batchAxis: null };
}

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
 * Refuses an output with several unnamed axes if an input's rows aren't on axis 0: a wrong guess
 * mixes up rows.
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

/** States have their inputs' batch axes. */
function axesOfStates(inputs: readonly ModelPort[], { state = {} }: DeclaredPorts): DeclaredAxes {
  const axes = inputs.map(({ name, batchAxis }) => [state[name] ?? '', { batchAxis }] as const);
  return Object.fromEntries(axes.filter(([output]) => output !== ''));
}

export function describePort({
  name,
  type,
  shape,
}: Pick<ModelPort, 'name' | 'shape'> & { readonly type: string }): string {
  const label = name === '' ? '' : `${name}: `;
  return `${label}${type}[${shape.map((dim) => (dim === '' ? '?' : dim)).join(', ')}]`;
}

/** A single port's axis is also under '', for a bare tensor. */
export function axesOf(ports: readonly ModelPort[]): Record<string, number | null> {
  const axes = Object.fromEntries(ports.map(({ name, batchAxis }) => [name, batchAxis]));
  return ports.length === 1 ? { ...axes, '': ports[0]!.batchAxis } : axes;
}

/** Omits what onnxruntime-node can't return, unless it is fetched. */
function usedOutputs(outputs: Metadata, { fetches, state = {} }: DeclaredPorts): Metadata {
  const used = fetches && [...fetches, ...Object.values(state)];
  return outputs.filter((port) => !obstacleTo(port) || !used || used.includes(port.name));
}

/** Why no run can take or return the value. */
function obstacleTo(port: Metadata[number]): string | undefined {
  if (!port.isTensor) {
    return 'is no tensor; sequences and maps cannot be batched';
  }
  // In a thread it aborts the process.
  return port.type.endsWith('int4')
    ? `has elements of ${port.type}, which onnxruntime-node cannot pass; cast them in the model`
    : undefined;
}

function tensorsOf(kind: string, metadata: Metadata, declared: DeclaredAxes): TensorMetadata[] {
  const names = metadata.map(({ name }) => name);
  const unknown = Object.keys(declared).find((name) => name !== '*' && !names.includes(name));
  if (unknown !== undefined) {
    throw new InvalidServingError(
      `The model has no ${kind} "${unknown}"; it has ${names.join(', ')}`,
    );
  }
  return metadata.map((port) => {
    const obstacle = obstacleTo(port);
    if (!port.isTensor || obstacle !== undefined) {
      throw new InvalidServingError(
        `The ${kind} "${port.name}" ${obstacle}` +
          (kind === 'output' ? '. Name the outputs to return: fetches: [...]' : ''),
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

/** Each continues "The model ...". */
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

type FileShape = readonly (number | string)[];

/** `null`: no axis counts rows. `open`: the file leaves it undecided. */
type FoundAxis = number | null | 'open';

interface RowMarks {
  /** Dynamic axes that count rows; several if the inputs disagree. */
  readonly names: ReadonlySet<string>;
  /** An axis that counts rows is dynamic. */
  readonly isLed: boolean;
  readonly isDynamic: boolean;
}

/** @param declared each input's axis that counts its rows; by default the first */
export function rowMarksOf(
  shapes: readonly FileShape[],
  declared: readonly (number | null | undefined)[],
): RowMarks {
  const marks = shapes.map((shape, i) =>
    declared[i] === null ? undefined : shape[declared[i] ?? 0],
  );
  const names = marks.filter((dim) => typeof dim === 'string');
  return {
    names: new Set(names.filter((name) => !isUnnamed(name))),
    isLed: names.length > 0,
    isDynamic: shapes.some((shape) => dynamicAxes(shape).length > 0),
  };
}

/**
 * Scalars have no batch axis, nor do fixed shapes in a model with dynamic axes elsewhere. A first
 * axis of length 1 counts one row: such a call runs alone, whatever it means.
 */
export function axisOfInput(shape: FileShape, { names, isLed, isDynamic }: RowMarks): FoundAxis {
  if (shape.length === 0) {
    return null;
  }
  const named = axesNamed(shape, names);
  if (named.length > 0) {
    return named.length === 1 && names.size === 1 ? named[0]! : 'open';
  }
  if (isDynamic && dynamicAxes(shape).length === 0) {
    return null;
  }
  if (typeof shape[0] === 'string' || shape[0] === 1) {
    return 0;
  }
  return isLed && names.size === 0 ? loneUnnamedAxis(shape) : 'open';
}

/**
 * Each run checks the axis's length.
 *
 * @param isDynamic true if any output has a dynamic axis; otherwise the file may state one row for
 * any number
 */
function axisOfOutput(shape: FileShape, { names }: RowMarks, isDynamic: boolean): FoundAxis {
  if (shape.length === 0) {
    return null;
  }
  const named = axesNamed(shape, names);
  if (named.length > 0) {
    return named.length === 1 ? named[0]! : 'open';
  }
  if (dynamicAxes(shape).length === 0) {
    return isDynamic ? null : 0;
  }
  return typeof shape[0] === 'string' || shape[0] === 1 ? 0 : loneUnnamedAxis(shape);
}

export function isUnnamed(dim: number | string | undefined): boolean {
  return dim === '' || dim === '?';
}

export function dynamicAxes(shape: FileShape): number[] {
  return shape.flatMap((dim, axis) => (typeof dim === 'string' ? [axis] : []));
}

function axesNamed(shape: FileShape, names: ReadonlySet<unknown>): number[] {
  return shape.flatMap((dim, axis) => (names.has(dim) ? [axis] : []));
}

/** Finds it in recurrent states of shape `[2, ?, 128]`. */
function loneUnnamedAxis(shape: FileShape): FoundAxis {
  const [axis, ...others] = dynamicAxes(shape);
  return axis !== undefined && others.length === 0 && isUnnamed(shape[axis]) ? axis : 'open';
}
