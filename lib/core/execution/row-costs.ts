import type { Batch } from '../batch/batch.js';
import type { ResolvedBatchCost } from '../definition/batch-size.js';
import { InvalidInputError, messageOf, RequestTooLargeError } from '../errors.js';
import { formatValue } from '../format.js';

/**
 * The cost of each row of a call.
 *
 * @throws InvalidInputError when one is not a finite number above 0, or `of` throws
 * @throws RequestTooLargeError when one is more than a batch may cost
 */
export function rowCostsOf(
  serving: string,
  { of, most }: ResolvedBatchCost,
  batch: Batch,
): readonly number[] {
  return Array.from({ length: batch.size }, (_, row) => {
    const cost = costOf(serving, of, batch, row);
    if (typeof cost !== 'number' || !(cost > 0 && cost < Infinity)) {
      throw new InvalidInputError(
        `Serving "${serving}": batchSize.cost.of returned ${formatValue(cost)} for row ${row}; allowed ` +
          'is a finite number above 0',
      );
    }
    if (cost > most) {
      throw new RequestTooLargeError(
        `Serving "${serving}" runs batches that cost at most ${most}, and row ${row} costs ` +
          `${cost}; shorten it, or raise batchSize.cost.most`,
      );
    }
    return cost;
  });
}

/** The largest number of rows like the first of the batch that one batch may have. */
export function mostRowsLike(
  serving: string,
  batch: Batch,
  { of, most }: ResolvedBatchCost,
  size: number,
): number {
  const cost = costOf(serving, of, batch, 0);
  return typeof cost === 'number' && cost > 0
    ? Math.max(1, Math.min(size, Math.floor(most / cost)))
    : size;
}

/**
 * Refuses a call that must run in one batch and costs more than one.
 *
 * @throws InvalidInputError
 */
export function checkWholeCost(
  serving: string,
  { most, padded }: ResolvedBatchCost,
  costs: readonly number[],
): void {
  const cost = padded
    ? costs.length * Math.max(...costs)
    : costs.reduce((sum, each) => sum + each, 0);
  if (cost > most) {
    throw new InvalidInputError(
      `Serving "${serving}": a call with hooks is never split, and its rows cost ${cost}, more ` +
        `than the ${most} of a batch`,
    );
  }
}

function costOf(serving: string, of: ResolvedBatchCost['of'], batch: Batch, row: number): unknown {
  try {
    return of(rowIn(batch, row));
  } catch (cause) {
    throw new InvalidInputError(
      `Serving "${serving}": batchSize.cost.of failed for row ${row}: ${messageOf(cause)}`,
      { cause },
    );
  }
}

/** The row as the batch function would get it alone. */
function rowIn(batch: Batch, row: number): unknown {
  return batch.values ? batch.values[row] : batch.slice(row, row + 1).view();
}
