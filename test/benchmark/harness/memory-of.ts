import { readFileSync } from 'node:fs';

/** Megabytes of a process, in which memory that processes share counts in parts. Linux only. */
export function proportionalSetSize(pid: number): number {
  const [, kilobytes] = /^Pss: +(\d+) kB$/m.exec(
    readFileSync(`/proc/${pid}/smaps_rollup`, 'latin1'),
  )!;
  return Number(kilobytes) / 1024;
}
