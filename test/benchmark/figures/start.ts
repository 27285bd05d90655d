import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';

/** P27: how long an application takes to have ten servings of one model file. */
export async function start(plan: Plan): Promise<Measurement[]> {
  const sides = await interleave(Math.ceil(plan.rounds / 2), {
    'ten servings': () => startOf('servings', 10),
    'one serving': () => startOf('servings', 1),
    'ten sessions alone': () => startOf('sessions', 10),
    'one session alone': () => startOf('sessions', 1),
  });
  return [
    compare({
      figure: 'P27',
      title: 'start of an application, ten servings of one file',
      aim: { atMost: 1.3 },
      by: 'ratio',
      sides,
      sideUnit: 'ms',
    }),
  ];
}

/** Milliseconds from the start of a process. */
async function startOf(what: 'servings' | 'sessions', count: number): Promise<number> {
  const script = fileURLToPath(new URL(`../contenders/start-${what}.js`, import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [script, `${count}`]);
  return Number(stdout);
}
