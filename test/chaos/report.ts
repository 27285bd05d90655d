import type { Scenario } from './scenario.js';
import type { Outcome } from './stage.js';

const columns: Readonly<Record<string, (outcome: Outcome) => number>> = {
  calls: ({ tallies }) => sum(tallies.map(({ calls }) => calls)),
  failed: ({ tallies }) => sum(tallies.map(({ failed, lost }) => failed.length - lost)),
  wrong: ({ tallies }) => sum(tallies.map(({ wrong }) => wrong)),
  restarts: ({ restarts }) => restarts,
  'p50 ms': ({ tallies }) => Math.max(...tallies.map((tally) => tally.latency(0.5))),
  'p99 ms': ({ tallies }) => Math.max(...tallies.map((tally) => tally.latency(0.99))),
  'gap ms': ({ tallies }) => Math.max(...tallies.map(({ longestGap }) => longestGap)),
};

const line = (first: string, cells: readonly string[]): string =>
  first.padEnd(64) + cells.map((cell) => cell.padStart(9)).join('');

export const title = line('', [...Object.keys(columns), 'promises']);

/** A line of the table. */
export function row({ name, title: words }: Scenario, outcome: Outcome): string {
  const cells = Object.values(columns).map((figure) => figure(outcome).toFixed(0));
  const kept = outcome.findings.filter(({ isKept }) => isKept).length;
  return line(`${name}: ${words}`, [...cells, `${kept}/${outcome.findings.length}`]);
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
