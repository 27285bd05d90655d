import { describe, expect, it } from '@jest/globals';
import { Pool } from '../../../lib/batching/pool.js';

describe('Pool', () => {
  it('[7.1] [7.2] expects the end of what runs from when it began, however wrong it was about what ran before', () => {
    const pool = new Pool([{ prefetch: 1 }]);
    const load = pool.next('full')!;
    pool.start(load, 10, 0);
    expect(pool.endOf(load, 0)).toBe(10);
    for (let now = 0; now < 100; now += 5) {
      pool.start(load, 10, now);
      expect(pool.endOf(load, now)).toBe(now + 20);
      expect(pool.end(load, now + 5)).toBe(now);
    }
    expect(pool.endOf(load, 100)).toBe(110);
    expect(pool.runningUntil(104)).toBe(6);
    expect(pool.runningUntil(130)).toBe(0);
  });

  it('[7.2] expects nothing of an idle partition', () => {
    const pool = new Pool([{ prefetch: 1 }, { prefetch: 0 }]);
    const load = pool.next('full')!;
    pool.start(load, 10, 0);
    pool.end(load, 7);

    expect(pool.endOf(load, 20)).toBe(20);
    expect(pool.runningUntil(20)).toBe(0);
    expect(pool.isQuiet).toBe(true);
  });
});
