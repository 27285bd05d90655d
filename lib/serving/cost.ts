import type { Batch } from '../batch/batch.js';
import { InvalidServingError } from '../errors.js';
import { show } from '../show.js';
import type { Callbacks } from './call.js';

/** What the rows count against `maxQueueCost`, where that is given. */
export function costOf({ name, maxQueueCost, cost = bytesOf }: Callbacks, batch: Batch): number {
  if (maxQueueCost === undefined) {
    return 0;
  }
  const costs: unknown = cost(batch);
  if (typeof costs !== 'number' || !(costs >= 0)) {
    throw new InvalidServingError(`Serving "${name}": cost must return a number of 0 or more, it returned ${show(costs)}`);
  }
  return costs;
}

/** The bytes of rows that are tensors; a string counts as one, plain values as none. */
function bytesOf({ template, size }: Batch): number {
  const perRow = (template?.leaves ?? []).map(({ tensor: { data, dims } }, leaf) => {
    const elements = elementsOf(dims, template!.axes[leaf] ?? null);
    return ArrayBuffer.isView(data) ? elements * data.BYTES_PER_ELEMENT : elements;
  });
  return size * perRow.reduce((sum, bytes) => sum + bytes, 0);
}

/** The elements of one row: the item of which the shape is known may have no rows. */
function elementsOf(dims: readonly number[], axis: number | null): number {
  return dims.reduce((elements, dim, i) => (i === axis ? elements : elements * dim), 1);
}
