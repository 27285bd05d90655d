import { describe, expect, it } from '@jest/globals';
import { DeadlineExceededError } from 'nestjs-serving';
import { Observable } from 'rxjs';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

describe('A lazy sequence that preprocess returns after its call has ended', () => {
  useVirtualTime();
  const start = useServings();
  const definition = { name: 'same', model: { useFactory: () => (rows: unknown[]) => rows } };

  it('[L3] An Observable that preprocess returns after its call has ended keeps no subscription', async () => {
    let subscriptions = 0;
    const feed$ = new Observable(() => {
      subscriptions++;
      return () => subscriptions--;
    });
    const serving = await start({
      ...definition,
      preprocess: async () => {
        await later(50);
        return { batch: feed$ };
      },
    });
    const leaver = new AbortController();

    const reply = serving.batchedRun('a', { timeout: 20 });
    const event = serving.stream('b', { signal: leaver.signal })[Symbol.asyncIterator]().next();
    leaver.abort();

    await expect(reply).rejects.toThrow(DeadlineExceededError);
    await expect(event).rejects.toBe(leaver.signal.reason);
    await later(100);
    await turn();
    expect(subscriptions).toBe(0);
  });

  it('[L3] A generator that preprocess returns after its call has ended is closed', async () => {
    let isEnded = false;
    async function* rows(): AsyncGenerator<number> {
      try {
        yield 1;
        yield 2;
      } finally {
        isEnded = true;
      }
    }
    const serving = await start({
      ...definition,
      preprocess: async () => {
        const batch = rows();
        await batch.next();
        await later(50);
        return { batch };
      },
    });

    await expect(serving.batchedRun('a', { timeout: 20 })).rejects.toThrow(DeadlineExceededError);
    await later(100);
    await turn();

    expect(isEnded).toBe(true);
  });
});
