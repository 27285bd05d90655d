import { setImmediate as endOfTurn } from 'node:timers/promises';

/**
 * Waits until everything has happened that needs no time to pass: calls queue, due batches start,
 * and replies arrive.
 *
 * It waits a few turns of the event loop: one until a batch starts, one until its callers have
 * their replies, and one until the next batch starts. For anything that crosses a network, await
 * the reply itself.
 */
export async function settle(turns = 3): Promise<void> {
  for (let turn = 0; turn < turns; turn++) {
    await endOfTurn();
  }
}
