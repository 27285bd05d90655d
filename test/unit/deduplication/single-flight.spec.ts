import { describe, expect, it } from '@jest/globals';
import { SingleFlight } from '../../../lib/deduplication/single-flight.js';

describe('Flights', () => {
  it('does the work of calls of one identity once, and that of another identity by itself', async () => {
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

  it('begins the work before the first call has its seat back', () => {
    const started: string[] = [];
    new SingleFlight<string>().join('a', undefined, async () => {
      started.push('a');
      return 'done';
    });
    expect(started).toEqual(['a']);
  });

  it('never joins calls whose identity is a symbol of their own', async () => {
    const flights = new SingleFlight<number>();
    let works = 0;
    const join = (): Promise<number> =>
      flights.join(Symbol('alone'), undefined, async () => ++works).reply;
    expect(await Promise.all([join(), join()])).toEqual([1, 2]);
  });

  it('[7.3] lets who leaves go at once, the first, too, and gives the others what they wait for', async () => {
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

  it('[7.3] gives the work up when the last has left, and starts anew for who comes then', async () => {
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

  it('[6.1] fails all of the flight of one error, and no later call', async () => {
    const flights = new SingleFlight<string>();
    const error = new Error('out of paper');
    const seats = [1, 2].map(() => flights.join('a', undefined, () => Promise.reject(error)));

    expect(await Promise.allSettled(seats.map(({ reply }) => reply))).toEqual([
      { status: 'rejected', reason: error },
      { status: 'rejected', reason: error },
    ]);
    expect(await flights.join('a', undefined, async () => 'better').reply).toBe('better');
  });

  it('fails a flight whose work throws before there is a promise', async () => {
    const seat = new SingleFlight<string>().join('a', undefined, () => {
      throw new Error('at once');
    });
    await expect(seat.reply).rejects.toThrow('at once');
  });

  it('leaves nothing unhandled when the work fails after the last has left', async () => {
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
