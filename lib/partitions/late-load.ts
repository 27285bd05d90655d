import { isServingError, messageOf, ServingLoadError } from '../errors.js';

/** Loads what a batch needs and the start did not; when that fails, it is not the batch that failed. */
export async function lateLoad<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch (cause) {
    throw isServingError(cause)
      ? cause
      : new ServingLoadError(`Cannot load what the batch needs: ${messageOf(cause)}`, { cause });
  }
}
