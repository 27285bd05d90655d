import * as fc from 'fast-check';
import { standstillOf } from '../benchmark/harness/standstill.js';
import type { Attack, Entry, Outcome } from './entry.js';
import { type Memory, memoryInUse } from './memory.js';

export interface FuzzOptions {
  /** The number of hostile calls. */
  readonly count: number;
  readonly seed: number;
  /** Milliseconds that the event loop may stand still, beyond its longest stretch with valid calls only. */
  readonly mostStandstill: number;
  /** The most calls that are made at once, hostile and valid ones together. */
  readonly volley?: number;
}

/** What became of the calls of one entry. */
export interface FuzzReport {
  readonly entry: string;
  readonly hostile: number;
  readonly valid: number;
  /** How often each outcome was that of a hostile call. */
  readonly outcomes: ReadonlyMap<string, number>;
  /** Each with the seed that leads to it and the least that does. */
  readonly failures: readonly string[];
  readonly standstill: Standstill;
  /** After the first round, halfway, and at the end; none of a single round. */
  readonly memory: readonly Memory[];
}

/** Memory is looked at after so many calls. */
const ROUND = 5000;

/** Volleys of valid calls only, which show what stretches are usual. */
const BASELINES = 20;

/** A call stands still if it does so each time: the collection of garbage does not repeat. */
const TIMES = 3;

/** The longest stretches in which the event loop stood still, in milliseconds. */
interface Standstill {
  validOnly: number;
  /** Of single calls, in volleys that exceeded the limit. */
  call: number;
  words: string;
}

/** Who has had no answer after this many milliseconds will have none. */
const PATIENCE = 30_000;

/**
 * Sends volleys of hostile and valid calls through the entry until as many hostile ones as asked
 * for have had their answers.
 */
export async function fuzz(
  { name, hostile, valid }: Entry,
  { count, seed, mostStandstill, volley = 32 }: FuzzOptions,
): Promise<FuzzReport> {
  const counted = { hostile: 0, valid: 0 };
  const words = new Map<string, number>();
  const failures: string[] = [];
  const memory: Memory[] = [];
  const names = prototypeNames();
  const stray = (error: unknown): unknown =>
    failures.push(`seed ${seed}: nobody caught ${String(error)}`);
  process.on('unhandledRejection', stray).on('uncaughtException', stray);

  const volleys = fc.sample(fc.array(valid, { minLength: volley, maxLength: volley }), {
    seed,
    numRuns: BASELINES,
  });
  const standstill: Standstill = { validOnly: 0, call: 0, words: '' };
  for (const all of volleys) {
    const { ms } = await standstillOf(() => answersOf(all));
    standstill.validOnly = Math.max(standstill.validOnly, ms);
  }

  const shot = (arbitrary: typeof hostile, kind: 'hostile' | 'valid') =>
    arbitrary.map((attack) => ({ attack, kind }));
  const shots = fc.oneof(
    { arbitrary: shot(hostile, 'hostile'), weight: 3 },
    { arbitrary: shot(valid, 'valid'), weight: 1 },
  );
  const property = fc.asyncProperty(
    fc.array(shots, { minLength: 1, maxLength: volley, size: 'max' }),
    async (all) => {
      const attacks = all.map(({ attack }) => attack);
      const { result: outcomes, ms } = await standstillOf(() => answersOf(attacks));
      const answers = all.map((each, i) => ({ ...each, outcome: outcomes[i]! }));
      if (ms > standstill.validOnly + mostStandstill) {
        await findStandstill(attacks, standstill);
      }
      for (const { kind, outcome } of answers) {
        counted[kind]++;
        if (kind === 'hostile') {
          words.set(outcome.word, (words.get(outcome.word) ?? 0) + 1);
        }
      }
      const faulty = answers.find(({ outcome }) => outcome.fault !== undefined);
      if (faulty) {
        throw new Error(`${faulty.kind} call ${String(faulty.attack)}: ${faulty.outcome.fault}`);
      }
      if (prototypeNames() !== names) {
        throw new Error('the prototype of objects, lists or functions has changed');
      }
    },
  );

  try {
    for (let round = 1; counted.hostile < count && failures.length === 0; round++) {
      const numRuns = Math.ceil(Math.min(ROUND, count - counted.hostile) / (volley * 0.375));
      const details = await fc.check(property, { seed: seed + round, numRuns });
      if (details.failed) {
        const least = details.counterexample?.[0]
          .map(({ attack, kind }) => `${kind}: ${String(attack)}`)
          .join('\n    ');
        const { errorInstance, counterexamplePath, numShrinks } = details;
        failures.push(
          `seed ${seed}, round ${round}, path ${counterexamplePath} (shrunk ${numShrinks} times): ${String(errorInstance)}\n    ${least}`,
        );
      }
      if (count > ROUND) {
        memory.push(await memoryInUse());
      }
    }
  } finally {
    process.off('unhandledRejection', stray).off('uncaughtException', stray);
  }
  if (standstill.call > standstill.validOnly + mostStandstill) {
    failures.push(
      `seed ${seed}: the event loop stood still for ${standstill.call.toFixed(0)} ms, and for ` +
        `${standstill.validOnly.toFixed(0)} ms with valid calls only, by ${standstill.words}`,
    );
  }
  const { length } = memory;
  return {
    entry: name,
    ...counted,
    standstill,
    outcomes: words,
    failures,
    memory: length === 0 ? [] : [0, length >> 1, length - 1].map((at) => memory[at]!),
  };
}

/** Each call begins in a turn of its own, so that a stretch is the work of one. */
async function answersOf(attacks: readonly Attack[]): Promise<Outcome[]> {
  const outcomes: Promise<Outcome>[] = [];
  for (const attack of attacks) {
    outcomes.push(answered(attack));
    await new Promise((resolve) => setImmediate(resolve));
  }
  return Promise.all(outcomes);
}

async function findStandstill(attacks: readonly Attack[], standstill: Standstill): Promise<void> {
  for (const attack of attacks) {
    let least = Infinity;
    for (let i = 0; i < TIMES && least > standstill.call; i++) {
      least = Math.min(least, (await standstillOf(() => answered(attack))).ms);
    }
    if (least > standstill.call) {
      Object.assign(standstill, { call: least, words: String(attack) });
    }
  }
}

async function answered(attack: Attack): Promise<Outcome> {
  let timer: NodeJS.Timeout | undefined;
  const silence = new Promise<Outcome>((resolve) => {
    timer = setTimeout(
      () => resolve({ word: 'no answer', fault: `no answer after ${PATIENCE} ms` }),
      PATIENCE,
    );
  });
  const answer = attack.send().catch((error: unknown) => ({
    word: 'threw',
    fault: `could not be judged: ${String((error as Error)?.stack)}`,
  }));
  return Promise.race([answer, silence]).finally(() => clearTimeout(timer));
}

function prototypeNames(): string {
  return [Object, Array, Function, String]
    .map(({ prototype }) => Object.getOwnPropertyNames(prototype).join())
    .join(';');
}
