import type { InferenceSession, Tensor } from 'onnxruntime-common';
import { InvalidServingError } from '../errors.js';

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
  /** The axis of the rows; `null`: it has none and is shared by the batch. */
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

/** Reads the batch axes off the shapes in the file; what is declared wins. */
export function signatureOf(
  session: Pick<InferenceSession, 'inputMetadata' | 'outputMetadata'>,
  declared: DeclaredPorts,
): Omit<ModelSignature, 'dynamicallyQuantised'> {
  const leading = leadingNames(session.inputMetadata);
  const inputs = portsOf('input', session.inputMetadata, declared.inputs, leading);
  const outputs = portsOf('output', session.outputMetadata, declared.outputs, leading);
  checkOutputs(inputs, outputs, declared.outputs);
  const fetches = fetchesOf(outputs, declared.fetches);
  const sizes = new Set(inputs.flatMap(({ shape, batchAxis }) => (batchAxis === null ? [] : [shape[batchAxis]!])));
  const size = [...sizes].find((dim) => typeof dim === 'number');
  if (sizes.size === 0) {
    throw new InvalidServingError(`No input of the model carries rows: ${inputs.map(describePort).join(', ')}`);
  }
  if (size !== undefined && sizes.size > 1) {
    const axes = inputs.map((port) => `${describePort(port)} on axis ${port.batchAxis}`);
    throw new InvalidServingError(
      `The inputs of the model disagree on the number of rows: ${axes.join(', ')}; say where they lie: inputs: { name: { batchAxis: ... } }`,
    );
  }
  return size === undefined ? { inputs, outputs, fetches } : { inputs, outputs, fetches, fixedBatch: size };
}

/** Where rows lie on another axis in an input, several axes without names could each be that of an output; a guess could mix rows up. */
function checkOutputs(inputs: readonly ModelPort[], outputs: readonly ModelPort[], declared: DeclaredAxes): void {
  const unclear = outputs.find(
    ({ name, shape }) => !Object.hasOwn(declared, name) && isUnnamed(shape[0]) && shape.filter(isUnnamed).length > 1,
  );
  const elsewhere = inputs.find(({ batchAxis }) => batchAxis !== null && batchAxis > 0);
  if (unclear && elsewhere) {
    throw new InvalidServingError(
      `The rows of the output ${describePort(unclear)} could lie on any axis, as those of the input ${describePort(elsewhere)} lie on axis ${elsewhere.batchAxis}; ` +
        `say where: outputs: { ${unclear.name}: { batchAxis: ... } }`,
    );
  }
}

function isUnnamed(dim: number | string | undefined): boolean {
  return dim === '' || dim === '?';
}

function fetchesOf(outputs: readonly ModelPort[], declared?: readonly string[]): readonly string[] {
  const names = outputs.map(({ name }) => name);
  const unknown = declared?.find((name) => !names.includes(name));
  if (unknown !== undefined) {
    throw new InvalidServingError(`The model has no output "${unknown}" to fetch; it has ${names.join(', ')}`);
  }
  return declared ?? names;
}

/** `name: type[shape]`, as messages show it. */
export function describePort({ name, type, shape }: Pick<ModelPort, 'name' | 'type' | 'shape'>): string {
  const label = name === '' ? '' : `${name}: `;
  return `${label}${type}[${shape.map((dim) => (dim === '' ? '?' : dim)).join(', ')}]`;
}

/** The batch axes by name, as batches want them; a lone one also without name, for a bare tensor. */
export function axesOf(ports: readonly ModelPort[]): Record<string, number | null> {
  const axes = Object.fromEntries(ports.map(({ name, batchAxis }) => [name, batchAxis]));
  return ports.length === 1 ? { ...axes, '': ports[0]!.batchAxis } : axes;
}

/** The names of dynamic axes that stand in front of an input; unnamed ones tell nothing. */
function leadingNames(metadata: Metadata): ReadonlySet<unknown> {
  const names = metadata.map((port) => (port.isTensor ? port.shape[0] : undefined));
  return new Set(names.filter((name) => typeof name === 'string' && name !== '' && name !== '?'));
}

function portsOf(kind: string, metadata: Metadata, declared: DeclaredAxes, leading: ReadonlySet<unknown>): ModelPort[] {
  const names = metadata.map(({ name }) => name);
  const unknown = Object.keys(declared).find((name) => !names.includes(name));
  if (unknown !== undefined) {
    throw new InvalidServingError(`The model has no ${kind} "${unknown}"; it has ${names.join(', ')}`);
  }
  const dynamic = metadata.some((port) => port.isTensor && port.shape.some((dim) => typeof dim === 'string'));
  return metadata.map((port) => {
    if (!port.isTensor) {
      throw new InvalidServingError(`The ${kind} "${port.name}" is no tensor; sequences and maps cannot be batched`);
    }
    const { name, type, shape } = port;
    const axis = declared[name];
    const batchAxis = axis ? axis.batchAxis : defaultAxis(shape, dynamic, leading);
    if (batchAxis !== null && (!Number.isInteger(batchAxis) || batchAxis < 0 || batchAxis >= shape.length)) {
      throw new InvalidServingError(
        `The ${kind} ${describePort(port)} has no axis ${batchAxis}; batchAxis can be 0 to ${shape.length - 1}, or null for none`,
      );
    }
    return { name, type, shape, batchAxis };
  });
}

/**
 * The first axis with a name that stands in front of an input, as in recurrent states of shape [layers, batch, units]; else
 * the first dynamic axis, unless axis 0 is fixed to 1. A scalar has none. A shape that is all fixed counts rows on axis 0 in a
 * fixed model, and is shared in a model that is dynamic elsewhere.
 */
function defaultAxis(shape: readonly (number | string)[], dynamicModel: boolean, leading: ReadonlySet<unknown>): number | null {
  const named = shape.findIndex((dim) => leading.has(dim));
  if (named >= 0) {
    return named;
  }
  const first = shape.findIndex((dim) => typeof dim === 'string');
  if (first >= 0) {
    return shape[0] === 1 ? 0 : first;
  }
  return shape.length === 0 || dynamicModel ? null : 0;
}

/** What the users of a model must know of it; each goes on from "The model ...". */
export function warningsOf({ fixedBatch, dynamicallyQuantised }: Partial<ModelSignature> = {}): string[] {
  const warnings: string[] = [];
  if (dynamicallyQuantised) {
    warnings.push(
      'quantises its activations over the whole batch (DynamicQuantizeLinear): results depend a little on batch mates; ' +
        'use a float or statically quantised model where they must not',
    );
  }
  if (fixedBatch !== undefined) {
    warnings.push(
      `has a fixed batch of ${fixedBatch}: a batch runs in steps of ${fixedBatch} and gains nothing; export it with a dynamic batch axis`,
    );
  }
  return warnings;
}
