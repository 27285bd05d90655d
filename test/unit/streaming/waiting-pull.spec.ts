import { describe, expect, it } from '@jest/globals';
import { PullAhead, type Started } from '../../../lib/core/streaming/pull-ahead.js';
import { turn } from '../../fixtures/async/virtual-time.js';

describe('A pull that waits for cost', () => {
  it('[FR14] ends, and starts nothing, when its stream is stopped', async () => {
    let started = 0;
    const pulled = new PullAhead<number, Started>({
      source: [6, 6].values(),
      window: 10,
      isOpen: false,
      costOf: (cost) => cost,
      mostCost: 10,
      start: (_, cost) => {
        started++;
        return { size: 1, cost, isOver: false, fail() {}, onEnd() {} };
      },
    });
    await pulled.next();
    expect([started, pulled['isPulling']]).toEqual([1, true]);

    pulled.stop();
    await turn();

    expect([started, pulled['isPulling']]).toEqual([1, false]);
  });
});
