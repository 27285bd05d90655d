import { getEventListeners } from 'node:events';
import { describe, expect, it } from '@jest/globals';
import { type CallOptions, DeadlineExceededError, InvalidInputError } from 'nestjs-serving';
import {
  type ResolvedCallOptions,
  DEFAULT_CALL_OPTIONS,
  onCancel,
  resolveCallOptions,
} from '../../../lib/core/execution/resolved-call-options.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, timers, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const callbacks = { name: 'polite' };
const terms = (options: CallOptions, timeout?: number): ResolvedCallOptions =>
  resolveCallOptions(callbacks, 'input', options, timeout);
/** Options that violate the types. */
const wrong = (options: object): CallOptions => options;

describe('resolveCallOptions', () => {
  useVirtualTime();

  it('Calls without options share one object of defaults', () => {
    expect(terms({})).toBe(DEFAULT_CALL_OPTIONS);
    expect(
      terms({ priority: 0, tenant: '', timeout: undefined, signal: undefined, origin: 'http' }),
    ).toBe(DEFAULT_CALL_OPTIONS);
    expect(DEFAULT_CALL_OPTIONS).toMatchObject({
      priority: 0,
      tenant: '',
      deadline: Infinity,
      signal: undefined,
    });
  });

  it('[7.4] The options of a call are those that it names', () => {
    const { signal } = new AbortController();

    expect(terms({ priority: -10, tenant: 'a', signal })).toMatchObject({
      priority: -10,
      tenant: 'a',
      signal,
      deadline: Infinity,
    });
    expect(terms({ priority: 10 })).toMatchObject({ priority: 10, tenant: '' });
  });

  it('[7.2] The deadline counts from now, and the timeout of a call overrides that of the serving', () => {
    const now = performance.now();

    expect(terms({ timeout: 20 }).deadline).toBe(now + 20);
    expect(terms({}, 30).deadline).toBe(now + 30);
    expect(terms({ timeout: 40 }, 30).deadline).toBe(now + 40);
    expect(terms({ timeout: 0 }, 30).deadline).toBe(now);
  });

  it.each([Infinity, 2 ** 31])(
    '[7.2] A timeout of %s ms, longer than any timer, sets no deadline',
    (timeout) => {
      expect(terms({ timeout }).deadline).toBe(Infinity);
      expect(terms({ timeout: 2 ** 31 - 1 }).deadline).toBeLessThan(Infinity);
    },
  );

  it("[7.4] The tenant comes from the serving's function when the call names none", () => {
    const inputs: unknown[] = [];
    const asking = {
      ...callbacks,
      queue: {
        tenant: (input: unknown) => (inputs.push(input), input === 'known' ? 'a' : undefined),
      },
    };

    expect(resolveCallOptions(asking, 'known', {}).tenant).toBe('a');
    expect(resolveCallOptions(asking, 'unknown', {})).toBe(DEFAULT_CALL_OPTIONS);
    expect(resolveCallOptions(asking, 'known', { tenant: 'b' }).tenant).toBe('b');
    expect(inputs).toEqual(['known', 'unknown']);
  });

  it.each([
    { options: { priority: 11 }, message: 'priority 11; allowed is a whole number from -10 to 10' },
    {
      options: { priority: -11 },
      message: 'priority -11; allowed is a whole number from -10 to 10',
    },
    {
      options: { priority: 0.5 },
      message: 'priority 0.5; allowed is a whole number from -10 to 10',
    },
    {
      options: { priority: NaN },
      message: 'priority NaN; allowed is a whole number from -10 to 10',
    },
    {
      options: { priority: '1' },
      message: 'priority "1"; allowed is a whole number from -10 to 10',
    },
    {
      options: { priority: null },
      message: 'priority null; allowed is a whole number from -10 to 10',
    },
    { options: { tenant: 7 }, message: 'tenant 7; allowed is a string' },
    { options: { tenant: null }, message: 'tenant null; allowed is a string' },
    { options: { timeout: -1 }, message: 'timeout -1; allowed is milliseconds of 0 or more' },
    { options: { timeout: NaN }, message: 'timeout NaN; allowed is milliseconds of 0 or more' },
    { options: { timeout: '10' }, message: 'timeout "10"; allowed is milliseconds of 0 or more' },
    { options: { timeout: null }, message: 'timeout null; allowed is milliseconds of 0 or more' },
  ])('[7.2] [7.4] Invalid options of a call are refused: $message', ({ options, message }) => {
    expect(() => terms(wrong(options))).toThrow(InvalidInputError);
    expect(() => terms(wrong(options))).toThrow(`A call to serving "polite" has ${message}`);
  });

  it('[7.2] The deadline error states how much time the call had', () => {
    expect(terms({ timeout: 25 }).deadlineError()).toEqual(
      new DeadlineExceededError(
        'Serving "polite" did not answer within the 25 ms that the call had',
      ),
    );
    expect(DEFAULT_CALL_OPTIONS.deadlineError()).toBeInstanceOf(DeadlineExceededError);
  });
});

describe('onCancel', () => {
  useVirtualTime();

  it('[7.2] The callback runs once, at the deadline', async () => {
    const reasons: unknown[] = [];
    onCancel(terms({ timeout: 10 }), (reason) => reasons.push(reason));
    await later(9);
    expect(reasons).toEqual([]);

    await later(1);
    await later(100);

    expect(reasons).toEqual([expect.any(DeadlineExceededError)]);
    expect(timers()).toBe(0);
  });

  it('[7.2] The callback runs at once when the deadline has passed', async () => {
    const reasons: unknown[] = [];
    const asked = terms({ timeout: 10 });
    await later(10);

    onCancel(asked, (reason) => reasons.push(reason))();

    expect(reasons).toEqual([expect.any(DeadlineExceededError)]);
  });

  it('[7.3] The callback runs when the signal aborts, or at once when it has aborted', () => {
    const reasons: unknown[] = [];
    const leaving = new AbortController();
    onCancel(terms(leaving), (reason) => reasons.push(reason));
    leaving.abort('gone');
    onCancel(terms(leaving), (reason) => reasons.push(`already ${String(reason)}`));

    expect(reasons).toEqual(['gone', 'already gone']);
  });

  it('[7.2] [7.3] After unsubscribing the callback does not run, and no timer or listener is left', async () => {
    const reasons: unknown[] = [];
    const leaving = new AbortController();
    const late = terms({ timeout: 5, signal: leaving.signal });
    await later(5);

    [
      terms({ signal: leaving.signal, timeout: 10 }),
      terms(leaving),
      terms({ timeout: 10 }),
      late,
      DEFAULT_CALL_OPTIONS,
    ].forEach((asked) => onCancel(asked, (reason) => reasons.push(reason))());

    expect([timers(), getEventListeners(leaving.signal, 'abort')]).toEqual([0, []]);
    await later(20);
    leaving.abort();
    expect(reasons).toEqual([expect.any(DeadlineExceededError)]);
  });
});

describe('invalid options', () => {
  useVirtualTime();
  const start = useServings();

  it.each(['batchedRun', 'run'] as const)(
    '[7.2] [7.4] Invalid options make %s refuse the call before anything runs',
    async (method) => {
      const steps: string[] = [];
      const serving = await start<unknown>({
        name: 'polite',
        preprocess: (row) => (steps.push('preprocess'), { batch: row }),
        model: { useFactory: () => (rows: string[]) => (steps.push('batch'), rows) },
      });

      for (const options of [{ timeout: -1 }, { priority: 99 }, { tenant: 5 }]) {
        await expect(serving[method]('a', wrong(options))).rejects.toThrow(InvalidInputError);
      }
      expect(steps).toEqual([]);
    },
  );

  it('[7.2] [7.4] Invalid options of a stream are refused when it is read', async () => {
    const serving = await start<unknown>({
      name: 'polite',
      model: { useFactory: () => (rows: string[]) => rows },
    });

    const events = serving.stream('a', wrong({ priority: 'high' }))[Symbol.asyncIterator]();

    await expect(events.next()).rejects.toThrow(
      'A call to serving "polite" has priority "high"; allowed is a whole number from -10 to 10',
    );
  });

  it('[7.4] An error in the tenant function fails only its own call', async () => {
    const serving = await start<unknown>({
      name: 'polite',
      queue: {
        tenant: (input) => {
          if (input === 'nobody') {
            throw new RangeError('no such user');
          }
          return input === 'number' ? (5 as unknown as string) : 'somebody';
        },
      },
      model: { useFactory: () => (rows: string[]) => rows },
    });

    const replies = await Promise.allSettled(
      ['nobody', 'number', 'a'].map((row) => serving.batchedRun(row)),
    );

    expect(replies).toMatchObject([
      { reason: expect.any(RangeError) },
      { reason: { message: 'A call to serving "polite" has tenant 5; allowed is a string' } },
      { value: 'a' },
    ]);
  });
});
