import { Batch } from '../batch/batch.js';
import { asOutput, rowsIn } from '../batch/container.js';
import { deepCopy } from '../batch/deep-copy.js';
import { type BatchAxes, axisOf, type Template } from '../batch/template.js';
import { InvalidOutputError, isError } from '../errors.js';
import type { BatchOutput } from '../partitions/batch-function.js';

/** Reads outputs with rows on these axes. Remembers the last one's template: most often the next's. */
export class OutputReader {
  private last: Template | undefined;

  constructor(readonly axes: BatchAxes) {}

  /** See {@link outputRows}. */
  read(output: unknown, input: Batch): Batch {
    const rows = outputRows(output, input, this.axes, this.last);
    this.last = rows.template;
    return rows;
  }
}

/**
 * A batch's output as rows, without the results of padding.
 *
 * @throws InvalidOutputError if it doesn't have one result per row
 */
export function outputRows(
  output: unknown,
  input: Batch,
  axes: BatchAxes = {},
  known?: Template,
): Batch {
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
  const rows = asOutput(() => Batch.ofOutput(results, axes, known));
  if (rows.size !== expected) {
    throw new InvalidOutputError(
      `Unusable output: no leaf of it carries the ${expected} rows of the batch`,
    );
  }
  return rows.slice(0, input.size);
}

/** Advice for the outputs of a model; nothing else has the option. */
function hintOf(path: string, axes: BatchAxes): string {
  return path !== '' && Object.hasOwn(axes, path)
    ? `. If its rows lie on another axis, declare it: outputs: { ${path}: { batchAxis: ... } }`
    : '';
}

/**
 * The rows in memory of their own, or as views if `isLent`: then the caller copies them at once.
 *
 * @throws the Error that a batch function returned in place of a row's result
 */
export function releaseOutput(rows: Batch, isLent = false): BatchOutput {
  return withoutErrors(isLent ? rows.view() : rows.release());
}

/** @throws the Error that a batch function returned in place of a row's result */
export function withoutErrors(output: BatchOutput): BatchOutput {
  const error = Array.isArray(output) ? output.find(isError) : undefined;
  if (error) {
    throw error;
  }
  return output;
}

/** Like {@link releaseOutput}, with a copy for one of several callers. */
export function copyOutput(rows: Batch): BatchOutput {
  if (!rows.isPlain) {
    return rows.consume();
  }
  const output = releaseOutput(rows);
  return Array.isArray(output) ? output.map((row) => deepCopy(row)) : output;
}
