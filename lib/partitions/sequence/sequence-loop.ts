import { setImmediate as nextTurn } from 'node:timers/promises';
import { InvalidOutputError, isError } from '../../errors.js';
import { formatList, formatValue } from '../../format.js';
import { DONE } from '../batch-function.js';
import { settledRows } from '../function.partition.js';
import { SequenceBudget } from './sequence-budget.js';
import { type Failure, SequenceMember, type SequenceRow } from './sequence-member.js';
import {
  Last,
  type SequenceEnd,
  type SequenceHooks,
  type SequenceLimits,
  type SequenceModel,
} from './sequence-model.js';

/**
 * Runs the rows of one model step by step. Between two steps rows leave that have ended or that no
 * caller waits for, and rows that wait take their places: so a new row waits for one step, and not
 * for the longest row of a batch.
 *
 * A row that is paused ends its state, and starts again with the values that it has emitted, before
 * all new rows, once it fits. Pausing by recomputation is that of vLLM.
 */
export class SequenceLoop {
  /** The rows that have a state, in the order in which they joined. */
  private present: SequenceMember[] = [];
  /** The rows that are to start again, the oldest first. */
  private paused: SequenceMember[] = [];
  /** The new rows in the order of their arrival. */
  private waiting: SequenceMember[] = [];
  private readonly budget: SequenceBudget;
  private isRunning = false;
  private hasChanged = false;
  private arrivals = 0;

  constructor(
    private readonly model: SequenceModel<unknown, unknown, unknown>,
    private readonly limits: Omit<SequenceLimits, 'places'>,
  ) {
    this.budget = new SequenceBudget(model, limits);
  }

  /** Resolves when the row has ended, also when no caller waits for it any more. */
  run(row: SequenceRow): Promise<void> {
    return new Promise((resolve, reject) => {
      const member = new SequenceMember(row, this.arrivals++, resolve, reject);
      const failure = this.budget.check(member);
      if (failure) {
        reject(failure.error);
        return;
      }
      this.waiting.push(member);
      if (!this.isRunning) {
        void this.runSteps();
      }
    });
  }

  private async runSteps(): Promise<void> {
    this.isRunning = true;
    while (this.present.length + this.paused.length + this.waiting.length > 0) {
      // Lets messages arrive: new rows, and callers that leave.
      await nextTurn();
      await this.leave();
      for (const { row } of this.present) {
        await row.room?.();
      }
      if (!(await this.pause())) {
        await this.start(this.budget.joining(this.present, [...this.paused, ...this.waiting]));
      }
      await this.step();
    }
    this.isRunning = false;
  }

  /** Ends the rows that no caller waits for, and those that have grown too large. */
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

  /** Pauses the youngest rows until the others have room for their next values. */
  private async pause(): Promise<boolean> {
    let hasPaused = false;
    for (let next = this.budget.pausing(this.present); next;) {
      hasPaused = true;
      next.pauses++;
      const failure = await this.endState(next, 'paused');
      if (failure) {
        next.reject(failure.error);
      } else {
        this.paused = [...this.paused, next].toSorted((a, b) => a.age - b.age);
      }
      next = this.budget.pausing(this.present);
    }
    return hasPaused;
  }

  private async start(joining: readonly SequenceMember[]): Promise<void> {
    if (joining.length === 0) {
      return;
    }
    const inputs = joining.map(({ row }) => row.input);
    const emitted = joining.map(({ values }) => [...values]);
    let states: readonly unknown[];
    try {
      const started: unknown = await this.model.start(inputs, { emitted, emit: emitTo(joining) });
      states = checked('start(inputs)', started, joining.length);
    } catch (error) {
      await this.failAll(joining, { error });
      return;
    }
    this.paused = this.paused.filter((member) => !joining.includes(member));
    this.waiting = this.waiting.filter((member) => !joining.includes(member));
    for (const [i, member] of joining.entries()) {
      const state = states[i];
      if (isError(state)) {
        await this.take(member, state);
      } else {
        this.hasChanged = true;
        member.started = { state };
        this.present.push(member);
      }
    }
  }

  private async step(): Promise<void> {
    const members = [...this.present];
    if (members.length === 0) {
      return;
    }
    const states = members.map(({ started }) => started!.state);
    const changed = this.hasChanged;
    this.hasChanged = false;
    let results: readonly unknown[];
    try {
      const context = { changed, emit: emitTo(members) };
      const stepped: unknown = await settledRows(await this.model.step(states, context));
      results = checked('step(states)', stepped, members.length);
    } catch (error) {
      // The states may have changed: none of them runs again.
      await this.failAll(members, { error });
      return;
    }
    for (const [i, member] of members.entries()) {
      await this.take(member, results[i]);
    }
  }

  private async take(member: SequenceMember, result: unknown): Promise<void> {
    const isLast = result instanceof Last;
    const value: unknown = isLast ? result.value : result;
    if (value !== DONE && !(await this.emit(member, value))) {
      return;
    }
    if (isError(value)) {
      await this.end(member, 'failed');
    } else if (isLast || value === DONE) {
      await this.end(member, 'ended');
    }
  }

  /** Hands the value to the caller. A value that cannot be handed out fails its own row. */
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

  /** Ends the row, and its state if it has one. */
  private async end(member: SequenceMember, reason: SequenceEnd, failure?: Failure): Promise<void> {
    this.paused = this.paused.filter((other) => other !== member);
    this.waiting = this.waiting.filter((other) => other !== member);
    const fault = await this.endState(member, reason);
    if (failure || fault) {
      member.reject((failure ?? fault)!.error);
    } else {
      member.resolve();
    }
  }

  /** Ends the state of a row that has one. Returns the error of `end`, if it throws. */
  private async endState(
    member: SequenceMember,
    reason: SequenceEnd,
  ): Promise<Failure | undefined> {
    const { started } = member;
    if (!started) {
      return undefined;
    }
    member.started = undefined;
    this.hasChanged = true;
    this.present = this.present.filter((other) => other !== member);
    try {
      await this.model.end?.(started.state, reason);
      return undefined;
    } catch (error) {
      return { error };
    }
  }
}

/** Sends the values of a hook to the rows whose callers ask for it. */
function emitTo(members: readonly SequenceMember[]): SequenceHooks['emit'] {
  return (hook, values) => {
    if (!Array.isArray(values) || values.length !== members.length) {
      throw new InvalidOutputError(
        `Hook ${formatValue(hook)} of a sequence needs an entry for each of the ${members.length} ` +
          `rows of the call that emits it; it was given ${formatList(values)}`,
      );
    }
    members.forEach(({ row }, i) => {
      if (row.hooks.includes(hook) && row.isWaiting()) {
        row.hook(hook, values[i]);
      }
    });
  };
}

function checked(method: string, result: unknown, expected: number): readonly unknown[] {
  if (!Array.isArray(result) || result.length !== expected) {
    throw new InvalidOutputError(
      `${method} of a sequence must return a list with an entry for each of its ${expected} rows; ` +
        `it returned ${formatList(result)}`,
    );
  }
  return result;
}
