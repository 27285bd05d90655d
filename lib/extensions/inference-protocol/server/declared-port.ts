import type { Tensor } from 'onnxruntime-common';
import { InvalidServingError } from '../../../index.js';
import { formatValue } from '../../../internal.js';
import { typeOfDatatype } from '../../../encoding/json-tensor.js';

/** A model's input or output, as clients see it. */
export interface Port {
  readonly name: string;
  readonly type: Tensor.Type;
  /** Includes the row axis; -1 for any size. */
  readonly shape: readonly number[];
  /** `null` for a tensor that a request's rows share. */
  readonly batchAxis: number | null;
  /** True unless the rows are an object of named tensors. */
  readonly isBare?: boolean;
}

const DECLARED = /^([A-Z0-9]+)(?:\[((?:-1|\d+)(?:, *(?:-1|\d+))*)\])?$/;

/** @throws InvalidServingError for invalid text */
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

/** True for one element per row. */
export function isColumn({ shape }: Port): boolean {
  return shape.length === 1;
}
