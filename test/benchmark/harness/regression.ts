import type { Figure, Measurement } from './measurement.js';
import { numberText } from './report.js';

/** Medians of an earlier run, by figure and title, with the machine that they are from. */
export type Recorded = {
  readonly [figure in Figure]?: {
    readonly machine: string;
    readonly medians: Readonly<Record<string, number>>;
  };
};

export interface Verdict {
  readonly figure: Figure;
  readonly title: string;
  readonly unit: string;
  readonly recorded: number | undefined;
  readonly measured: number;
  /** The worst median that is accepted. */
  readonly limit: number | undefined;
  /**
   * `unclear`: the median is beyond the limit, but a quarter of the rounds or more is not.
   */
  readonly outcome: 'kept' | 'worse' | 'unclear' | 'new';
}

/** A fall by less than this part is taken for noise. */
const tolerance = 0.2;

/** Compares all measurements that can become worse. */
export function againstRecorded(
  measurements: readonly Measurement[],
  recorded: Recorded,
): Verdict[] {
  return measurements
    .filter((measurement) => betterOf(measurement) !== undefined)
    .map((measurement) => verdictOf(measurement, recorded));
}

function verdictOf(measurement: Measurement, all: Recorded): Verdict {
  const { figure, title, unit, reached } = measurement;
  const recorded = all[figure]?.medians[title];
  const verdict = { figure, title, unit, recorded, measured: reached.median };
  if (recorded === undefined) {
    return { ...verdict, limit: undefined, outcome: 'new' };
  }
  const limit = limitOf(measurement, recorded);
  const isBeyond = (value: number): boolean =>
    betterOf(measurement) === 'higher' ? value < limit : value > limit;
  // The better end of the middle half of the rounds.
  const best = betterOf(measurement) === 'higher' ? reached.high : reached.low;
  if (!isBeyond(reached.median)) {
    return { ...verdict, limit, outcome: 'kept' };
  }
  return { ...verdict, limit, outcome: isBeyond(best) ? 'worse' : 'unclear' };
}

/**
 * A ratio falls by a fifth, or its inverse does. A difference may be next to nothing, of which a
 * fifth is only noise: there a fifth of the aim counts where that is more.
 */
function limitOf(measurement: Measurement, recorded: number): number {
  if (measurement.unit === 'x') {
    return betterOf(measurement) === 'higher'
      ? recorded * (1 - tolerance)
      : recorded / (1 - tolerance);
  }
  const scale = Math.max(Math.abs(recorded), Math.abs(aimOf(measurement)));
  return recorded + (betterOf(measurement) === 'higher' ? -1 : 1) * tolerance * scale;
}

function betterOf({ aim, better }: Measurement): Measurement['better'] {
  if (!aim) {
    return better;
  }
  return 'atLeast' in aim ? 'higher' : 'lower';
}

function aimOf({ aim }: Measurement): number {
  if (!aim) {
    return 0;
  }
  return 'atLeast' in aim ? aim.atLeast : aim.atMost;
}

/** The record with these measurements in place of those of the same figures. */
export function record(
  measurements: readonly Measurement[],
  machine: string,
  recorded: Recorded,
): Recorded {
  const figures = new Set(measurements.map(({ figure }) => figure));
  const added = [...figures].map((figure) => {
    const own = measurements.filter((measurement) => measurement.figure === figure);
    const medians = own.map(
      ({ title, reached }) => [title, Number(numberText(reached.median))] as const,
    );
    return [figure, { machine, medians: Object.fromEntries(medians) }] as const;
  });
  return Object.fromEntries(
    Object.entries({ ...recorded, ...Object.fromEntries(added) }).toSorted(
      ([one], [other]) => Number(one.slice(1)) - Number(other.slice(1)),
    ),
  );
}
