import type { Tensor } from 'onnxruntime-common';
import { storageClasses } from '../batch/tensor.js';
import type { ModelPort } from '../partitions/onnx/model-signature.js';
import { isRecord, type Rule } from './option-rules.js';

/** A tensor of a serving's rows. */
export interface TensorTemplate {
  /** The type of its elements. */
  readonly type: Tensor.Type;
  /**
   * Its shape. The first axis is that of the rows. Of the others, a number is fixed, `null` may
   * have any size, and axes of the same name have the same size within a call.
   */
  readonly shape: readonly [rows: null, ...inner: (number | string | null)[]];
}

/**
 * The tensor of a row, or the tensors of a container by their path, such as `mask` or `state.0`.
 */
export type RowTemplate = TensorTemplate | Readonly<Record<string, TensorTemplate>>;

/** The tensors of a template as ports. A single tensor has no name. */
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
    'and goes on with whole numbers, names, or null for any size',
};

function isOne(template: RowTemplate): template is TensorTemplate {
  return typeof template.type === 'string';
}

function portOf(name: string, { type, shape }: TensorTemplate): ModelPort {
  return { name, type, shape: shape.map((dim) => dim ?? ''), batchAxis: 0 };
}

function isTensorTemplate(value: unknown): boolean {
  if (!isRecord(value) || Object.keys(value).some((name) => name !== 'type' && name !== 'shape')) {
    return false;
  }
  const { type, shape } = value;
  return (
    (type === 'string' || (typeof type === 'string' && storageClasses.has(type))) &&
    Array.isArray(shape) &&
    shape[0] === null &&
    shape.every(
      (dim) => dim === null || typeof dim === 'string' || (Number.isSafeInteger(dim) && dim >= 0),
    )
  );
}

function isNotEmpty(value: object): boolean {
  return Object.keys(value).length > 0;
}
