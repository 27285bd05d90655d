import type { Tensor } from 'onnxruntime-common';
import { type Fill, filledTensor, storageClasses } from '../batch/tensor.js';
import type { ModelPort } from '../partitions/model/model-signature.js';
import { isRecord, type Rule } from './option-rules.js';

/** A tensor of a serving's rows. */
export interface TensorTemplate {
  /** Its elements' type. */
  readonly type: Tensor.Type;
  /**
   * The rows lie on the first axis. Of the others, a number is fixed, `null` is any size, and axes
   * of the same name have the same size within a call.
   */
  readonly shape: readonly [rows: null, ...inner: (number | string | null)[]];
  /**
   * The axis where rows may differ in length and still share a batch: shorter rows are padded when
   * it runs. All tensors with such an axis have the same length in a call.
   */
  readonly variableAxis?: number;
  /** Pads shorter rows; 0, or the empty string, by default. */
  readonly padWith?: Fill;
}

/** An output whose rows are cut back to their own inputs' length. */
export interface OutputAxis {
  /** The axis where it is cut. */
  readonly variableAxis: number;
}

/** The tensors that a batch function returns, by path; a bare tensor's path is empty. */
export type OutputAxes = Readonly<Record<string, OutputAxis>>;

/** A row's tensor, or a container's tensors by their path, such as `mask` or `state.0`. */
export type RowTemplate = TensorTemplate | Readonly<Record<string, TensorTemplate>>;

/** A single tensor has no name. */
export function portsOfTemplate(template: RowTemplate): readonly ModelPort[] {
  return isOne(template)
    ? [portOf('', template)]
    : Object.entries(template).map(([name, tensor]) => portOf(name, tensor));
}

export const rowTemplate: Rule = {
  check: (value) =>
    isTensorTemplate(value) ||
    (isRecord(value) && isNotEmpty(value) && Object.values(value).every(isTensorTemplate)),
  allowed:
    '{ type, shape }, or an object of these by name; ' +
    'a shape begins with null, the axis of the rows, ' +
    'and goes on with whole numbers, names, or null for any size; ' +
    'variableAxis is one of these that is no number, and padWith an element to pad it with',
};

export const outputAxes: Rule = {
  check: (value) =>
    isRecord(value) &&
    Object.values(value).every(
      (port) =>
        isRecord(port) &&
        Object.keys(port).join() === 'variableAxis' &&
        Number.isInteger(port['variableAxis']) &&
        (port['variableAxis'] as number) > 0,
    ),
  allowed: 'an object of { variableAxis: number } by path, with whole numbers from 1 on',
};

function isOne(template: RowTemplate): template is TensorTemplate {
  return typeof template.type === 'string';
}

function portOf(
  name: string,
  { type, shape, variableAxis: axis, padWith }: TensorTemplate,
): ModelPort {
  const port = { name, type, shape: shape.map((dim) => dim ?? ''), batchAxis: 0 };
  return axis === undefined ? port : { ...port, variable: { axis, padWith } };
}

function isTensorTemplate(value: unknown): boolean {
  if (!isRecord(value) || Object.keys(value).some((name) => !ofTensors.has(name))) {
    return false;
  }
  const { type, shape, variableAxis, padWith } = value;
  return (
    isVariable(shape, variableAxis) &&
    (padWith === undefined || (variableAxis !== undefined && isElement(type, padWith))) &&
    (type === 'string' || (typeof type === 'string' && storageClasses.has(type))) &&
    Array.isArray(shape) &&
    shape[0] === null &&
    shape.every(
      (dim) => dim === null || typeof dim === 'string' || (Number.isSafeInteger(dim) && dim >= 0),
    )
  );
}

const ofTensors = new Set(['type', 'shape', 'variableAxis', 'padWith']);

/** True if the shape has such an axis, with an open length, behind the rows' axis. */
function isVariable(shape: unknown, axis: unknown): boolean {
  return (
    axis === undefined ||
    (Number.isInteger(axis) &&
      (axis as number) > 0 &&
      Array.isArray(shape) &&
      (axis as number) < shape.length &&
      typeof shape[axis as number] !== 'number')
  );
}

function isElement(type: unknown, padWith: unknown): boolean {
  try {
    filledTensor(type as Tensor.Type, [1], padWith as Fill);
    return true;
  } catch {
    return false;
  }
}

function isNotEmpty(value: object): boolean {
  return Object.keys(value).length > 0;
}
