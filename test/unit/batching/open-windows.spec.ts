import { describe, expect, it } from '@jest/globals';
import { runAll } from '../../fixtures/batching/busy-batcher.js';
import { HeldBatcher, type NamedRequest } from '../../fixtures/batching/held-batcher.js';
import { later, timers, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const leave = (...requests: NamedRequest[]): void => requests.forEach((request) => request.leave());

describe('Batcher: rows that leave an open window', () => {
  useVirtualTime();

  it('[W14] The place of a row that has left an open window goes to the next row', async () => {
    const batcher = new HeldBatcher({ batchTimeout: 100 });
    const gone = batcher.call('a');
    batcher.call('b');
    leave(gone);

    batcher.call('c');
    await later(50);
    expect(batcher.running).toEqual([]);

    batcher.call('d');
    await later();
    expect(batcher.running).toEqual(['0: b0 c0 d0']);
    expect(batcher.started).toMatchObject([{ rows: 3, reason: 'full' }]);
    await runAll(batcher);
  });

  it('[W14] An open window without rows is closed, so that the next row gets the full timeout', async () => {
    const batcher = new HeldBatcher({ batchTimeout: 100 });
    leave(...['a', 'b'].map((name) => batcher.call(name)));
    expect(timers()).toBe(0);

    await later(60);
    batcher.call('c');
    await later(99);
    expect(batcher.running).toEqual([]);

    await later(1);
    expect(batcher.running).toEqual(['0: c0']);
    expect(batcher.started).toMatchObject([{ rows: 1, reason: 'timeout' }]);
    await runAll(batcher);
  });

  it('[W14] A row that leaves a window does not change the clock of the rows that stay', async () => {
    const batcher = new HeldBatcher({ batchTimeout: 100 });
    const gone = batcher.call('a');
    await later(60);
    batcher.call('b');
    leave(gone);

    await later(40);
    expect(batcher.running).toEqual(['0: b0']);
    await runAll(batcher);
  });

  it('[W14] The rows of a large call fill free places first, then new ones, then the next window', async () => {
    const batcher = new HeldBatcher({ batchSize: 4, batchTimeout: 100 });
    const gone = batcher.call('a', 2);
    batcher.call('b');
    leave(gone);

    batcher.call('c', 5);
    await later();
    expect(batcher.running).toEqual(['0: b0 c0 c1 c2']);
    expect(await runAll(batcher)).toEqual(['b0 c0 c1 c2', 'c3 c4']);
  });

  it('[W14] The places of rows that have left count as room for a whole request', async () => {
    const batcher = new HeldBatcher({ batchSize: 4, batchTimeout: 100 });
    const gone = batcher.call('a', 2);
    batcher.call('b', 2);
    leave(gone);

    batcher.callWhole('C', 2);
    await later();
    expect(batcher.running).toEqual(['0: b0 b1 C0 C1']);
    await runAll(batcher);
  });

  it('[W14] Rows that have left an open window are removed from memory', () => {
    const batcher = new HeldBatcher({ batchSize: 1000, batchTimeout: 100, maxRows: 1000 });
    batcher.call('stays');
    for (let i = 0; i < 10_000; i++) {
      leave(batcher.call(`gone ${i}`));
    }

    expect(batcher.depth).toBe(1);
    expect(batcher.partsInWindows).toBeLessThan(200);
    batcher.drain();
    void batcher.close();
  });
});
