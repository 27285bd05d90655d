import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { BudgetPlay, budgetScenario } from '../../fixtures/batching/budget-play.js';
import { NO_LIMIT } from '../../fixtures/batching/held-batcher.js';
import { Play } from '../../fixtures/batching/play.js';
import { scenario } from '../../fixtures/batching/scenarios.js';

describe('Batcher: budgets', () => {
  useVirtualTime();

  it('[14.2] [14.3] No batch costs more than allowed, no row is passed more often than allowed, and none is lost or runs twice', async () => {
    await fc.assert(
      fc.asyncProperty(budgetScenario, async (options) => {
        expect(await new BudgetPlay(options).broken()).toEqual([]);
      }),
      { numRuns: 300 },
    );
  });

  it('[14.2] Where nothing limits the cost, a batcher with a budget keeps every promise of one without', async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async (options) => {
        expect(await new Play(options, NO_LIMIT).broken()).toEqual([]);
      }),
      { numRuns: 100 },
    );
  });
});
