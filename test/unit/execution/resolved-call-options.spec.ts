import { getEventListeners } from 'node:events';
import { describe, expect, it } from '@jest/globals';
import {
  type CallOptions,
  DeadlineExceededError,
  InvalidInputError,
  type LocalServing,
  type ServingOptions,
} from 'nestjs-serving';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, timers, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

/** Options that violate the types. */
const wrong = (options: object): CallOptions => options;

/** The milliseconds after which the call fails; undefined if it waits for longer than 100. */
async function failsAfter(reply: Promise<unknown>): Promise<number | undefined> {
  let hasFailed = false;
  reply.catch(() => (hasFailed = true));
  for (let ms = 0; ms <= 100; ms++) {
    await turn();
    if (hasFailed) {
      return ms;
    }
    await later(1);
  }
  return undefined;
}

async function finishAll(batches: HeldFunction): Promise<void> {
  for (await turn(); batches.batches.length > 0; await turn()) {
    batches.next().finish(['A']);
  }
}

describe('The options of a call', () => {
  useVirtualTime();
  const start = useServings();

  /** A serving that answers nothing before the test does. */
  async function held(
    options: Partial<ServingOptions> = {},
  ): Promise<[serving: LocalServing, batches: HeldFunction]> {
    const batches = new HeldFunction();
    const model = { useFactory: batches.useFactory };
    const shutdown = { drain: false, timeout: 0 };
    return [await start({ name: 'polite', batchSize: 1, shutdown, ...options, model }), batches];
  }

  it.each<[CallOptions, number | undefined, number]>([
    [{ timeout: 20 }, undefined, 20],
    [{}, 30, 30],
    [{ timeout: 40 }, 30, 40],
    [{ timeout: undefined }, 30, 30],
    [{ timeout: 0 }, 30, 0],
  ])(
    '[7.2] With %p and the timeout %p of its serving, a call fails after %i ms',
    async (options, timeout, expected) => {
      const [serving, batches] = await held(timeout === undefined ? {} : { timeout });

      expect(await failsAfter(serving.batchedRun('a', options))).toBe(expected);
      await finishAll(batches);
      expect(timers()).toBe(0);
    },
  );

  it.each([Infinity, 2 ** 31])(
    '[7.2] A timeout of %s ms, longer than any timer, sets none',
    async (timeout) => {
      const [serving, batches] = await held();

      const reply = serving.batchedRun('a', { timeout });
      expect(timers()).toBe(0);
      const limited = serving.batchedRun('a', { timeout: 2 ** 31 - 1 });
      expect(timers()).toBe(1);

      await finishAll(batches);
      expect(await Promise.all([reply, limited])).toEqual(['A', 'A']);
    },
  );

  it("[7.4] The serving's function names the tenant of a call that names none", async () => {
    const inputs: unknown[] = [];
    const tenant = (input: unknown) => (inputs.push(input), input === 'known' ? 'a' : undefined);
    const [serving, batches] = await held({ queue: { maxRows: 4, tenant } });
    const first = serving.batchedRun('first');
    await turn();

    // A tenant may have as many queued rows as it leaves to others.
    const replies = Promise.allSettled([
      first,
      ...['known', 'known', 'known'].map((row) => serving.batchedRun(row)),
      serving.batchedRun('known', { tenant: 'b' }),
      serving.batchedRun('unknown'),
    ]);
    await finishAll(batches);

    expect(await replies).toMatchObject([
      { value: 'A' },
      { value: 'A' },
      { value: 'A' },
      { reason: { message: expect.stringContaining('3 rows of tenant "a"') } },
      { value: 'A' },
      { value: 'A' },
    ]);
    expect(inputs).toEqual(['first', 'known', 'known', 'known', 'unknown']);
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
  ])(
    '[7.2] [7.4] Invalid options of a call are refused: $message',
    async ({ options, message }) => {
      const serving = await start({
        name: 'polite',
        model: { useFactory: () => (rows: unknown[]) => rows },
      });
      const refused = expect(serving.batchedRun('a', wrong(options))).rejects;

      await refused.toThrow(InvalidInputError);
      await expect(serving.batchedRun('a', wrong(options))).rejects.toThrow(
        `A call to serving "polite" has ${message}`,
      );
    },
  );

  it('[7.2] The deadline error states how much time the call had, and comes once', async () => {
    const [serving, batches] = await held();
    const errors: unknown[] = [];
    serving.batchedRun('a', { timeout: 25 }).catch((error: unknown) => errors.push(error));

    await later(24);
    expect(errors).toEqual([]);
    await later(100);
    expect(errors).toEqual([
      new DeadlineExceededError(
        'Serving "polite" did not answer within the 25 ms that the call had',
      ),
    ]);
    await finishAll(batches);
  });

  it('[7.3] A call fails with the reason of its signal, at once if that has aborted', async () => {
    const [serving, batches] = await held();
    const leaving = new AbortController();
    const reason = new Error('gone');
    const call = (): Promise<unknown> =>
      serving.batchedRun('a', { signal: leaving.signal }).catch((error: unknown) => error);

    const waiting = call();
    await turn();
    leaving.abort(reason);

    expect(await Promise.all([waiting, call()])).toEqual([reason, reason]);
    await finishAll(batches);
  });

  it('[7.2] [7.3] After the answer no timer and no listener is left', async () => {
    const [serving, batches] = await held();
    const { signal } = new AbortController();

    const replies = [{ signal, timeout: 10 }, { signal }, { timeout: 10 }, {}].map((options) =>
      serving.batchedRun('a', options),
    );
    await finishAll(batches);

    expect(await Promise.all(replies)).toEqual(['A', 'A', 'A', 'A']);
    expect([timers(), getEventListeners(signal, 'abort')]).toEqual([0, []]);
    await later(20);
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
