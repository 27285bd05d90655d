import { BatchFailedError, isError, messageOf } from '../errors.js';

/**
 * The output of a batch with the values of the promises in its list. The reason of a rejected
 * promise becomes the Error of its row. Other outputs are not changed.
 */
export function settledRows(output: unknown): unknown {
  return Array.isArray(output) && output.some(isThenable) ? settled(output) : output;
}

async function settled(list: readonly unknown[]): Promise<unknown[]> {
  const results = await Promise.allSettled(list);
  return results.map((result) =>
    result.status === 'fulfilled' ? result.value : errorOf(result.reason),
  );
}

function isThenable(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) {
    return false;
  }
  try {
    return 'then' in value && typeof value.then === 'function';
  } catch {
    // Only the caller of this row gets the error, when the row is read.
    return false;
  }
}

function errorOf(reason: unknown): Error {
  return isError(reason)
    ? reason
    : new BatchFailedError(`The promise of a row was rejected: ${messageOf(reason)}`, {
        cause: reason,
      });
}
