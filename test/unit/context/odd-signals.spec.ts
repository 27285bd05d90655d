import { describe, expect, it } from '@jest/globals';
import { type CallOptions, InvalidInputError } from 'nestjs-serving';
import { iterated } from '../../fixtures/async/streams.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { useVirtualTime } from '../../fixtures/async/virtual-time.js';

const whole = {
  aborted: false,
  reason: undefined,
  throwIfAborted() {},
  addEventListener() {},
  removeEventListener() {},
};
const failing = (method: string) => ({
  ...whole,
  [method]() {
    throw new Error(`no ${method}`);
  },
});
const without = (method: string) => ({ ...whole, [method]: undefined });

describe('A signal that is no AbortSignal', () => {
  useVirtualTime();
  const start = useServings();

  it.each([
    [failing('removeEventListener'), 'a signal that fails: no removeEventListener'],
    [failing('addEventListener'), 'a signal that fails: no addEventListener'],
    [without('throwIfAborted'), 'a signal without throwIfAborted'],
    [without('removeEventListener'), 'a signal without removeEventListener'],
    [{ ...whole, aborted: 0 }, 'a signal that is { aborted: 0, '],
    [{}, 'a signal that is {}; give an AbortSignal'],
    ['signal', 'a signal that is "signal"; give an AbortSignal'],
    [null, 'a signal that is null; give an AbortSignal'],
  ])(
    '[FR13] The signal %j is refused by name, and the other calls are answered',
    async (signal, lack) => {
      const serving = await start<number>({
        name: 'same',
        batchSize: 3,
        batchTimeout: 20,
        model: { useFactory: () => (rows: number[]) => rows },
      });
      const options = { signal } as unknown as CallOptions;
      const others = [1, 3].map((row) => serving.batchedRun(row));
      for (const odd of [
        serving.batchedRun(2, options),
        serving.run(2, options),
        iterated(serving.stream(2, options)),
      ]) {
        await expect(odd).rejects.toBeInstanceOf(InvalidInputError);
        await expect(odd).rejects.toThrow(`A call to serving "same" has ${lack}`);
      }
      serving.drain();
      serving.resume();
      await serving.close();
      expect(await Promise.all(others)).toEqual([1, 3]);
    },
  );

  it.each([
    ['A number', 5000, 'that is 5000'],
    ['An AbortController', new AbortController(), 'that is AbortController {}'],
  ])('[FU25] %s as a signal is refused with the way to write one', async (_, signal, lack) => {
    const serving = await start({ name: 'same', model: { useFactory: () => (rows) => rows } });
    const options = { signal } as unknown as CallOptions;
    await expect(serving.batchedRun(1, options)).rejects.toThrow(
      `A call to serving "same" has a signal ${lack}; give an AbortSignal, such as controller.signal`,
    );
  });

  it('[FR13] A signal whose listeners fail later ends its own call only', async () => {
    let removals = 0;
    const signal = {
      ...whole,
      removeEventListener() {
        if (++removals > 1) {
          throw new Error('no removal');
        }
      },
    };
    const serving = await start<number>({
      name: 'same',
      batchSize: 3,
      model: { useFactory: () => (rows: number[]) => rows },
    });
    const calls = [1, 2, 3].map((row) => serving.batchedRun(row, row === 2 ? { signal } : {}));
    expect(await Promise.all(calls)).toEqual([1, 2, 3]);
    expect(removals).toBe(2);
  });
});
