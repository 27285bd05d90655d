import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  type JoinedCall,
  SingleFlight,
} from '../../../../lib/features/deduplication/shared-calls.js';
import { turn } from '../../../fixtures/async/virtual-time.js';

describe('SingleFlight', () => {
  it('Calls with one key share one run, and a call with another key has its own', async () => {
    const flights = new SingleFlight<string>();
    const started: string[] = [];
    const join = (identity: string): Promise<string> =>
      flights.join(identity, undefined, () => Promise.resolve(`work ${started.push(identity)}`))
        .reply;

    expect(await Promise.all([join('a'), join('a'), join('b'), join('a')])).toEqual([
      'work 1',
      'work 1',
      'work 2',
      'work 1',
    ]);
    expect(await join('a')).toBe('work 3');
    expect(flights.size).toBe(0);
  });

  it('The run begins before the first call receives its waiter', () => {
    const started: string[] = [];
    new SingleFlight<string>().join('a', undefined, async () => {
      started.push('a');
      return 'done';
    });
    expect(started).toEqual(['a']);
  });

  it('Calls whose key is a symbol of their own never share a run', async () => {
    const flights = new SingleFlight<number>();
    let works = 0;
    const join = (): Promise<number> =>
      flights.join(Symbol('alone'), undefined, async () => ++works).reply;
    expect(await Promise.all([join(), join()])).toEqual([1, 2]);
  });

  it('[7.3] A call that leaves ends at once, also the first, and the others get the result', async () => {
    const flights = new SingleFlight<string>();
    let succeed!: (value: string) => void;
    let left!: AbortSignal;
    const work = (signal: AbortSignal): Promise<string> => {
      left = signal;
      return new Promise((resolve) => (succeed = resolve));
    };
    const [first, second, third] = [1, 2, 3].map(() => flights.join('a', undefined, work));

    first!.leave('gone');
    await expect(first!.reply).rejects.toBe('gone');
    second!.leave('gone, too');
    await expect(second!.reply).rejects.toBe('gone, too');
    expect(left.aborted).toBe(false);

    succeed('done');
    expect(await third!.reply).toBe('done');
  });

  it('[7.3] The run is aborted when the last call has left, and a later call starts anew', async () => {
    const flights = new SingleFlight<string>();
    const signals: AbortSignal[] = [];
    const never = (signal: AbortSignal): Promise<string> => {
      signals.push(signal);
      return new Promise(() => {});
    };
    const seats = [flights.join('a', undefined, never), flights.join('a', undefined, never)];
    seats.forEach((seat) => seat.leave('gone'));
    await Promise.allSettled(seats.map(({ reply }) => reply));

    expect(signals.map(({ aborted, reason }) => [aborted, reason])).toEqual([[true, 'gone']]);
    expect(await flights.join('a', undefined, async () => 'new').reply).toBe('new');
  });

  it('[6.1] An error fails all calls of the run and no later call', async () => {
    const flights = new SingleFlight<string>();
    const error = new Error('out of paper');
    const seats = [1, 2].map(() => flights.join('a', undefined, () => Promise.reject(error)));

    expect(await Promise.allSettled(seats.map(({ reply }) => reply))).toEqual([
      { status: 'rejected', reason: error },
      { status: 'rejected', reason: error },
    ]);
    expect(await flights.join('a', undefined, async () => 'better').reply).toBe('better');
  });

  it('A run that throws synchronously fails its call', async () => {
    const seat = new SingleFlight<string>().join('a', undefined, () => {
      throw new Error('at once');
    });
    await expect(seat.reply).rejects.toThrow('at once');
  });

  it('A run that fails after the last call has left leaves no unhandled rejection', async () => {
    let fail!: (error: Error) => void;
    const seat = new SingleFlight<string>().join(
      'a',
      undefined,
      () => new Promise((_, reject) => (fail = reject)),
    );
    seat.leave('gone');
    await expect(seat.reply).rejects.toBe('gone');
    fail(new Error('nobody asks'));
  });
});

const of = { identity: fc.constantFrom('a', 'b') };
const happenings = fc.array(
  fc.oneof(
    { weight: 4, arbitrary: fc.record({ what: fc.constant('join' as const), ...of }) },
    {
      weight: 4,
      arbitrary: fc.record({ what: fc.constant('leave' as const), call: fc.nat({ max: 20 }) }),
    },
    {
      weight: 2,
      arbitrary: fc.record({ what: fc.constantFrom('succeed' as const, 'fail' as const), ...of }),
    },
    { weight: 2, arbitrary: fc.record({ what: fc.constant('turn' as const) }) },
  ),
  { maxLength: 60 },
);

it('[4.6] [7.3] SingleFlight answers every call once with the result of its own run, and each run happens once', async () => {
  await fc.assert(
    fc.asyncProperty(happenings, async (list) => {
      const history = new History();
      for (const happening of list) {
        if (happening.what === 'turn') {
          await history.turn();
        } else if (happening.what === 'leave') {
          history.leave(happening.call);
        } else {
          history[happening.what](happening.identity);
        }
      }
      await history.end();
    }),
    { numRuns: 200 },
  );
});

/** A run of the test and the calls that wait for it. */
interface Work {
  readonly identity: string;
  readonly first: number;
  readonly waiting: Set<number>;
  readonly left: AbortSignal;
  readonly settle: { succeed(value: unknown): void; fail(error: unknown): void };
  /** Its result or error, from the next turn on. */
  outcome?: string;
  /** Whether all of its calls have left. */
  deserted?: true;
}

/** Plays the events and compares them with a model. */
class History {
  private readonly flights = new SingleFlight<unknown, number>();
  private readonly seats: JoinedCall<unknown, number>[] = [];
  private readonly answers: string[][] = [];
  private readonly expected: string[][] = [];
  private readonly works: Work[] = [];

  join(identity: string): void {
    const call = this.seats.length;
    const known = this.underWay(identity);
    const waiting = known?.waiting ?? new Set();
    waiting.add(call);
    const seat = this.flights.join(identity, call, (left) => {
      return new Promise((succeed, fail) =>
        this.works.push({ identity, first: call, waiting, left, settle: { succeed, fail } }),
      );
    });
    expect(seat).toMatchObject({ joined: known !== undefined, first: known?.first ?? call });
    this.seats.push(seat);
    const answers: string[] = [];
    this.answers.push(answers);
    this.expected.push([]);
    seat.reply.then(
      (value) => answers.push(`gave ${String(value)}`),
      (error: unknown) => answers.push(`failed of ${String(error)}`),
    );
  }

  /** Calls with an answer leave too, which must have no effect. */
  leave(number: number): void {
    const call = number % this.seats.length;
    this.seats[call]?.leave(`leaving ${call}`);
    const work = this.works.find(({ waiting }) => waiting.has(call));
    if (work?.waiting.delete(call)) {
      this.expected[call]!.push(`failed of leaving ${call}`);
      if (work.waiting.size === 0) {
        work.deserted = true;
      }
    }
  }

  succeed(identity: string): void {
    this.settle(identity, 'succeed', 'gave');
  }

  fail(identity: string): void {
    this.settle(identity, 'fail', 'failed of');
  }

  async turn(): Promise<void> {
    await turn();
    for (const { outcome, waiting } of this.works) {
      if (outcome !== undefined) {
        waiting.forEach((call) => this.expected[call]!.push(outcome));
        waiting.clear();
      }
    }
    this.check();
  }

  async end(): Promise<void> {
    // as often as there are runs, so that all of them end
    this.works.forEach(({ identity }) => this.succeed(identity));
    await this.turn();
    expect(this.flights.size).toBe(0);
    expect(this.answers.every(({ length }) => length === 1)).toBe(true);
  }

  private underWay(identity: string): Work | undefined {
    return this.works.find((work) => work.identity === identity && work.waiting.size > 0);
  }

  /** Ends the oldest run, also when no call waits for it any more. */
  private settle(identity: string, how: keyof Work['settle'], said: string): void {
    const number = this.works.findIndex(
      (work) => work.identity === identity && work.outcome === undefined,
    );
    const work = this.works[number];
    if (work) {
      work.settle[how](number);
      work.outcome = `${said} ${number}`;
    }
  }

  private check(): void {
    expect(this.answers).toEqual(this.expected);
    expect(this.flights.size).toBe(this.works.filter(({ waiting }) => waiting.size > 0).length);
    this.works.forEach(({ left, deserted = false }) => expect(left.aborted).toBe(deserted));
  }
}
