import { describe, expect, it } from '@jest/globals';
import { createServing, ServingUnavailableError } from 'nestjs-serving';
import { HeldBatcher } from '../../fixtures/batching/held-batcher.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

/** A getter that throws once it is told to. */
function breaking(target: object, property: string): () => void {
  let isBroken = false;
  Object.defineProperty(target, property, {
    configurable: true,
    get() {
      if (isBroken) {
        throw new TypeError('a faulty partition');
      }
      return undefined;
    },
  });
  return () => {
    isBroken = true;
  };
}

describe('A queue that fails', () => {
  useVirtualTime();
  const start = useServings();

  it.each([0, 10])(
    '[FR14] After a fault inside the queue with a batch timeout of %s ms every waiting row fails, later ones are refused, and running batches are answered',
    async (batchTimeout) => {
      const batcher = new HeldBatcher({ batchTimeout, partitions: 2, batchSize: 1 });
      const running = batcher.call('a');
      await turn();
      const breakDown = breaking(batcher.targets[1]!, 'unavailable');
      const waiting = [batcher.call('b'), batcher.call('c', 1, 'other')];
      breakDown();
      await later(20);

      for (const { error } of waiting) {
        expect(error).toBeInstanceOf(ServingUnavailableError);
        expect(error).toMatchObject({
          message:
            'Serving "held" takes no more calls, since its queue has failed: a faulty partition; ' +
            'restart the application',
        });
      }
      expect(() => batcher.call('d')).toThrow('its queue has failed');
      expect(running.error).toBeUndefined();
      const closed = batcher.close();
      batcher.finishBatch(0);
      await closed;
      expect(batcher.depth).toBe(0);
    },
  );

  it('[FR14] A serving whose queue has failed answers its calls, refuses later ones, and says why in its health', async () => {
    const serving = await start<string>(
      createServing({
        name: 'faulty',
        batchSize: 1,
        model: { useFactory: () => (rows: string[]) => rows },
      }),
    );
    const { pipeline } = serving['loaded'].active;
    pipeline!['runner'].dispatch = () => {
      throw new TypeError('no dispatch');
    };

    const call = serving.batchedRun('a');
    await expect(call).rejects.toBeInstanceOf(ServingUnavailableError);
    await expect(serving.batchedRun('b')).rejects.toThrow('its queue has failed: no dispatch');
    expect(serving.health()).toMatchObject({
      isReady: false,
      reason: expect.stringContaining('its queue has failed: no dispatch'),
    });
  });
});
