import { type Aim, type Measurement, meets } from './measurement.js';
import type { Summary } from './statistics.js';

/** The measurements as a table for the terminal. */
export function table(measurements: readonly Measurement[]): string {
  const rows = measurements.map((measurement) => [
    measurement.figure,
    measurement.title,
    measurement.aim ? `${aimText(measurement.aim)} ${measurement.unit}` : '',
    `${rangeText(measurement.reached)} ${measurement.unit}`,
    { true: 'yes', false: 'NO', undefined: '' }[`${meets(measurement)}`],
    sidesText(measurement),
  ]);
  return columns([['', 'what', 'aim', 'reached (middle half)', 'met', 'sides'], ...rows]);
}

export function aimText(aim: Aim): string {
  return 'atLeast' in aim ? `>= ${aim.atLeast}` : `<= ${aim.atMost}`;
}

export function rangeText({ median, low, high }: Summary): string {
  return `${numberText(median)} (${numberText(low)} - ${numberText(high)})`;
}

/** Three significant digits, and no more decimals than that takes. */
export function numberText(value: number): string {
  const decimals = value === 0 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(decimals, 4));
}

function sidesText({ sides, sideUnit }: Measurement): string {
  const texts = Object.entries(sides).map(([name, { median }]) => `${name} ${numberText(median)}`);
  return `${texts.join(', ')} ${sideUnit}`;
}

/** Rows of cells, the first of them the headline, as aligned lines. */
export function columns(rows: readonly (readonly string[])[]): string {
  const widths =
    rows[0]?.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0))) ?? [];
  return rows
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}
