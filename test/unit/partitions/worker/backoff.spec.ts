import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { backoff } from '../../../../lib/core/partitions/worker/supervised.partition.js';

describe('backoff', () => {
  it('[5.6] The maximum delay doubles with each failure in a row, up to 30 s', () => {
    const most = [1, 2, 3, 4, 8, 9, 10, 1000].map((failures) => backoff(100, failures, () => 1));

    expect(most).toEqual([100, 200, 400, 800, 12_800, 25_600, 30_000, 30_000]);
  });

  it('[5.6] The delay is random below its maximum, so that partitions that failed together restart apart', () => {
    fc.assert(
      fc.property(
        fc.nat(30_000),
        fc.integer({ min: 1, max: 40 }),
        fc.double({ min: 0, max: 1, noNaN: true }),
        (first, failures, drawn) => {
          expect(backoff(first, failures, () => drawn)).toBeCloseTo(
            drawn * backoff(first, failures, () => 1),
            6,
          );
        },
      ),
    );
  });
});
