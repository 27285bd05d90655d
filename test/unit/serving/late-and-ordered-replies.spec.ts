import { describe, expect, it } from '@jest/globals';
import { Batch, type LocalServing, type ServingOptions } from 'nestjs-serving';
import { BatchScript } from 'nestjs-serving/testing';
import { outcomeOf } from '../../fixtures/async/outcome-of.js';
import { later, timers, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const upper = (rows: readonly string[]): string[] => rows.map((row) => row.toUpperCase());

describe('Calls of a serving', () => {
  useVirtualTime();
  const startServing = useServings();

  async function start(
    options: Partial<ServingOptions>,
  ): Promise<[LocalServing, BatchScript<string, string>]> {
    const script = new BatchScript<string, string>();
    const serving = await startServing<unknown>(
      script.createServing<unknown, unknown>({ name: 'letters', batchSize: 1, ...options }),
    );
    return [serving, script];
  }

  describe('with order: preserve', () => {
    const ordered = { partitions: 3, queue: { order: 'preserve' } } as const;

    it('[14.7] Replies leave in the order of the calls, also when later batches end first', async () => {
      const [serving, script] = await start(ordered);
      const left: unknown[] = [];
      ['a', 'b', 'c'].forEach(
        (row) => void serving.batchedRun(row).then((reply) => left.push(reply)),
      );
      await turn();
      const [a, b, c] = script.batches;
      c!.finish(upper);
      b!.finish(upper);
      await turn();
      expect(left).toEqual([]);

      a!.finish(upper);
      await turn();
      expect(left).toEqual(['A', 'B', 'C']);
    });

    it('[14.7] A call that fails, is cancelled or is late ends at once and releases its turn', async () => {
      const [serving, script] = await start({ ...ordered, partitions: 4 });
      const leaving = new AbortController();
      const options = [{}, leaving, { timeout: 10 }, {}];
      const calls = ['fails', 'leaves', 'late', 'd'].map((row, index) =>
        outcomeOf(serving.batchedRun(row, options[index])),
      );
      await turn();
      script.batches[3]!.finish(upper);
      leaving.abort('gone');
      await later(10);
      expect(calls.map(({ outcome }) => outcome)).toEqual([
        undefined,
        'gone',
        expect.objectContaining({ code: 'SERVING_DEADLINE_EXCEEDED' }),
        undefined,
      ]);

      script.batches[0]!.fail(new Error('broken'));
      await turn();
      expect(calls[0]!.outcome).toMatchObject({ code: 'SERVING_BATCH_FAILED' });
      expect(calls[3]!.outcome).toBe('D');
      script.release(upper);
    });

    it('[14.7] A reply that waits for its turn can be cancelled, and is late at its deadline', async () => {
      const [serving, script] = await start(ordered);
      const leaving = new AbortController();
      const calls = [{}, leaving, { timeout: 10 }].map((options, index) =>
        outcomeOf(serving.batchedRun(`row ${index}`, options)),
      );
      await turn();
      script.batches.slice(1).forEach((batch) => batch.finish(upper));
      await turn();
      leaving.abort('gone');
      await later(10);

      expect(calls.map(({ outcome }) => outcome)).toEqual([
        undefined,
        'gone',
        expect.objectContaining({ code: 'SERVING_DEADLINE_EXCEEDED' }),
      ]);
      expect(timers()).toBe(0);
      script.release(upper);
      await turn();
      expect(calls[0]!.outcome).toBe('ROW 0');
    });

    it('[14.7] A split call leaves with its last row, and other keys do not wait for it', async () => {
      const [serving, script] = await start({ ...ordered, batchKeys: ['en', 'de'] });
      const split = outcomeOf(serving.batchedRun(Batch.stack(['a', 'b']), { key: 'en' }));
      const other = outcomeOf(serving.batchedRun('c', { key: 'de' }));
      await turn();
      const [a, b, c] = script.batches;
      b!.finish(upper);
      c!.finish(upper);
      await turn();
      expect([split.outcome, other.outcome]).toEqual([undefined, 'C']);

      a!.finish(upper);
      await turn();
      expect(split.outcome).toEqual(['A', 'B']);
    });
  });

  it('[E12] No late row holds the replies of others: there is no option that keeps late rows', async () => {
    const queue: object = { order: 'preserve', onExpired: 'demote' };
    await expect(start({ queue })).rejects.toThrow('unknown option "queue.onExpired"');
  });

  it('[14.7] Another value of the option fails at boot', async () => {
    const queue: object = { order: true };
    await expect(start({ queue })).rejects.toThrow(
      'option "queue.order" is true; allowed is "preserve"',
    );
  });
});
