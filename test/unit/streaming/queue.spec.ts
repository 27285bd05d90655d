import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Queue } from '../../../lib/core/streaming/queue.js';

const DONE = { done: true, value: undefined };
const valueOf = (value: unknown) => ({ done: false, value });

describe('Queue', () => {
  it('[8.2] Values arrive in order, whether they were queued or awaited', async () => {
    const queue = new Queue<number>();
    queue.push(1);
    queue.push(2);

    const taken = [queue.next(), queue.next(), queue.next(), queue.next()];
    queue.push(3);
    queue.push(4);

    expect(await Promise.all(taken)).toEqual([1, 2, 3, 4].map(valueOf));
    expect(queue.size).toBe(0);
  });

  it('[8.2] Queued values arrive before the end, which is reported to every further request', async () => {
    const queue = new Queue<number>();
    queue.push(1);
    queue.end();
    queue.push(2);

    expect(await Promise.all([queue.next(), queue.next(), queue.next()])).toEqual([
      valueOf(1),
      DONE,
      DONE,
    ]);
  });

  it('[8.2] Queued values arrive before the error, which is reported to every further request', async () => {
    const queue = new Queue<number>();
    const error = new Error('lost');
    queue.push(1);
    queue.fail(error);
    queue.fail(new Error('again'));
    queue.end();

    expect(await queue.next()).toEqual(valueOf(1));
    await expect(queue.next()).rejects.toBe(error);
    await expect(queue.next()).rejects.toBe(error);
  });

  it.each<[string, (queue: Queue<number>) => void, PromiseSettledResult<unknown>]>([
    ['ends', (queue) => queue.end(), { status: 'fulfilled', value: DONE }],
    [
      'fails without a reason',
      (queue) => queue.fail(undefined),
      { status: 'rejected', reason: undefined },
    ],
  ])('[8.2] All consumers that wait are notified when the queue %s', async (_, close, result) => {
    const queue = new Queue<number>();
    const waiting = [queue.next(), queue.next()];

    close(queue);

    expect(await Promise.allSettled(waiting)).toEqual([result, result]);
  });

  it('[8.2] No value is lost or repeated in any sequence of pushing and taking', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.boolean(), { maxLength: 200 }), async (turns) => {
        const queue = new Queue<number>();
        const taken: Promise<IteratorResult<number, undefined>>[] = [];
        let pushed = 0;
        for (const isPush of turns) {
          if (isPush) {
            queue.push(pushed++);
          } else {
            taken.push(queue.next());
          }
          expect(queue.size).toBe(Math.max(0, pushed - taken.length));
        }
        queue.end();
        for await (const rest of queue) {
          taken.push(Promise.resolve({ done: false, value: rest }));
        }

        const values = (await Promise.all(taken)).flatMap(({ done, value }) =>
          done ? [] : [value],
        );
        expect(values).toEqual(Array.from({ length: pushed }, (_, n) => n));
      }),
    );
  });
});
