import { describe, expect, it } from '@jest/globals';
import { BlockingWatch } from '../../../lib/core/partitions/function.partition.js';

describe('BlockingWatch', () => {
  it('[5.8] It warns once, at the third run in a row above the limit, with the figures of that run', () => {
    const warnings: string[] = [];
    const watch = new BlockingWatch(
      { limit: 2, name: 'blockingLimit, which is 2 ms' },
      'do less',
      (line) => warnings.push(line),
    );

    watch.observe(1, 2);
    watch.observe(8, 2.01);
    watch.observe(8, 30);
    watch.observe(1, 0.1);
    watch.observe(16, 40);
    watch.observe(16, 4);
    expect(warnings).toEqual([]);

    watch.observe(32, 5.27);
    expect(warnings).toEqual([
      expect.stringMatching(
        /^held the event loop for 5\.3 ms with a run of 32 rows.*blockingLimit, which is 2 ms/,
      ),
    ]);

    [6, 7, 1, 8, 9, 10].forEach((time) => watch.observe(32, time));
    expect(warnings).toHaveLength(1);
  });
});
