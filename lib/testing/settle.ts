import { setImmediate as endOfTurn } from 'node:timers/promises';

/**
 * Lets happen what needs no time to pass: calls queue, batches that are due start, and replies
 * come.
 *
 * That is a few turns of the event loop: one until a batch starts, one until its callers have their
 * replies, and one until the next batch starts. What comes over a network needs more, and is better
 * awaited itself.
 */
export async function settle(turns = 3): Promise<void> {
  for (let turn = 0; turn < turns; turn++) {
    await endOfTurn();
  }
}
