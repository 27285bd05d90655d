import { setImmediate as nextTurn } from 'node:timers/promises';
import {
  InvalidOutputError,
  isError,
  isThenable,
  RequestTooLargeError,
} from '../../core/errors.js';
import { countOfRows, formatList, formatValue } from '../../core/format.js';
import { DONE } from '../../core/partitions/batch-function.js';
import { settledRows } from '../../core/partitions/function.partition.js';
import { REPORT } from '../../core/partitions/partition.js';
import {
  Last,
  PENDING,
  type SequenceEnd,
  type SequenceHooks,
  type SequenceLimits,
  type SequenceModel,
} from './sequence-model.js';

type Model = SequenceModel<unknown, unknown, unknown>;
type Joins = Pick<SequenceLimits, 'joinRows' | 'joinCost' | 'maxCost'>;

/**
 * Runs models' rows step by step. Between steps rows leave and join, so a new row never waits for a
 * batch's longest one. Models that share a loop share its limits and step together.
 *
 * A paused row ends its state. Once it fits, it starts again from its emitted values, before all
 * new rows (vLLM's preemption by recomputation).
 */
export class SequenceLoop {
  /** Oldest first. */
  private readonly present = new Set<SequenceMember>();
  private readonly paused = new Set<SequenceMember>();
  /** Arrival order. */
  private readonly waiting = new Set<SequenceMember>();
  private readonly budget: SequenceBudget;
  private isRunning = false;
  /** Models whose rows differ from their last step's. */
  private readonly changed = new Set<Model>();
  private arrivals = 0;

  constructor(private readonly limits: Joins) {
    this.budget = new SequenceBudget(limits);
  }

  /** Resolves when the row has ended, even if no caller waits. */
  run(model: Model, row: SequenceRow): Promise<void> {
    return new Promise((resolve, reject) => {
      const member = new SequenceMember(model, row, this.arrivals++, resolve, reject);
      const failure = this.budget.check(member);
      if (failure) {
        reject(failure.error);
        return;
      }
      this.waiting.add(member);
      if (!this.isRunning) {
        void this.runSteps();
      }
    });
  }

  private async runSteps(): Promise<void> {
    this.isRunning = true;
    try {
      while (this.present.size + this.paused.size + this.waiting.size > 0) {
        // Lets messages arrive: new rows, and callers that leave.
        await nextTurn();
        await this.leave();
        await this.awaitRoom();
        if (!(await this.pause())) {
          const paused = [...this.paused].toSorted((a, b) => a.age - b.age);
          await this.start(this.budget.joining([...this.present], [...paused, ...this.waiting]));
        }
        await forEachModel([...this.present], (model, members) => this.step(model, members));
      }
    } catch (error) {
      // A fault in the loop must leave no row waiting. Models' errors are caught at their calls.
      for (const members of [this.present, this.paused, this.waiting]) {
        members.forEach((member) => member.reject(error));
        members.clear();
      }
    } finally {
      this.isRunning = false;
    }
  }

  private async awaitRoom(): Promise<void> {
    for (const member of this.present) {
      try {
        await member.row.room?.();
      } catch (error) {
        await this.end(member, 'failed', { error });
      }
    }
  }

  private async leave(): Promise<void> {
    for (const member of [...this.present, ...this.paused, ...this.waiting]) {
      const failure = member.started && this.budget.check(member);
      if (!member.row.isWaiting()) {
        await this.end(member, 'cancelled');
      } else if (failure) {
        await this.end(member, 'failed', failure);
      }
    }
  }

  private async pause(): Promise<boolean> {
    let hasPaused = false;
    for (let next = this.budget.pausing([...this.present]); next;) {
      hasPaused = true;
      next.pauses++;
      const failure = await this.endState(next, 'paused');
      if (failure) {
        next.reject(failure.error);
      } else {
        this.paused.add(next);
      }
      next = this.budget.pausing([...this.present]);
    }
    return hasPaused;
  }

  private async start(joining: readonly SequenceMember[]): Promise<void> {
    await forEachModel(joining, (model, members) => this.startRows(model, members));
  }

  private async startRows(model: Model, joining: readonly SequenceMember[]): Promise<void> {
    const inputs = joining.map(({ row }) => row.input);
    const emitted = joining.map(({ values }) => [...values]);
    let states: readonly unknown[];
    try {
      const started: unknown = await model.start(inputs, { emitted, emit: emitTo(joining) });
      const list = checked('start(inputs)', started, joining.length);
      states = (await settledRows(list)) as readonly unknown[];
    } catch (error) {
      await this.failAll(joining, { error });
      return;
    }
    for (const [i, member] of joining.entries()) {
      const state = states[i];
      this.dequeue(member);
      if (isError(state)) {
        await this.take(member, { value: state, isLast: false });
      } else {
        this.changed.add(model);
        member.started = { state };
        this.present.add(member);
        await this.endFaulty(member);
      }
    }
  }

  private async step(model: Model, members: readonly SequenceMember[]): Promise<void> {
    const states = members.map(({ started }) => started!.state);
    const changed = this.changed.delete(model);
    const observer = members.find(({ row }) => row.hooks.includes(REPORT));
    const begin = performance.now();
    let results: readonly Result[];
    try {
      const context = { changed, emit: emitTo(members) };
      const stepped: unknown = await model.step(states, context);
      results = await settledResults(checked('step(states)', stepped, members.length));
    } catch (error) {
      // The states may have changed, so no state runs again.
      await this.failAll(members, { error });
      return;
    }
    if (observer) {
      const waiting = this.paused.size + this.waiting.size;
      const runTime = performance.now() - begin;
      observer.row.hook(REPORT, { rows: members.length, waiting, runTime });
    }
    for (const [i, member] of members.entries()) {
      if (!(await this.endFaulty(member))) {
        await this.take(member, results[i]!);
      }
    }
  }

  private async take(member: SequenceMember, { value, isLast }: Result): Promise<void> {
    if (value !== DONE && value !== PENDING && !(await this.emit(member, value))) {
      return;
    }
    if (isError(value)) {
      await this.end(member, 'failed');
    } else if (isLast || value === DONE) {
      await this.end(member, 'ended');
    }
  }

  private async endFaulty(member: SequenceMember): Promise<boolean> {
    const { fault } = member;
    if (fault) {
      await this.end(member, 'failed', fault);
    }
    return fault !== undefined;
  }

  /** An error fails only its row. */
  private async emit(member: SequenceMember, value: unknown): Promise<boolean> {
    try {
      member.row.emit(value);
    } catch (error) {
      await this.end(member, 'failed', { error });
      return false;
    }
    member.count++;
    if (this.limits.maxCost < Infinity) {
      member.values.push(value);
    }
    return true;
  }

  private async failAll(members: readonly SequenceMember[], failure: Failure): Promise<void> {
    for (const member of members) {
      await this.end(member, 'failed', failure);
    }
  }

  private async end(member: SequenceMember, reason: SequenceEnd, failure?: Failure): Promise<void> {
    this.dequeue(member);
    const fault = await this.endState(member, reason);
    if (failure || fault) {
      member.reject((failure ?? fault)!.error);
    } else {
      member.resolve();
    }
  }

  private dequeue(member: SequenceMember): void {
    this.paused.delete(member);
    this.waiting.delete(member);
  }

  private async endState(
    member: SequenceMember,
    reason: SequenceEnd,
  ): Promise<Failure | undefined> {
    const { started } = member;
    if (!started) {
      return undefined;
    }
    member.started = undefined;
    this.changed.add(member.model);
    this.present.delete(member);
    try {
      await member.model.end?.(started.state, reason);
      return undefined;
    } catch (error) {
      return { error };
    }
  }
}

function emitTo(members: readonly SequenceMember[]): SequenceHooks['emit'] {
  return (hook, values) => {
    if (!Array.isArray(values) || values.length !== members.length) {
      throw new InvalidOutputError(
        `Hook ${formatValue(hook)} of a sequence needs an entry for each of the ${members.length} ` +
          `rows of the call that emits it; it was given ${formatList(values)}`,
      );
    }
    members.forEach((member, i) => {
      const { row } = member;
      if (row.hooks.includes(hook) && row.isWaiting()) {
        try {
          row.hook(hook, values[i]);
        } catch (error) {
          // Fails only its own row.
          member.fault ??= { error };
        }
      }
    });
  };
}

function checked(method: string, result: unknown, expected: number): readonly unknown[] {
  if (!Array.isArray(result) || result.length !== expected) {
    throw new InvalidOutputError(
      `${method} of a sequence must return a list with an entry for each of its ${countOfRows(expected)}; ` +
        `it returned ${formatList(result)}`,
    );
  }
  return result;
}

async function forEachModel(
  members: readonly SequenceMember[],
  visit: (model: Model, members: readonly SequenceMember[]) => Promise<void>,
): Promise<void> {
  const byModel = new Map<Model, SequenceMember[]>();
  for (const member of members) {
    const own = byModel.get(member.model);
    if (own) {
      own.push(member);
    } else {
      byModel.set(member.model, [member]);
    }
  }
  await Promise.all([...byModel].map(([model, own]) => visit(model, own)));
}

interface Result {
  readonly value: unknown;
  readonly isLast: boolean;
}

/** Awaits promises, also in `last`. A rejection becomes its row's Error. */
function settledResults(list: readonly unknown[]): readonly Result[] | Promise<readonly Result[]> {
  const results = list.map(resultOf);
  return results.some(({ value }) => isThenable(value))
    ? Promise.all(results.map(settledResult))
    : results;
}

/** Reading may throw, for example from a revoked Proxy: such a result is no `Last`. */
function resultOf(result: unknown): Result {
  try {
    return result instanceof Last
      ? { value: result.value, isLast: true }
      : { value: result, isLast: false };
  } catch {
    return { value: result, isLast: false };
  }
}

async function settledResult({ value, isLast }: Result): Promise<Result> {
  if (!isThenable(value)) {
    return { value, isLast };
  }
  const settled = await settledRows([value]);
  const [only] = settled as readonly unknown[];
  const inner = resultOf(only);
  return settledResult({ value: inner.value, isLast: isLast || inner.isLast });
}

/**
 * Chooses rows to join and pause, so that together they cost at most `maxCost`.
 *
 * The youngest row pauses first. The oldest fits alone and never pauses. After {@link MOST_PAUSES}
 * pauses, a row starts again only as the oldest, and then runs to its end; younger rows may pass
 * it. So the oldest row always advances.
 */
class SequenceBudget {
  private readonly isLimited: boolean;

  constructor(private readonly limits: Joins) {
    this.isLimited = limits.maxCost < Infinity || limits.joinCost < Infinity;
  }

  /** Updates the cost. */
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

  pausing(present: readonly SequenceMember[]): SequenceMember | undefined {
    return present.length > 1 && totalOf(present) > this.limits.maxCost
      ? present.reduce((youngest, member) => (member.age > youngest.age ? member : youngest))
      : undefined;
  }

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

function totalOf(members: readonly SequenceMember[]): number {
  return members.reduce((sum, { costAfter }) => sum + costAfter, 0);
}

export interface SequenceRow {
  readonly input: unknown;
  isWaiting(): boolean;
  emit(value: unknown): void;
  readonly hooks: readonly string[];
  hook(name: string, value: unknown): void;
  /** Resolves when the reader has room; undefined without a limit. */
  room?(): Promise<void> | undefined;
}

interface Failure {
  readonly error: unknown;
}

const MOST_PAUSES = 4;

class SequenceMember {
  started: { readonly state: unknown } | undefined;
  count = 0;
  /** Kept only if the row may be paused. */
  readonly values: unknown[] = [];
  pauses = 0;
  /** Costs now, and with the next value. */
  cost = 0;
  costAfter = 0;

  /** Error of a hook, which fails the row after the running step. */
  fault: Failure | undefined;

  constructor(
    readonly model: SequenceModel<unknown, unknown, unknown>,
    readonly row: SequenceRow,
    /** The oldest row has the lowest. */
    readonly age: number,
    readonly resolve: () => void,
    readonly reject: (error: unknown) => void,
  ) {}

  get isProtected(): boolean {
    return this.pauses >= MOST_PAUSES;
  }
}
