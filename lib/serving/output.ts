import { Batch } from '../batch/batch.js';
import { isContainer, leavesOf } from '../batch/container.js';
import type { BatchAxes } from '../batch/template.js';
import { InvalidOutputError } from '../errors.js';
import { isRowList } from '../partitions/wire.js';

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
        `A batch of ${expected} rows needs ${expected} results; the batch function returned ${output.length}`,
      );
    }
    return Batch.concatenate([output]).slice(0, input.size);
  }
  if (!isContainer(output)) {
    const got = output === null ? 'null' : typeof output;
    throw new InvalidOutputError(
      `A batch of ${expected} rows needs a list of ${expected} results, or tensors with ${expected} rows; the batch function returned ${got}`,
    );
  }
  for (const { path, tensor } of leavesOf(output)) {
    const axis = path in axes ? axes[path]! : 0;
    if (axis !== null && tensor.dims[axis] !== expected) {
      throw new InvalidOutputError(
        `Output ${path === '' ? '' : `"${path}" `}has the shape [${tensor.dims.join(', ')}]; axis ${axis} must have the ${expected} rows of the batch. ` +
          `Where its rows lie on another axis, say so: outputs: { ${path || 'name'}: { batchAxis: ... } }`,
      );
    }
  }
  return Batch.concatenate([output], axes).slice(0, input.size);
}
