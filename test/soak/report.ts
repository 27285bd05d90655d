import { mebibytes, type SoakReport } from './soak.js';

/**
 * The most by which what is in use after garbage collection may have grown from the second fifth of
 * the rounds to the last, in bytes.
 */
export const MOST_GROWTH = 8 * 2 ** 20;

/** What was wrong, in words; nothing where all was well. */
export function failuresOf({ faults, heapGrowth }: SoakReport): string[] {
  const wrong = Object.entries(faults).filter(([, count]) => count > 0);
  const failures = wrong.map(([kind, count]) => `${count} ${kind}`);
  return heapGrowth > MOST_GROWTH
    ? [...failures, `the heap grew by ${mebibytes(heapGrowth)} MiB`]
    : failures;
}

export function table(report: SoakReport): string {
  const { rows, answered, seconds, faults, details, ends, heapGrowth, rssGrowth, memory } = report;
  const lines = [...ends].flatMap(([serving, ways]) =>
    [...ways]
      .toSorted(([, a], [, b]) => b.rows - a.rows)
      .map(([how, { calls, rows: ended }]) =>
        [serving, how, calls, ended]
          .map((cell, column) => (column < 2 ? String(cell).padEnd(28) : String(cell).padStart(10)))
          .join(' '),
      ),
  );
  return [
    `${'serving'.padEnd(28)} ${'ended'.padEnd(28)} ${'calls'.padStart(10)} ${'rows'.padStart(10)}`,
    ...lines,
    '',
    `${rows} rows in ${seconds.toFixed(0)} s (${Math.round(rows / seconds)}/s), ${answered} answered and checked`,
    Object.entries(faults)
      .map(([kind, count]) => `${kind} ${count}`)
      .join(', '),
    `heap ${signed(heapGrowth)} MiB over ${memory.length} rounds (at most ${signed(MOST_GROWTH)}), process ${signed(rssGrowth)} MiB`,
    ...details,
  ].join('\n');
}

function signed(bytes: number): string {
  return `${bytes < 0 ? '' : '+'}${mebibytes(bytes)}`;
}
