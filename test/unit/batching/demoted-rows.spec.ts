import { describe, expect, it } from '@jest/globals';
import { NO_BUDGET } from '../../../lib/batching/budget.js';
import { busyBatcher, runAll } from '../../fixtures/batching/busy-batcher.js';
import type { HeldBatcher, HeldBatcherOptions } from '../../fixtures/batching/held-batcher.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const busy = (options: HeldBatcherOptions = {}): Promise<HeldBatcher> =>
  busyBatcher({ budget: NO_BUDGET, batchSize: 2, ...options });
const inMs = (ms: number): number => performance.now() + ms;

describe('Batcher: demoted rows', () => {
  useVirtualTime();

  it('[14.6] A row whose time is over in the queue runs after all others of its lane, whatever their priority', async () => {
    const batcher = await busy();
    const late = batcher.ask('late', { lateAt: inMs(10), size: 2, priority: 10 });
    batcher.ask('a', { size: 3, priority: -10 });
    await later(10);

    expect(await runAll(batcher)).toEqual(['a0 a1', 'a2 late0', 'late1']);
    expect(late.error).toBeUndefined();
  });

  it('[14.6] A row whose time is not over keeps its place', async () => {
    const batcher = await busy();
    batcher.ask('a', { lateAt: inMs(10), size: 2 });
    batcher.ask('b', { size: 1 });
    await later(9);

    expect(await runAll(batcher)).toEqual(['a0 a1', 'b0']);
  });

  it('[14.6] A batch of demoted rows runs after the batches of other lanes', async () => {
    const batcher = await busy();
    batcher.ask('late', { lateAt: inMs(10) }, 'left');
    await later(5);
    batcher.ask('a', { size: 3 }, 'right');
    await later(5);

    expect(await runAll(batcher)).toEqual(['a0 a1', 'a2', 'late0']);
  });

  it('[14.6] Rows that come to a lane with demoted rows run at their own turn', async () => {
    const batcher = await busy();
    batcher.ask('late', { lateAt: inMs(10) }, 'left');
    batcher.ask('a', { size: 4 }, 'right');
    await later(10);
    batcher.finishBatch();
    await later();
    expect(batcher.running).toEqual(['0: a0 a1']);
    batcher.ask('b', {}, 'left');

    expect(await runAll(batcher)).toEqual(['a0 a1', 'a2 a3', 'late0 b0']);
  });

  it('[14.6] Demoted rows age, so that later rows do not keep them waiting for ever', async () => {
    const batcher = await busy({ ageing: 10, batchSize: 1 });
    batcher.ask('late', { lateAt: inMs(10) });
    const ran: string[] = [];
    for (let turn = 0; turn < 20; turn++) {
      batcher.ask(`r${turn}-`);
      await later(10);
      ran.push(batcher.running[0]!.slice(3));
      batcher.finishBatch();
      await later();
    }

    // Eleven levels of priority, of 10 ms each: it goes before rows that arrived later than that.
    expect(ran.slice(11, 15)).toEqual(['r10-0', 'r11-0', 'late0', 'r12-0']);
    await runAll(batcher);
  });

  it('[14.6] [7.3] A demoted row that is cancelled leaves the queue', async () => {
    const batcher = await busy();
    const late = batcher.ask('late', { lateAt: inMs(10), size: 3 });
    batcher.ask('a', { size: 2 });
    await later(10);
    batcher.finishBatch();
    await later();
    expect(batcher.running).toEqual(['0: a0 a1']);

    late.leave();
    expect(batcher.depth).toBe(0);
    expect(await runAll(batcher)).toEqual(['a0 a1']);
  });
});
