import { appendFileSync, existsSync } from 'node:fs';
import type { BatchFunction } from 'nestjs-serving';
import type { SquareRow, SquaresOptions } from '../options.js';

const sleeper = new Int32Array(new SharedArrayBuffer(4));
const memory: unknown[] = [];

const faults: Readonly<Record<NonNullable<SquareRow['fault']>, () => void>> = {
  aborts: () => process.kill(process.pid, 'SIGABRT'),
  'fills its memory': () => {
    for (;;) {
      memory.push(Array.from({ length: 1e5 }, (_, i) => `${i}`));
    }
  },
};

/** Squares of numbers; what its options and its rows say happens before. */
export default function squares({ options }: { readonly options: SquaresOptions }): BatchFunction {
  const { delay = 0, diary, curse, gate } = options;
  return (rows: SquareRow[]) => {
    if (diary !== undefined) {
      appendFileSync(diary, `${rows.map(({ id }) => id).join(' ')}\n`);
    }
    if (curse !== undefined && existsSync(curse)) {
      process.exit(3);
    }
    rows.forEach(({ fault }) => fault && faults[fault]());
    if (gate !== undefined && rows.some(({ held }) => held)) {
      waitAt(gate);
    }
    if (delay > 0) {
      sleep(delay);
    }
    return rows.map(({ id }) => id ** 2);
  };
}

function waitAt(gate: string): void {
  while (existsSync(gate)) {
    sleep(2);
  }
}

/** Blocks the thread, as native code does. */
function sleep(milliseconds: number): void {
  Atomics.wait(sleeper, 0, 0, milliseconds);
}
