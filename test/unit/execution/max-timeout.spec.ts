import { afterEach, describe, expect, it } from '@jest/globals';
import type { LocalServing, ServingOptions } from 'nestjs-serving';
import { BatchScript } from 'nestjs-serving/testing';
import { outcomeOf } from '../../fixtures/async/outcome-of.js';
import { iterated } from '../../fixtures/async/streams.js';
import { later, timers, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const late = (ms: number) =>
  expect.objectContaining({
    code: 'SERVING_DEADLINE_EXCEEDED',
    message: `Serving "limited" did not answer within the ${ms} ms that the call had`,
  });

describe('timeout.most', () => {
  useVirtualTime();
  let script: BatchScript<string, string>;

  // Before the servings are closed, which wait for their batches.
  afterEach(() => script.release((rows) => [...rows]));

  const startServing = useServings();

  async function start(options: Partial<ServingOptions> = {}): Promise<LocalServing> {
    script = new BatchScript<string, string>();
    return startServing<unknown>(
      script.createServing<unknown, unknown>({
        name: 'limited',
        timeout: { most: 50 },
        ...options,
      }),
    );
  }

  it.each(['batchedRun', 'run'] as const)(
    '[14.1] A call of %s has the earlier of its own deadline and timeout.most, also if it names none',
    async (method) => {
      const serving = await start();
      const options = [undefined, { timeout: 80 }, { timeout: Infinity }, { timeout: 20 }];
      const calls = options.map((each) => outcomeOf(serving[method]('row', each)));
      await later(20);
      expect(calls.map(({ outcome }) => outcome)).toEqual([
        undefined,
        undefined,
        undefined,
        late(20),
      ]);

      await later(30);
      expect(calls.slice(0, 3).map(({ outcome }) => outcome)).toEqual([
        late(50),
        late(50),
        late(50),
      ]);
      expect(timers()).toBe(0);
    },
  );

  it('[14.1] A timeout of the serving holds for calls without one, and timeout.most for all', async () => {
    const serving = await start({ timeout: { default: 10, most: 50 } });
    const calls = [{}, { timeout: 80 }].map((options) =>
      outcomeOf(serving.batchedRun('row', options)),
    );
    await later(50);

    expect(calls.map(({ outcome }) => outcome)).toEqual([late(10), late(50)]);
  });

  it('[14.1] A stream must have ended by timeout.most, also if it names no timeout', async () => {
    const serving = await start({ timeout: { default: 10, most: 50 } });
    const reading = outcomeOf(iterated(serving.stream('row')));
    await later(49);
    expect(reading.outcome).toBeUndefined();

    await later(1);
    expect(reading.outcome).toEqual(late(50));
  });

  it('[14.1] A timeout of the serving above timeout.most fails at boot', async () => {
    await expect(start({ timeout: { default: 51, most: 50 } })).rejects.toThrow(
      'timeout.default 51 is more than timeout.most 50, so no call could ever have it; lower the one or ' +
        'raise the other',
    );
    await expect(start({ timeout: { most: 0 } })).rejects.toThrow(
      'option "timeout.most" is 0; allowed is milliseconds from 1 to 2147483647',
    );
  });
});
