import { describe, expect, it } from '@jest/globals';
import {
  Batched,
  type BatchedOptions,
  createServing,
  InvalidServingError,
  type ServingOptions,
} from 'nestjs-serving';
import { useServings } from '../../../fixtures/serving/use-servings.js';

const useFactory = () => (rows: unknown[]) => rows;

function errorOf(options: Omit<ServingOptions, 'name'>): unknown {
  try {
    createServing({ name: 'target', model: { useFactory }, ...options });
    return undefined;
  } catch (error) {
    expect(error).toBeInstanceOf(InvalidServingError);
    return (error as Error).message;
  }
}

const check = (options: BatchedOptions) => () => {
  class Scores {
    @Batched(options)
    score(rows: unknown[]): unknown[] {
      return rows;
    }
  }
  return Scores;
};

describe('A latency target', () => {
  const start = useServings();

  it('[15.1] A serving has a target, which holds for each of its keys', async () => {
    const serving = await start({
      name: 'target',
      model: { useFactory },
      batchSize: { latencyTarget: 50 },
      batchKeys: ['short', { key: 'long', batchSize: 4 }],
    });

    expect(serving.targets().map(({ key, latencyTarget }) => [key, latencyTarget])).toEqual([
      ['short', 50],
      ['long', 50],
    ]);
  });

  it.each([0, -1, Infinity, NaN, '50', null])(
    '[15.1] [1.9] A target of %p fails the boot',
    (value) => {
      expect(errorOf({ batchSize: { latencyTarget: value as number } })).toContain(
        'option "batchSize.latencyTarget" is ' +
          (typeof value === 'string' ? '"50"' : `${value}`) +
          '; allowed is milliseconds from 1 to 2147483647',
      );
    },
  );

  it('[15.1] [1.9] A target beside a batch timeout fails the boot', () => {
    expect(errorOf({ batchSize: { latencyTarget: 50 }, batchTimeout: 5 })).toBe(
      'Serving "target" with "useFactory": latencyTarget 50 decides when a batch runs, and batchTimeout 5 contradicts it; drop batchTimeout',
    );
    expect(
      errorOf({ batchSize: { latencyTarget: 50 }, batchKeys: [{ key: 'long', batchTimeout: 5 }] }),
    ).toBe(
      'Serving "target" with "useFactory", key "long": latencyTarget 50 decides when a batch runs, and batchTimeout 5 contradicts it; drop batchTimeout',
    );
    expect(errorOf({ batchSize: { latencyTarget: 50 }, batchTimeout: 0 })).toBeUndefined();
    expect(
      errorOf({ batchSize: { cost: { of: () => 1, most: 9 }, latencyTarget: 50 } }),
    ).toBeUndefined();
  });

  it('[15.1] [1.9] A target beyond the timeout of the serving fails the boot', () => {
    expect(errorOf({ batchSize: { latencyTarget: 50 }, timeout: 49 })).toBe(
      'Serving "target" with "useFactory": timeout 49 ends calls before the latencyTarget 50 is over; lower the target or raise the timeout',
    );
    expect(errorOf({ batchSize: { latencyTarget: 50 }, timeout: 50 })).toBeUndefined();
  });

  it('[15.1] [4.8] A serving with a target refuses a batch timeout at run time', () => {
    const serving = createServing({
      name: 'target',
      model: { useFactory },
      batchSize: { latencyTarget: 50 },
    });

    expect(() => serving.setBatchTimeout(5)).toThrow(
      'Serving "target": latencyTarget 50 decides when a batch runs, and batchTimeout 5 contradicts it; drop batchTimeout',
    );
    expect(() => serving.setBatchTimeout(0)).not.toThrow();
  });

  it('[15.1] [10.2] A batched method may have a target, and no batch timeout beside it', () => {
    expect(check({ batchSize: { latencyTarget: 50 } })).not.toThrow();
    expect(check({ batchSize: { latencyTarget: 50 }, batchTimeout: 5 })).toThrow(
      '@Batched() on Scores.score: latencyTarget 50 decides when a batch runs',
    );
    expect(check({ batchSize: { latencyTarget: 0 } })).toThrow(
      'option "batchSize.latencyTarget" is 0',
    );
  });
});
