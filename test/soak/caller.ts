import { type CallOptions, isServingError } from 'nestjs-serving';
import type { Ledger } from './ledger.js';
import type { Random } from './random.js';
import { type Fault, faultOf, idOf, RowError, rowOf } from './rows.js';
import type { Subject } from './subject.js';

const MOST_ROWS = 100;
const TENANTS = Array.from({ length: 8 }, (_, index) => `tenant ${index}`);

/** One call, and how it is made. */
interface Call {
  readonly subject: Subject;
  readonly rows: readonly number[];
  readonly key: string;
  readonly fault: Fault;
  readonly how: 'batchedRun' | 'run' | 'stream';
  readonly options: CallOptions;
  /** What its signal aborts with, where it has one. */
  readonly reason: Error | undefined;
}

/** Makes calls at random, several at a time, and judges how they end. */
export class Caller {
  private readonly lots: readonly Subject[];

  constructor(
    subjects: readonly Subject[],
    private readonly ledger: Ledger,
    private readonly random: Random,
  ) {
    this.lots = subjects.flatMap((subject) => Array.from({ length: subject.share }, () => subject));
  }

  /**
   * Calls until so many rows were sent, by all callers together, or that time of
   * `performance.now()` has come.
   */
  async callUntil(rows: number, end: number): Promise<void> {
    while (this.ledger.rows < rows && performance.now() < end) {
      const calls = this.random.chance(0.1) ? this.random.whole(2, 8) : 1;
      await Promise.all(Array.from({ length: calls }, () => this.call()));
      if (this.random.chance(0.01)) {
        this.change(this.random.pick(this.lots));
      }
    }
  }

  private async call(): Promise<void> {
    const { ledger } = this;
    const call = this.anyCall();
    const { subject, rows, how, fault } = call;
    ledger.open++;
    try {
      const left = how === 'stream' ? await this.read(call) : await this.ask(call);
      ledger.end(subject.name, left ? 'left' : 'answered', rows.length);
    } catch (error) {
      ledger.end(subject.name, this.verdictOn(error, call), rows.length);
    }
    ledger.open--;
    if (fault === 'throws') {
      ledger.throwing.delete(subject.name);
    }
  }

  private anyCall(): Call {
    const { random, ledger } = this;
    const subject = random.pick(this.lots);
    const size = random.chance(0.2) ? 1 : random.whole(1, MOST_ROWS);
    const fault = this.anyFault(subject);
    const faulty = random.whole(0, size - 1);
    const first = ledger.issue(size);
    const rows = Array.from({ length: size }, (_, index) =>
      rowOf(first + index, index === faulty ? fault : 'none'),
    );
    const how = random.chance(0.8) ? 'batchedRun' : random.chance(0.8) ? 'stream' : 'run';
    const abort = random.chance(0.1) ? new AbortController() : undefined;
    const reason = abort && new Error(`the caller of row ${first} has left`);
    if (abort) {
      this.atSomeTime(() => abort.abort(reason));
    }
    const options = {
      ...(random.chance(0.3) && { priority: random.whole(-2, 2) }),
      ...(random.chance(0.5) && { tenant: random.pick(TENANTS) }),
      ...(random.chance(0.2) && { timeout: random.pick([0, 1, 5, 20, 100, 1000]) }),
      signal: abort?.signal,
    };
    return { subject, rows, key: random.pick(subject.keys), fault, how, options, reason };
  }

  private anyFault({ faults, isolates, name }: Subject): Fault {
    const fault = faults.length > 0 && this.random.chance(0.02) ? this.random.pick(faults) : 'none';
    if (fault !== 'throws' || !isolates) {
      return fault;
    }
    // The search for the row at fault has an end, which more than one at a time can reach.
    if (this.ledger.throwing.has(name)) {
      return 'none';
    }
    this.ledger.throwing.add(name);
    return fault;
  }

  private atSomeTime(callback: () => void): void {
    this.random.pick([callback, queueMicrotask, setImmediate, setTimeout, setTimeout])(
      callback,
      this.random.whole(0, 20),
    );
  }

  private async ask(call: Call): Promise<boolean> {
    const { subject, rows, key, how, options } = call;
    const output = await subject.serving[how === 'run' ? 'run' : 'batchedRun'](
      subject.input(rows, key),
      options,
    );
    this.take(call, 0, rows.length, output);
    return false;
  }

  /** Reads a stream, at times only the first of it. */
  private async read(call: Call): Promise<boolean> {
    const { subject, rows, key, options } = call;
    const most = this.random.chance(0.3) ? this.random.whole(0, rows.length) : Infinity;
    let next = 0;
    for await (const event of subject.serving.stream(subject.input(rows, key), options)) {
      const { batch, output } = event;
      if (batch.offset !== next) {
        this.ledger.fault('mixed', `a stream gave row ${batch.offset} after row ${next}`);
      }
      next = batch.offset + batch.rows;
      this.take(call, batch.offset, batch.rows, output);
      if (next > most) {
        return true;
      }
    }
    if (next !== rows.length) {
      this.ledger.fault('unexpected', `a stream ended after ${next} of ${rows.length} rows`);
    }
    return false;
  }

  /** Checks the output for some rows of the call. */
  private take(
    { subject, rows, key, fault }: Call,
    offset: number,
    count: number,
    output: unknown,
  ): void {
    const own = rows.slice(offset, offset + count);
    const wrong = subject.wrong(output, own, key);
    if (wrong > 0) {
      this.ledger.fault(
        'mixed',
        `${wrong} rows of ${subject.name} from row ${idOf(own[0]!)} on have the answers of others`,
        wrong,
      );
    }
    const unable = own.find((row) => faultOf(row) !== 'none');
    if (unable !== undefined) {
      this.ledger.fault(
        'mixed',
        `row ${idOf(unable)} of ${subject.name} was answered and has a fault: ${fault}`,
      );
    }
    for (const row of own) {
      this.ledger.answer(idOf(row));
      if (subject.tellsRuns && !this.ledger.hasRun(idOf(row))) {
        this.ledger.fault('mixed', `row ${idOf(row)} was answered and has not run`);
      }
    }
  }

  /** The code of the error, which the call may end with, or else that is a fault. */
  private verdictOn(error: unknown, call: Call): string {
    const { subject, rows, fault, how, options, reason } = call;
    const code = isServingError(error)
      ? error.code
      : error === reason
        ? 'aborted'
        : error instanceof RowError
          ? 'row error'
          : 'other';
    const refused = code === 'SERVING_OVERLOADED' || code === 'SERVING_DEADLINE_TOO_SHORT';
    const isAllowed: Record<string, boolean> = {
      SERVING_OVERLOADED: true,
      SERVING_DEADLINE_TOO_SHORT: options.timeout !== undefined,
      SERVING_DEADLINE_EXCEEDED: options.timeout !== undefined,
      SERVING_BATCH_FAILED: fault === 'throws' || !(subject.isolates || how === 'run'),
      aborted: reason !== undefined,
      'row error': error instanceof RowError && rows.includes(error.row),
    };
    if (!isAllowed[code]) {
      this.ledger.fault(
        'unexpected',
        `${how} of ${subject.name} with row ${idOf(rows[0]!)} ended with ${code}: ${String(error)}`,
      );
    }
    if (refused && how !== 'stream' && rows.some((row) => this.ledger.hasRun(idOf(row)))) {
      this.ledger.fault(
        'unexpected',
        `${subject.name} has run rows of a call that it refused with ${code}`,
      );
    }
    return code;
  }

  /** Another size, or time, from the next window on. */
  private change({ serving, keys }: Subject): void {
    if (this.random.chance(0.5)) {
      serving.setBatchSize(this.random.whole(1, 64), this.random.pick(keys));
    } else {
      serving.setBatchTimeout(this.random.pick([0, 0, 1, 3]), this.random.pick(keys));
    }
  }
}
