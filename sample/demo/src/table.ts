import type { Measurement } from './measure.js';

const line = (label: string, cells: readonly string[]) =>
  label.padEnd(26) + cells.map((cell) => cell.padStart(16)).join('');
const ms = (value: number) => `${value.toFixed(value < 10 ? 1 : 0)} ms`;

const figures: Readonly<Record<string, (measurement: Measurement) => string>> = {
  requests: ({ requests }) => `${requests}`,
  failed: ({ failed }) => `${failed}`,
  batches: ({ batches }) => (batches ? `${batches}` : '-'),
  'mean fill': ({ batches, meanFill }) => (batches ? `${(meanFill * 100).toFixed(0)} %` : '-'),
  'requests per second': ({ perSecond }) => perSecond.toFixed(0),
  'latency p50': ({ p50 }) => ms(p50),
  'latency p99': ({ p99 }) => ms(p99),
  'event loop late, p99': ({ delayP99 }) => ms(delayP99),
  'event loop late, at most': ({ delayMax }) => ms(delayMax),
};

/** A column for each measurement, under its name. */
export function tableOf(measurements: Readonly<Record<string, Measurement>>): string {
  const head = line('', Object.keys(measurements));
  const body = Object.entries(figures).map(([label, cell]) =>
    line(label, Object.values(measurements).map(cell)),
  );
  return [head, ...body].join('\n');
}
