import { describe, expect, it } from '@jest/globals';
import { SingleFlight } from '../../../../lib/features/deduplication/shared-calls.js';

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
