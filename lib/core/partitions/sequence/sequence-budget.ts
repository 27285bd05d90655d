import { InvalidOutputError, RequestTooLargeError } from '../../errors.js';
import { formatValue } from '../../format.js';
import type { Failure, SequenceMember } from './sequence-member.js';
import type { SequenceLimits } from './sequence-model.js';

/**
 * Decides which rows of a loop join and which pause, so that together they cost at most `maxCost`.
 *
 * The youngest row pauses first. The oldest never pauses: it fits by itself. A row that has paused
 * often enough starts again as soon as it is the oldest, and then runs to its end; younger rows may
 * pass it until then. So the oldest row always advances.
 */
export class SequenceBudget {
  private readonly isLimited: boolean;

  constructor(private readonly limits: Omit<SequenceLimits, 'places'>) {
    this.isLimited = limits.maxCost < Infinity || limits.joinCost < Infinity;
  }

  /** Asks the model for the cost of the row. Returns why the row cannot run, if it cannot. */
  check(member: SequenceMember): Failure | undefined {
    if (!this.isLimited) {
      return undefined;
    }
    const { maxCost } = this.limits;
    try {
      member.cost = costOf(member, 0);
      member.costAfter = costOf(member, 1);
    } catch (error) {
      return { error };
    }
    if (member.costAfter <= maxCost) {
      return undefined;
    }
    const error = new RequestTooLargeError(
      `A row with its next value costs ${member.costAfter}, and all rows of a partition may cost ` +
        `${maxCost} together; give shorter rows, or raise sequence.maxCost`,
    );
    return { error };
  }

  /** The row to pause, if the present rows have no room for their next values. */
  pausing(present: readonly SequenceMember[]): SequenceMember | undefined {
    return present.length > 1 && totalOf(present) > this.limits.maxCost
      ? present.reduce((youngest, member) => (member.age > youngest.age ? member : youngest))
      : undefined;
  }

  /** The first of the rows in the queue, until one does not fit. */
  joining(
    present: readonly SequenceMember[],
    queue: readonly SequenceMember[],
  ): readonly SequenceMember[] {
    const { joinRows, joinCost, maxCost } = this.limits;
    const joining: SequenceMember[] = [];
    const isOldest = ({ age }: SequenceMember): boolean =>
      [present, queue].every((members) => members.every((other) => other.age >= age));
    let total = totalOf(present);
    let joined = 0;
    for (const member of queue) {
      if (member.isProtected && !isOldest(member)) {
        continue;
      }
      total += member.costAfter;
      joined += member.cost;
      const fits = total <= maxCost && (joining.length === 0 || joined <= joinCost);
      if (!fits || joining.length === joinRows) {
        break;
      }
      joining.push(member);
    }
    return joining;
  }
}

/** The cost of the row after so many more values. */
function costOf({ model, row, count }: SequenceMember, more: number): number {
  const cost: unknown = model.cost!(row.input, count + more);
  if (typeof cost !== 'number' || !(cost >= 0)) {
    throw new InvalidOutputError(
      `cost(input, values) of a sequence must return a number of 0 or more; it returned ` +
        formatValue(cost),
    );
  }
  return cost;
}

/** The cost of the rows with their next values. */
function totalOf(members: readonly SequenceMember[]): number {
  return members.reduce((sum, { costAfter }) => sum + costAfter, 0);
}
