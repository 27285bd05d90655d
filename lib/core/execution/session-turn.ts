import { SessionEndedError } from '../errors.js';
import type { SessionRows } from '../partitions/session-states.js';
import { type Partition, statusOf } from '../partitions/partition.js';

/** A session in its batches, with at most one row at a time. */
export class SessionTurn {
  /** Steps whose caller got the reply. */
  steps = 0;
  /** Its partition's restarts at its first step: its state is in that worker. */
  private restarts = 0;

  constructor(readonly id: number) {}

  /** The error if its state was lost with its partition's worker. */
  lossOn(partition: Partition): SessionEndedError | undefined {
    const { restarts } = statusOf(partition);
    if (this.steps === 0) {
      this.restarts = restarts;
    }
    return this.restarts === restarts
      ? undefined
      : endedBy(
          'its state is lost, since the thread or process of its partition was started again',
        );
  }
}

export function endedBy(why: string, cause?: unknown): SessionEndedError {
  return new SessionEndedError(`The session has ended: ${why}; open another one`, { cause });
}

export function sessionRows(turns: readonly SessionTurn[]): SessionRows {
  return { ids: turns.map(({ id }) => id), steps: turns.map(({ steps }) => steps) };
}
