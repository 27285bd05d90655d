import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { Logger } from '@nestjs/common';
import type { LocalServing } from 'nestjs-serving';
import { growthOf } from '../soak/memory.js';
import { failuresOf, table } from '../soak/report.js';
import { soak, type SoakReport } from '../soak/soak.js';
import type { Subject } from '../soak/subject.js';
import { allSubjects } from '../soak/subjects/all.js';
import { functionSubject, type RowsFunction } from '../soak/subjects/function.subject.js';

const plan = { minutes: 4, rounds: 4, seed: 1 };

describe('soak', () => {
  beforeEach(() => Logger.overrideLogger(false));
  afterEach(() => Logger.overrideLogger(['error', 'warn']));

  it('[4.6] [6.1] [6.4] [7.1] [7.2] [7.3] [7.4] Each of 200,000 rows under random faults gets its own answer once, or one error', async () => {
    const report = await soak({ ...plan, rows: 200_000, subjects: allSubjects });

    expect(report.rows).toBeGreaterThanOrEqual(200_000);
    expect(report.answered).toBeGreaterThan(report.rows / 2);
    expect([failuresOf(report), `seed ${plan.seed}`, report.details]).toEqual([
      [],
      `seed ${plan.seed}`,
      [],
    ]);
    const codes = [...report.ends.values()].flatMap((ends) => [...ends.keys()]);
    expect(new Set(codes)).toEqual(
      new Set([
        'answered',
        'left',
        'aborted',
        'row error',
        'SERVING_OVERLOADED',
        'SERVING_DEADLINE_EXCEEDED',
        'SERVING_DEADLINE_TOO_SHORT',
        'SERVING_BATCH_FAILED',
      ]),
    );
  });

  it('The soak counts rows that get the answers of others', async () => {
    const { faults } = await sabotaged((run) => async (rows) => (await run(rows)).toReversed());

    expect(faults).toMatchObject({ mixed: expect.any(Number), doubled: 0, lost: 0 });
    expect(faults.mixed).toBeGreaterThan(0);
  });

  it('The soak counts rows that run twice', async () => {
    const { faults } = await sabotaged((run) => async (rows) => {
      await run(rows).catch(() => {});
      return run(rows);
    });

    expect(faults.doubled).toBeGreaterThan(0);
  });

  it('The soak counts errors that no call has requested', async () => {
    const report = await sabotaged((run) => async (rows) => {
      const results = await run(rows);
      return rows.map((row, index) =>
        row % 10 === 0 ? new RangeError('out of the blue') : results[index],
      );
    });

    expect(report.faults.unexpected).toBeGreaterThan(0);
    expect(table(report)).toContain('ended with other: RangeError: out of the blue');
    expect(failuresOf(report)).toEqual([expect.stringMatching(/^\d+ unexpected$/)]);
  });

  it('The soak counts calls that are never settled', async () => {
    const report = await soak({
      ...plan,
      rows: 5000,
      patience: 1000,
      subjects: async (ledger) => [forgetful(await functionSubject(ledger, harmless))],
    });

    expect(failuresOf(report)).toEqual([`${report.faults.lost} lost`]);
    expect(report.faults.lost).toBeGreaterThan(0);
  });

  it('The soak fits a line through the memory in use', () => {
    expect(growthOf([5, 5, 5])).toBe(0);
    expect(growthOf([1, 2, 3, 4])).toBeCloseTo(3);
    expect(growthOf([4, 1, 5, 2])).toBeCloseTo(-0.6);
    expect(growthOf([7])).toBe(0);
  });
});

const harmless = { name: 'function', share: 1, idempotent: false, batchTimeout: 1 };

function sabotaged(sabotage: (run: RowsFunction) => RowsFunction): Promise<SoakReport> {
  return soak({
    ...plan,
    rows: 5000,
    subjects: async (ledger) => [await functionSubject(ledger, { ...harmless, sabotage })],
  });
}

/** The subject with a serving that never answers. */
function forgetful({ serving, ...subject }: Subject): Subject {
  return {
    ...subject,
    serving: new Proxy(serving, {
      get: (target, name) =>
        name === 'batchedRun'
          ? () => new Promise(() => {})
          : bound(target, name as keyof LocalServing),
    }),
  };
}

function bound(target: LocalServing, name: keyof LocalServing): unknown {
  const value: unknown = target[name];
  return typeof value === 'function' ? value.bind(target) : value;
}
