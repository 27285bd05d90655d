import { Batch } from '../batch/batch.js';
import { isContainer, leavesOf } from '../batch/container.js';
import { axisOf, type BatchAxes } from '../batch/template.js';
import { InvalidBatchError, InvalidOutputError, isError } from '../errors.js';
import { isRowList } from '../partitions/worker/transfer.js';
import { deepCopy } from '../batch/deep-copy.js';
import type { BatchOutput } from '../partitions/batch-function.js';

/**
 * The output of a batch as rows that can be shared out, the results of padding cut off.
 *
 * @throws InvalidOutputError when it has not one result per row
 */
export function outputRows(output: unknown, input: Batch, axes: BatchAxes = {}): Batch {
  const expected = input.size + input.padding;
  if (isRowList(output, input.isPlain)) {
    if (output.length !== expected) {
      throw new InvalidOutputError(
        `A batch of ${expected} rows needs ${expected} results; the batch function returned ` +
          `${output.length}`,
      );
    }
    return Batch.ofValues(output).slice(0, input.size);
  }
  if (!isContainer(output)) {
    const got = output === null ? 'null' : typeof output;
    throw new InvalidOutputError(
      `A batch of ${expected} rows needs a list of ${expected} results, or tensors with ` +
        `${expected} rows; the batch function returned ${got}`,
    );
  }
  for (const { path, tensor } of leavesOf(output)) {
    const axis = axisOf(path, axes);
    if (axis !== null && tensor.dims[axis] !== expected) {
      throw new InvalidOutputError(
        `Output ${path === '' ? '' : `"${path}" `}has the shape [${tensor.dims.join(', ')}]; ` +
          `axis ${axis} must have the ${expected} rows of the batch` +
          hintOf(path, axes),
      );
    }
  }
  const rows = asOutput(() => Batch.ofOutput(output, axes));
  if (rows.size !== expected) {
    throw new InvalidOutputError(
      `Unusable output: no leaf of it carries the ${expected} rows of the batch`,
    );
  }
  return rows.slice(0, input.size);
}

/** Only a model has the option. */
function hintOf(path: string, axes: BatchAxes): string {
  return path !== '' && Object.hasOwn(axes, path)
    ? `. Where its rows lie on another axis, say so: outputs: { ${path}: { batchAxis: ... } }`
    : '';
}

/** What makes a batch invalid is the caller's fault, unless it is an output that is to make one. */
export function asOutput(make: () => Batch): Batch {
  try {
    return make();
  } catch (cause) {
    throw cause instanceof InvalidBatchError
      ? new InvalidOutputError(`Unusable output: ${cause.message}`, { cause })
      : cause;
  }
}

/**
 * The rows in storage of their own, or lent to who copies them at once elsewhere; throws the error
 * that a batch function put in place of a row's result.
 */
export function releaseOutput(rows: Batch, isLent = false): BatchOutput {
  const output = isLent ? rows.view() : rows.release();
  const error = Array.isArray(output) ? output.find(isError) : undefined;
  if (error) {
    throw error;
  }
  return output;
}

/** As {@link releaseOutput}, for one of several callers: no other sees what he does with it. */
export function copyOutput(rows: Batch): BatchOutput {
  if (!rows.isPlain) {
    return rows.consume();
  }
  const output = releaseOutput(rows);
  return Array.isArray(output) ? output.map((row) => deepCopy(row)) : output;
}
