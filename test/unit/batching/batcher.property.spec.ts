import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { Play } from '../../fixtures/batching/play.js';
import { scenario } from '../../fixtures/batching/scenarios.js';

describe('Batcher', () => {
  useVirtualTime();

  it('[4.1] [4.2] [4.3] [4.4] [4.5] [4.6] [4.7] [4.8] [4.11] [5.5] [5.6] [6.4] [7.1] [7.2] [7.3] [7.4] [8.3] [9.3] The batcher keeps every promise under random calls, failures and departures', async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async (options) => {
        expect(await new Play(options).broken()).toEqual([]);
      }),
      { numRuns: 200 },
    );
  });
});
