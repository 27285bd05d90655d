import { existsSync } from 'node:fs';
import { compare, type Measurement } from '../harness/measurement.js';
import { proportionalSetSize } from '../harness/memory-of.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { Contender } from '../http/contender.js';
import { mlpPost } from '../http/posts.js';
import type { Variant } from '../http/server.js';

const [clients, callsPerClient] = [8, 50];

/** P16: the memory of an HTTP application whose model is a serving. */
export async function memory(plan: Plan): Promise<Measurement[]> {
  if (!existsSync('/proc/self/smaps_rollup')) {
    console.warn('P16 is left out: only Linux tells the share of a process in its memory');
    return [];
  }
  const sides = await interleave(Math.ceil(plan.rounds / 3), {
    serving: () => memoryOf('batched'),
    'run per request': () => memoryOf('run per request'),
  });
  return [
    compare({
      figure: 'P16',
      title: 'memory of the application with the MLP',
      aim: { atMost: 40 },
      by: 'difference',
      sides,
      sideUnit: 'MB',
    }),
  ];
}

/** Megabytes of a new process after some hundred calls. */
async function memoryOf(variant: Variant): Promise<number> {
  const contender = await Contender.start(variant, mlpPost);
  await Promise.all(
    Array.from({ length: clients }, async () => {
      for (let call = 0; call < callsPerClient; call++) {
        await contender.reply();
      }
    }),
  );
  const size = proportionalSetSize(contender.pid);
  await contender.close();
  return size;
}
