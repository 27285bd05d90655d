import { type Summary, summarize } from './statistics.js';

/** One line of the report: what was compared, and what came out of it. */
export interface Measurement {
  readonly figure: Figure;
  readonly title: string;
  readonly reached: Summary;
  readonly unit: string;
  readonly aim?: Aim;
  /** Where there is no aim: which change is for the better. */
  readonly better?: 'higher' | 'lower';
  readonly sides: Readonly<Record<string, Summary>>;
  readonly sideUnit: string;
}

export type Figure =
  | 'P1'
  | 'P2'
  | 'P3'
  | 'P4'
  | 'P5'
  | 'P6'
  | 'P7'
  | 'P8'
  | 'P9'
  | 'P10'
  | 'P11'
  | 'P12'
  | 'P13'
  | 'P14'
  | 'P15'
  | 'P16'
  | 'P17'
  | 'P18'
  | 'P19'
  | 'P20'
  | 'P21'
  | 'P22'
  | 'P23'
  | 'P24'
  | 'P25'
  | 'P26'
  | 'P27'
  | 'P28'
  | 'P29';

export type Aim = { readonly atLeast: number } | { readonly atMost: number };

export interface Comparison {
  readonly figure: Figure;
  readonly title: string;
  readonly aim?: Aim;
  readonly better?: 'higher' | 'lower';
  readonly by: 'ratio' | 'difference';
  /**
   * Values round by round. The first side is compared with the second; any others stand beside
   * them.
   */
  readonly sides: Readonly<Record<string, readonly number[]>>;
  readonly sideUnit: string;
}

/**
 * Compares round by round, so that a slow moment of the machine, which hits both sides, cancels
 * out.
 */
export function compare({ by, sides, ...rest }: Comparison): Measurement {
  const [left = [], right = []] = Object.values(sides);
  const operation = by === 'ratio' ? ratio : difference;
  return {
    ...rest,
    reached: summarize(left.map((value, round) => operation(value, right[round] ?? NaN))),
    unit: by === 'ratio' ? 'x' : rest.sideUnit,
    sides: Object.fromEntries(
      Object.entries(sides).map(([name, values]) => [name, summarize(values)]),
    ),
  };
}

export function meets({ reached, aim }: Measurement): boolean | undefined {
  if (!aim) {
    return undefined;
  }
  return 'atLeast' in aim ? reached.median >= aim.atLeast : reached.median <= aim.atMost;
}

const ratio = (left: number, right: number): number => left / right;
const difference = (left: number, right: number): number => left - right;
