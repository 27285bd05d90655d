import type { Tensor } from 'onnxruntime-common';
import { InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import { typeOfDatatype } from '../json/json-tensor.js';

/** An input or output of a model, as clients see it. */
export interface Port {
  readonly name: string;
  readonly type: Tensor.Type;
  /** The size of each axis, that of the rows included; -1 where it may vary. */
  readonly shape: readonly number[];
  /** The axis that counts rows; `null` for a tensor that the rows of a request share. */
  readonly batchAxis: number | null;
  /** The rows are the tensor itself, and no object of it by name. */
  readonly isBare?: boolean;
}

/** `FP32[3, 224]`, or `BYTES` for one element per row. */
const DECLARED = /^([A-Z0-9]+)(?:\[((?:-1|\d+)(?:, *(?:-1|\d+))*)\])?$/;

/** @throws InvalidServingError for a text that declares no tensor */
export function parsePort(name: string, declared: unknown, owner: string): Port {
  const match = typeof declared === 'string' ? DECLARED.exec(declared) : null;
  const type = typeOfDatatype(match?.[1]);
  if (!match || !type) {
    throw new InvalidServingError(
      `${owner}: "${name}" is ${formatValue(declared)}; give a datatype of the protocol and the ` +
        "shape of a row, such as 'FP32[3, 224]', or 'BYTES' for one element per row",
    );
  }
  const row = match[2]?.split(',').map(Number) ?? [];
  return { name, type, shape: [-1, ...row], batchAxis: 0 };
}

/** Whether the tensor has one element for each row. */
export function isColumn({ shape }: Port): boolean {
  return shape.length === 1;
}
