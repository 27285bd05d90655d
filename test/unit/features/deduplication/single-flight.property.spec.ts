import { expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  SingleFlight,
  type JoinedCall,
} from '../../../../lib/features/deduplication/shared-calls.js';
import { turn } from '../../../fixtures/async/virtual-time.js';

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
