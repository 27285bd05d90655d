import { setTimeout } from 'node:timers/promises';
import { Caller } from './caller.js';
import { type Faults, Ledger } from './ledger.js';
import { growthOf, type MemorySample, sampleMemory } from './memory.js';
import { Random } from './random.js';
import type { Subject } from './subject.js';

export interface SoakOptions {
  /** How many rows are sent, if there is time. */
  readonly rows: number;
  readonly minutes: number;
  readonly seed: number;
  /** How often everything comes to rest, and is looked at. */
  readonly rounds: number;
  readonly subjects: (ledger: Ledger) => Promise<readonly Subject[]>;
  /**
   * Milliseconds without a call after which those that wait wait for ever.
   *
   * @default 60000
   */
  readonly patience?: number;
  readonly log?: (line: string) => void;
}

export interface SoakReport {
  readonly rows: number;
  readonly answered: number;
  readonly seconds: number;
  readonly faults: Faults;
  readonly details: readonly string[];
  readonly ends: Ledger['ends'];
  /** After each round. */
  readonly memory: readonly MemorySample[];
  /**
   * Bytes by which the heap, and the memory of the process, have grown, but for the first fifth of
   * the rounds.
   */
  readonly heapGrowth: number;
  readonly rssGrowth: number;
}

const CALLERS = 100;

/** Sends rows at random through servings, and follows each of them to its end. */
export async function soak({
  rows,
  minutes,
  seed,
  rounds,
  subjects: start,
  patience = 60_000,
  log,
}: SoakOptions): Promise<SoakReport> {
  const ledger = new Ledger(rows + CALLERS * 1000);
  const subjects = await start(ledger);
  const callers = Array.from(
    { length: CALLERS },
    (_, index) => new Caller(subjects, ledger, new Random(seed * CALLERS + index)),
  );
  const memory: MemorySample[] = [];
  const startedAt = performance.now();
  const end = startedAt + minutes * 60_000;
  for (
    let round = 1;
    round <= rounds && performance.now() < end && ledger.faults.lost === 0;
    round++
  ) {
    const calling = callers.map((caller) => caller.callUntil((rows * round) / rounds, end));
    await settled(ledger, Promise.all(calling), patience);
    checkRest(ledger, subjects);
    const sample = await sampleMemory();
    memory.push(sample);
    log?.(
      `${ledger.rows} rows, ${mebibytes(sample.heap)} MiB in use, ${mebibytes(sample.rss)} MiB of memory`,
    );
  }
  const seconds = (performance.now() - startedAt) / 1000;
  await Promise.all(subjects.map(({ serving }) => serving.close()));

  const steady = memory.slice(Math.floor(memory.length / 5));
  return {
    rows: ledger.rows,
    answered: ledger.answered,
    seconds,
    faults: ledger.faults,
    details: ledger.details,
    ends: ledger.ends,
    memory,
    heapGrowth: growthOf(steady.map(({ heap }) => heap)),
    rssGrowth: growthOf(steady.map(({ rss }) => rss)),
  };
}

/**
 * Resolves when all callers are done, or nothing has happened for so long that it never will: then
 * the calls that are open are lost.
 */
async function settled(ledger: Ledger, calling: Promise<unknown>, patience: number): Promise<void> {
  const over = new AbortController();
  const done = calling.then(() => over.abort());
  for (let rows = -1; rows !== ledger.rows && !over.signal.aborted;) {
    rows = ledger.rows;
    await Promise.race([done, setTimeout(patience, undefined, over).catch(() => done)]);
  }
  if (!over.signal.aborted) {
    ledger.fault('lost', `${ledger.open} calls were never settled`, ledger.open);
  }
}

/** Nothing may wait where nobody calls. */
function checkRest(ledger: Ledger, subjects: readonly Subject[]): void {
  for (const { name, serving } of subjects) {
    if (serving.queued !== 0) {
      ledger.fault(
        'unexpected',
        `${serving.queued} rows wait in the queue of ${name}, and nobody for them`,
      );
    }
  }
}

export function mebibytes(bytes: number): string {
  return (bytes / 2 ** 20).toFixed(1);
}
