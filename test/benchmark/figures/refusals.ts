import { withResolvers } from '../../fixtures/async/with-resolvers.js';
import { createServing } from 'nestjs-serving';
import { mainThreadTimePerRow } from '../harness/callers.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { batchSize } from '../models/model.js';

/** P17: what a call costs the event loop that a full queue refuses. */
export async function refusals({ rounds, seconds }: Plan): Promise<Measurement[]> {
  const released = withResolvers();
  const serving = createServing({
    name: 'full',
    model: {
      useFactory: () => async (rows: number[]) => {
        await released.promise;
        return rows;
      },
    },
    batchSize,
    queue: { maxRows: 64 },
  });
  await serving.start();
  const waiting = Array.from({ length: 4 * 64 }, () => codeOf(serving.batchedRun(1)));

  const callers = {
    callers: 64,
    rowsPerCall: 1,
    rows: Math.ceil(seconds * 50_000),
    // Until V8 has compiled both sides: a path of errors takes longer than others.
    warmup: 64_000,
  };
  const sides = await interleave(rounds, {
    refused: () => mainThreadTimePerRow(callers, async () => expectRefusal(serving.batchedRun(1))),
    'an error alone': () =>
      mainThreadTimePerRow(callers, () => codeOf(Promise.reject(new Error('the queue is full')))),
  });
  released.resolve();
  await Promise.all(waiting);
  await serving.close();

  return [
    compare({
      figure: 'P17',
      title: 'event loop, a call that a full queue refuses, beside a rejected promise',
      aim: { atMost: 3 },
      by: 'ratio',
      sides,
      sideUnit: 'µs',
    }),
  ];
}

async function expectRefusal(call: Promise<unknown>): Promise<void> {
  const code = await codeOf(call);
  if (code !== 'SERVING_OVERLOADED') {
    throw new Error(`the call was not refused: ${code}`);
  }
}

/** Handles the error, as every caller does. */
function codeOf(call: Promise<unknown>): Promise<string | undefined> {
  return call.then(
    () => undefined,
    (error: { code?: string }) => error.code,
  );
}
