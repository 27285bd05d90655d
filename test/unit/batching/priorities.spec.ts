import { describe, expect, it } from '@jest/globals';
import { busyBatcher, runAll } from '../../fixtures/batching/busy-batcher.js';
import { HeldBatcher } from '../../fixtures/batching/held-batcher.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

describe('Batcher: priorities', () => {
  useVirtualTime();

  it.each([0, 10])(
    '[7.4] Rows of higher priority run first, with a timeout of %s',
    async (batchTimeout) => {
      const batcher = await busyBatcher({ batchTimeout });

      batcher.ask('a', { size: 4 });
      batcher.ask('low', { priority: -1, size: 2 });
      batcher.ask('high', { priority: 1, size: 2 });
      await later(batchTimeout);

      expect(await runAll(batcher)).toEqual(['high0 high1 a0', 'a1 a2 a3', 'low0 low1']);
    },
  );

  it('[14.8] A window of urgent rows that times out unfilled takes rows of lower priority, and none that are urgent wait for them', async () => {
    const batcher = await busyBatcher({ batchSize: 4, batchTimeout: 10 });
    batcher.ask('low', { priority: -5, size: 5 });
    await later(5);
    batcher.ask('high', { priority: 5, size: 2 });
    await later(10);

    expect(await runAll(batcher)).toEqual(['high0 high1 low0 low1', 'low2 low3 low4']);
    expect(batcher.started[1]).toMatchObject({ reason: 'full' });
  });

  it('[7.4] [14.8] Rows of lower priority fill batches that would be half empty', async () => {
    const batcher = await busyBatcher({ batchSize: 4 });

    batcher.ask('low', { priority: -5, size: 7 });
    batcher.ask('high', { priority: 5, size: 1 });

    expect(await runAll(batcher)).toEqual(['high0 low0 low1 low2', 'low3 low4 low5 low6']);
  });

  it('[7.4] An urgent row takes no place in a batch that runs or was handed ahead', async () => {
    const batcher = await busyBatcher({ prefetch: 1 });
    batcher.ask('a', { size: 6 });
    await later();
    expect(batcher.running).toEqual(['0: busy0', '0: a0 a1 a2']);

    batcher.ask('high', { priority: 1 });

    expect(await runAll(batcher)).toEqual(['a0 a1 a2', 'high0 a3 a4', 'a5']);
  });

  it('[7.4] A row runs before newer rows of the next higher level only after waiting the ageing time longer', async () => {
    const batcher = await busyBatcher({ batchSize: 1, ageing: 100 });
    batcher.ask('low');
    await later(99);
    batcher.ask('sooner', { priority: 1 });
    await later(2);
    batcher.ask('later', { priority: 1 });

    expect(await runAll(batcher)).toEqual(['sooner0', 'low0', 'later0']);
  });

  it('[7.4] No row starves under an endless load of higher priority', async () => {
    const batcher = await busyBatcher({ batchSize: 2, ageing: 50 });
    batcher.ask('low', { priority: -1 });
    let waited = 0;

    for (; waited < 400 && !batcher.running.join(' ').includes('low0'); waited += 10) {
      batcher.ask(`high ${waited}.`, { priority: 1, size: 2 });
      await later(10);
      batcher.finishBatch();
      await later();
    }

    expect(waited).toBeGreaterThanOrEqual(100);
    expect(waited).toBeLessThan(400);
    await runAll(batcher);
  });

  it('[7.4] Rows run strictly by priority when the ageing time is very long', async () => {
    const batcher = await busyBatcher({ batchSize: 1, ageing: 1e9 });
    batcher.ask('low', { priority: -1 });
    await later(1_000_000);
    batcher.ask('high', { priority: 1 });

    expect(await runAll(batcher)).toEqual(['high0', 'low0']);
  });

  it('[7.4] Rows run by age alone when the ageing time is 0', async () => {
    const batcher = await busyBatcher({ batchSize: 1, ageing: 0 });
    batcher.ask('low', { priority: -1 });
    await later(1);
    batcher.ask('high', { priority: 1 });

    expect(await runAll(batcher)).toEqual(['low0', 'high0']);
  });

  it('[7.4] [4.4] An urgent row of a busy lane runs before the full windows of another lane', async () => {
    const batcher = await busyBatcher();
    batcher.ask('right', { size: 9 }, 'right');
    batcher.ask('left', { size: 5 }, 'left');

    batcher.ask('urgent', { priority: 1 }, 'left');

    expect(await runAll(batcher)).toEqual([
      'urgent0 left0 left1',
      'right0 right1 right2',
      'right3 right4 right5',
      'right6 right7 right8',
      'left2 left3 left4',
    ]);
  });

  it('[7.4] [4.4] An urgent row in a window that has just opened runs first once that window has closed', async () => {
    const batcher = await busyBatcher({ batchTimeout: 10 });
    batcher.ask('right', { size: 6 }, 'right');
    batcher.ask('left', { size: 3 }, 'left');
    batcher.ask('urgent', { priority: 1 }, 'left');
    await later(9);
    batcher.finishBatch();
    await later();
    expect(batcher.running).toEqual(['0: right0 right1 right2']);

    await later(1);

    expect(await runAll(batcher)).toEqual([
      'right0 right1 right2',
      'urgent0 left0 left1',
      'right3 right4 right5',
      'left2',
    ]);
  });

  it('[4.4] Lanes keep their order of arrival when all rows have the same priority', async () => {
    for (const priority of [-3, 0, 3]) {
      const batcher = await busyBatcher();
      batcher.ask('a', { priority, size: 3 }, 'left');
      batcher.ask('b', { priority, size: 1 }, 'right');
      batcher.ask('c', { priority, size: 3 }, 'middle');
      batcher.ask('d', { priority, size: 1 }, 'right');
      batcher.ask('e', { priority, size: 3 }, 'left');

      expect(await runAll(batcher)).toEqual(['a0 a1 a2', 'b0 d0', 'c0 c1 c2', 'e0 e1 e2']);
    }
  });

  it('[4.4] Windows keep their places when some of their rows ran early in an urgent batch', async () => {
    const batcher = await busyBatcher();
    batcher.ask('a', { size: 2 }, 'left');
    batcher.ask('r', { size: 3 }, 'right');
    batcher.ask('urgent', { priority: 1 }, 'left');
    batcher.finishBatch();
    await later();
    expect(batcher.running).toEqual(['0: urgent0 a0 a1']);

    batcher.ask('b', {}, 'left');

    expect(await runAll(batcher)).toEqual(['urgent0 a0 a1', 'r0 r1 r2', 'b0']);
  });

  it('[7.4] [8.3] Urgent rows neither split a whole request nor leave one behind', async () => {
    const batcher = await busyBatcher({ batchTimeout: 10 });
    batcher.ask('a', { size: 2 });
    await later(10);
    batcher.ask('W', { size: 3, whole: true });
    batcher.ask('high', { size: 2, priority: 1 });
    batcher.ask('V', { size: 2, whole: true, priority: 1 });
    await later(10);

    const ran = await runAll(batcher);

    expect(ran.join(' ').split(' ')).toHaveLength(9);
    expect(ran.filter((rows) => rows.includes('W0 W1 W2'))).toHaveLength(1);
    expect(ran.filter((rows) => rows.includes('V0 V1'))).toHaveLength(1);
    expect(batcher.depth).toBe(0);
  });

  it('[12.2] The reported wait of a batch is that of its oldest row, also when that is not its first', async () => {
    const batcher = await busyBatcher();
    batcher.ask('a');
    await later(5);
    batcher.ask('high', { priority: 1 });
    await later(2);

    await runAll(batcher);

    expect(batcher.records[1]).toMatchObject({ wait: 7, rows: 2 });
  });

  it('[7.4] [7.1] Half of the queue is left to calls with a priority of 0 or more', async () => {
    const batcher = await busyBatcher({ maxRows: 8 });
    batcher.ask('low', { priority: -1, size: 4 });

    expect(() => batcher.ask('more', { priority: -1 })).toThrow(
      'calls of priority -1 leave half of 8 to others',
    );
    batcher.ask('a', { size: 4 });
    expect(() => batcher.ask('b')).toThrow('has 8 of at most 8 rows');
    expect(batcher.depth).toBe(8);
    await runAll(batcher);
  });

  it('[7.4] [4.1] A window closes at the same time for rows of every priority', async () => {
    const batcher = new HeldBatcher({ batchTimeout: 10 });
    batcher.ask('low', { priority: -10 });
    await later(9);
    batcher.ask('high', { priority: 10 });
    expect(batcher.running).toEqual([]);

    await later(1);

    expect(batcher.running).toEqual(['0: high0 low0']);
    await runAll(batcher);
  });
});
