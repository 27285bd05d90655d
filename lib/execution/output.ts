import { Batch } from '../batch/batch.js';
import { asOutput, rowsIn } from '../batch/container.js';
import { axisOf, type BatchAxes } from '../batch/template.js';
import { InvalidOutputError, isError } from '../errors.js';
import { deepCopy } from '../batch/deep-copy.js';
import type { BatchOutput } from '../partitions/batch-function.js';

/**
 * The output of a batch as rows, without the results of padding.
 *
 * @throws InvalidOutputError for an output without one result per row
 */
export function outputRows(output: unknown, input: Batch, axes: BatchAxes = {}): Batch {
  const expected = input.size + input.padding;
  const results = asOutput(() => rowsIn(output, input.isPlain));
  if (!results) {
    const got = output === null ? 'null' : typeof output;
    throw new InvalidOutputError(
      `A batch of ${expected} rows needs a list of ${expected} results, or tensors with ` +
        `${expected} rows; the batch function returned ${got}`,
    );
  }
  if (Array.isArray(results)) {
    if (results.length !== expected) {
      throw new InvalidOutputError(
        `A batch of ${expected} rows needs ${expected} results; the batch function returned ` +
          `${results.length}`,
      );
    }
    return Batch.ofValues(results).slice(0, input.size);
  }
  for (const { path, tensor } of results.leaves) {
    const axis = axisOf(path, axes);
    if (axis !== null && tensor.dims[axis] !== expected) {
      throw new InvalidOutputError(
        `Output ${path === '' ? '' : `"${path}" `}has the shape [${tensor.dims.join(', ')}]; ` +
          `axis ${axis} must have the ${expected} rows of the batch` +
          hintOf(path, axes),
      );
    }
  }
  const rows = asOutput(() => Batch.ofOutput(results, axes));
  if (rows.size !== expected) {
    throw new InvalidOutputError(
      `Unusable output: no leaf of it carries the ${expected} rows of the batch`,
    );
  }
  return rows.slice(0, input.size);
}

/** Only models have the option. */
function hintOf(path: string, axes: BatchAxes): string {
  return path !== '' && Object.hasOwn(axes, path)
    ? `. If its rows lie on another axis, declare it: outputs: { ${path}: { batchAxis: ... } }`
    : '';
}

/**
 * The rows in storage of their own; with `zeroCopy` possibly as views, for a caller that copies
 * them before the next tick. Throws the error that a batch function returned for a row.
 */
export function releaseOutput(rows: Batch, zeroCopy = false): BatchOutput {
  const output = zeroCopy ? rows.view() : rows.release();
  const error = Array.isArray(output) ? output.find(isError) : undefined;
  if (error) {
    throw error;
  }
  return output;
}

/** Like {@link releaseOutput}, with a copy for each of several callers. */
export function copyOutput(rows: Batch): BatchOutput {
  if (!rows.isPlain) {
    return rows.consume();
  }
  const output = releaseOutput(rows);
  return Array.isArray(output) ? output.map((row) => deepCopy(row)) : output;
}
