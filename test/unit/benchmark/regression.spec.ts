import { describe, expect, it } from '@jest/globals';
import type { Aim, Measurement } from '../../benchmark/harness/measurement.js';
import { againstRecorded, record, type Recorded } from '../../benchmark/harness/regression.js';
import { regressionText } from '../../benchmark/harness/regression-report.js';

function measurement(
  [low, median, high]: readonly [number, number, number],
  rest: Partial<Measurement> = {},
): Measurement {
  return {
    figure: 'P1',
    title: 'title',
    reached: { low, median, high },
    unit: 'x',
    sides: {},
    sideUnit: '',
    ...rest,
  };
}

function recordOf(median: number): Recorded {
  return { P1: { machine: 'machine', medians: { title: median } } };
}

function outcomeOf(measured: Measurement, recorded: number): string | undefined {
  return againstRecorded([measured], recordOf(recorded))[0]?.outcome;
}

const exactly = (value: number): [number, number, number] => [value, value, value];
const atLeast: { aim: Aim } = { aim: { atLeast: 0.9 } };
const atMost: { aim: Aim } = { aim: { atMost: 2 } };
const milliseconds = { aim: { atMost: 0.05 }, unit: 'ms' };

describe('A ratio compared with the recorded one', () => {
  it('is worse when it falls by more than a fifth', () => {
    expect(outcomeOf(measurement(exactly(0.81), atLeast), 1)).toBe('kept');
    expect(outcomeOf(measurement(exactly(0.79), atLeast), 1)).toBe('worse');
  });

  it('is worse when its inverse falls by more than a fifth, where less is better', () => {
    expect(outcomeOf(measurement(exactly(1.24), atMost), 1)).toBe('kept');
    expect(outcomeOf(measurement(exactly(1.26), atMost), 1)).toBe('worse');
  });

  it('is kept when it became much better', () => {
    expect(outcomeOf(measurement(exactly(10), atLeast), 1)).toBe('kept');
    expect(outcomeOf(measurement(exactly(0.1), atMost), 1)).toBe('kept');
  });

  it('needs no aim where the better direction is given, and is left out without either', () => {
    expect(outcomeOf(measurement(exactly(2), { better: 'lower' }), 1)).toBe('worse');
    expect(outcomeOf(measurement(exactly(2), { better: 'higher' }), 1)).toBe('kept');
    expect(outcomeOf(measurement(exactly(2)), 1)).toBeUndefined();
  });
});

describe('A difference compared with the recorded one', () => {
  it('may grow by a fifth of the recorded one', () => {
    expect(outcomeOf(measurement(exactly(0.59), milliseconds), 0.5)).toBe('kept');
    expect(outcomeOf(measurement(exactly(0.61), milliseconds), 0.5)).toBe('worse');
  });

  it.each([0, 0.001, -0.01])('may grow by a fifth of the aim when that is more, from %d', (old) => {
    expect(outcomeOf(measurement(exactly(old + 0.009), milliseconds), old)).toBe('kept');
    expect(outcomeOf(measurement(exactly(old + 0.011), milliseconds), old)).toBe('worse');
  });
});

describe('Rounds that differ much', () => {
  it('make a worse median unclear when the better quarter of the rounds is within the limit', () => {
    expect(outcomeOf(measurement([0.5, 0.7, 0.85], atLeast), 1)).toBe('unclear');
    expect(outcomeOf(measurement([1.2, 1.4, 2], atMost), 1)).toBe('unclear');
  });

  it('are worse when the better quarter of the rounds is beyond the limit, too', () => {
    expect(outcomeOf(measurement([0.5, 0.7, 0.75], atLeast), 1)).toBe('worse');
    expect(outcomeOf(measurement([1.3, 1.4, 2], atMost), 1)).toBe('worse');
  });

  it('are mentioned in the report, with the advice to run again', () => {
    const unclear = measurement([0.5, 0.7, 0.85], atLeast);
    const text = regressionText(againstRecorded([unclear], recordOf(1)), 'recorded.json');
    expect(text).toContain('0 kept, 0 worse, 1 unclear, 0 not recorded');
    expect(text).toMatch(/P1 +title +1\.00 x +0\.800 x +0\.700 x +UNCLEAR/);
    expect(text).toContain('run these again');
  });
});

describe('The record', () => {
  it('holds the medians of all measurements, from which nothing has become worse', () => {
    const measurements = [
      measurement(exactly(0.12345), atLeast),
      measurement(exactly(3), { ...atMost, title: 'other' }),
    ];
    const own = record(measurements, 'here', {});
    expect(own).toEqual({ P1: { machine: 'here', medians: { title: 0.123, other: 3 } } });
    expect(againstRecorded(measurements, own).map(({ outcome }) => outcome)).toEqual([
      'kept',
      'kept',
    ]);
  });

  it('keeps the figures that were not measured, in the order of their numbers', () => {
    const old: Recorded = {
      P10: { machine: 'there', medians: { ten: 1 } },
      P2: { machine: 'there', medians: { two: 2 } },
    };
    const all = record([measurement(exactly(5), { figure: 'P2', title: 'other' })], 'here', old);
    expect(Object.keys(all)).toEqual(['P2', 'P10']);
    expect(all.P2).toEqual({ machine: 'here', medians: { other: 5 } });
    expect(all.P10).toEqual(old.P10);
  });

  it('is not needed: a measurement that it lacks is new', () => {
    const [verdict] = againstRecorded([measurement(exactly(5), atLeast)], {});
    expect(verdict).toMatchObject({ outcome: 'new', recorded: undefined, limit: undefined });
  });
});
