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

  describe('with onExpired: demote', () => {
    it('[14.6] A timeout fails no call: its queued rows run after all others', async () => {
      const [serving, script] = await start({ queue: { onExpired: 'demote' } });
      const calls = ['first', 'late', 'other'].map((row) =>
        outcomeOf(serving.batchedRun(row, row === 'late' ? { timeout: 10 } : {})),
      );
      await later(20);
      const ran: (readonly string[])[] = [];
      for (; script.batches.length > 0; await turn()) {
        ran.push(script.rows[0]!);
        script.batches[0]!.finish(upper);
      }

      expect(ran).toEqual([['first'], ['other'], ['late']]);
      expect(calls.map(({ outcome }) => outcome)).toEqual(['FIRST', 'LATE', 'OTHER']);
    });

    it('[14.1] [14.6] maxTimeout fails calls all the same', async () => {
      const [serving, script] = await start({ maxTimeout: 30, queue: { onExpired: 'demote' } });
      const calls = ['first', 'late'].map((row) =>
        outcomeOf(serving.batchedRun(row, { timeout: 10 })),
      );
      await later(29);
      expect(calls.map(({ outcome }) => outcome)).toEqual([undefined, undefined]);
      await later(1);

      const message = 'Serving "letters" did not answer within the 30 ms that the call had';
      expect(calls.map(({ outcome }) => outcome)).toEqual([
        expect.objectContaining({ message }),
        expect.objectContaining({ message }),
      ]);
      expect([serving.queued, timers()]).toEqual([0, 0]);
      script.release(upper);
    });
  });

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

  it('[14.6] [14.7] Other values of these options fail at boot', async () => {
    const wrong: Record<string, object> = {
      late: { onExpired: 'delay' },
      order: { order: true },
    };

    await expect(start({ queue: wrong['late']! })).rejects.toThrow(
      'option "queue.onExpired" is "delay"; allowed is "fail" or "demote"',
    );
    await expect(start({ queue: wrong['order']! })).rejects.toThrow(
      'option "queue.order" is true; allowed is "preserve"',
    );
  });
});
