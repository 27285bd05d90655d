import { setImmediate as nextTurn } from 'node:timers/promises';
import { InvalidOutputError, isError, RequestTooLargeError } from '../../errors.js';
import { formatValue } from '../../format.js';
import { DONE } from '../batch-function.js';
import { settledRows } from '../function.partition.js';
import {
  Last,
  type SequenceEnd,
  type SequenceLimits,
  type SequenceModel,
} from './sequence-model.js';

/** A row of one caller. */
export interface SequenceRow {
  readonly input: unknown;
  /** Whether a caller still waits for it. */
  isWaiting(): boolean;
  /** Receives a value, or the Error that the row ends with. */
  emit(value: unknown): void;
  /** Resolves once the reader has room for another value; undefined without a limit. */
  room?(): Promise<void> | undefined;
}

/** A row that was paused this often is not paused again. */
export const MOST_PAUSES = 4;

/**
 * Runs the rows of one model step by step. Between two steps rows leave that have ended or that no
 * caller waits for, and rows that wait take their places: so a new row waits for one step, and not
 * for the longest row of a batch.
 *
 * While the rows would cost more than `maxCost`, the youngest is paused: its state ends, and it
 * starts again, before all new rows, once it fits. Each row is paused {@link MOST_PAUSES} times at
 * most, after which it runs to its end; only one such row is present at a time. So the limit always
 * holds, and some row always advances. Pausing by recomputation is that of vLLM.
 */
export class SequenceLoop {
  /** The rows that have a state, in the order in which they joined. */
  private present: Member[] = [];
  /** The rows that are to start again, the oldest first. */
  private paused: Member[] = [];
  /** The new rows in the order of their arrival. */
  private waiting: Member[] = [];
  private readonly hasCosts: boolean;
  private isRunning = false;
  private hasChanged = false;
  private arrivals = 0;

  constructor(
    private readonly model: SequenceModel<unknown, unknown, unknown>,
    private readonly limits: Omit<SequenceLimits, 'places'>,
  ) {
    this.hasCosts = limits.maxCost < Infinity || limits.joinCost < Infinity;
  }

  /** Resolves when the row has ended, also when no caller waits for it any more. */
  run(row: SequenceRow): Promise<void> {
    return new Promise((resolve, reject) => {
      const member = new Member(row, this.arrivals++, resolve, reject);
      const failure = this.priced(member);
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
        await this.start(this.joining());
      }
      await this.step();
    }
    this.isRunning = false;
  }

  /** Ends the rows that no caller waits for, and those that have grown too large. */
  private async leave(): Promise<void> {
    for (const member of [...this.present, ...this.paused, ...this.waiting]) {
      const failure = member.started && this.priced(member);
      if (!member.row.isWaiting()) {
        await this.end(member, 'cancelled');
      } else if (failure) {
        await this.end(member, 'failed', failure);
      }
    }
  }

  /** Pauses the youngest rows until the others have room for their next values. */
  private async pause(): Promise<boolean> {
    const { maxCost } = this.limits;
    let hasPaused = false;
    while (this.hasCosts && costOf(this.present) > maxCost) {
      const victim = this.present
        .filter(({ isProtected }) => !isProtected)
        .reduce((youngest, member) => (member.age > youngest.age ? member : youngest));
      hasPaused = true;
      victim.pauses++;
      const failure = await this.endState(victim, 'paused');
      if (failure) {
        victim.reject(failure.error);
      } else {
        this.paused = [...this.paused, victim].toSorted((a, b) => a.age - b.age);
      }
    }
    return hasPaused;
  }

  /** The rows that join before the next step: paused ones first, until one does not fit. */
  private joining(): Member[] {
    const { joinRows, joinCost, maxCost } = this.limits;
    const joining: Member[] = [];
    let hasProtected = this.present.some(({ isProtected }) => isProtected);
    let total = costOf(this.present);
    let joined = 0;
    for (const member of [...this.paused, ...this.waiting]) {
      total += member.costAfter;
      joined += member.cost;
      const fits = total <= maxCost && (joining.length === 0 || joined <= joinCost);
      if (!fits || joining.length === joinRows || (hasProtected && member.isProtected)) {
        break;
      }
      hasProtected ||= member.isProtected;
      joining.push(member);
    }
    return joining;
  }

  private async start(joining: readonly Member[]): Promise<void> {
    if (joining.length === 0) {
      return;
    }
    const inputs = joining.map(({ row }) => row.input);
    const emitted = joining.map(({ values }) => [...values]);
    let states: readonly unknown[];
    try {
      const started: unknown = await this.model.start(inputs, { emitted });
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
        await this.emit(member, state);
        await this.end(member, 'failed');
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
      const stepped: unknown = await settledRows(await this.model.step(states, { changed }));
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

  private async take(member: Member, result: unknown): Promise<void> {
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
  private async emit(member: Member, value: unknown): Promise<boolean> {
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

  private async failAll(members: readonly Member[], failure: Failure): Promise<void> {
    for (const member of members) {
      await this.end(member, 'failed', failure);
    }
  }

  /** Ends the row, and its state if it has one. */
  private async end(member: Member, reason: SequenceEnd, failure?: Failure): Promise<void> {
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
  private async endState(member: Member, reason: SequenceEnd): Promise<Failure | undefined> {
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

  /** Asks the model for the cost of the row. Returns why the row cannot run, if it cannot. */
  private priced(member: Member): Failure | undefined {
    if (!this.hasCosts) {
      return undefined;
    }
    const { maxCost } = this.limits;
    const { row, count } = member;
    try {
      member.cost = this.cost(row.input, count);
      member.costAfter = this.cost(row.input, count + 1);
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

  private cost(input: unknown, values: number): number {
    const cost: unknown = this.model.cost!(input, values);
    if (typeof cost !== 'number' || !(cost >= 0)) {
      throw new InvalidOutputError(
        `cost(input, values) of a sequence must return a number of 0 or more; it returned ` +
          formatValue(cost),
      );
    }
    return cost;
  }
}

interface Failure {
  readonly error: unknown;
}

/** A row in the loop. */
class Member {
  started: { readonly state: unknown } | undefined;
  /** The number of its values. */
  count = 0;
  /** The values, kept where the row may be paused. */
  readonly values: unknown[] = [];
  pauses = 0;
  /** Its cost, and its cost with the next value. */
  cost = 0;
  costAfter = 0;

  constructor(
    readonly row: SequenceRow,
    /** The number of rows that arrived before. */
    readonly age: number,
    readonly resolve: () => void,
    readonly reject: (error: unknown) => void,
  ) {}

  get isProtected(): boolean {
    return this.pauses >= MOST_PAUSES;
  }
}

function costOf(members: readonly Member[]): number {
  return members.reduce((sum, { costAfter }) => sum + costAfter, 0);
}

function checked(method: string, result: unknown, expected: number): readonly unknown[] {
  if (!Array.isArray(result) || result.length !== expected) {
    const got = Array.isArray(result) ? `a list of ${result.length}` : formatValue(result);
    throw new InvalidOutputError(
      `${method} of a sequence must return a list with an entry for each of its ${expected} rows; ` +
        `it returned ${got}`,
    );
  }
  return result;
}
