import { createServing, type LocalServing, Tensor } from 'nestjs-serving';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { threadTime } from '../harness/thread-time.js';

const streams = 64;
const file = 'sample/03-audio-streams/model/silero_vad_v6.onnx';
const sr = new Tensor('int64', [16_000n], []);
const input = new Tensor('float32', new Float32Array(576).fill(0.01), [1, 576]);

interface Stream {
  step(): Promise<unknown>;
  close(): Promise<void>;
}

/** P19: streams of audio whose state stays in sessions, beside streams that carry theirs. */
export async function sessions({ rounds, seconds }: Plan): Promise<Measurement[]> {
  const options = { batchSize: streams, batchTimeout: 2 };
  const kept = createServing<object, unknown, never, never>({
    name: 'sessions',
    model: { file, state: { state: 'stateN' }, session: { intraOpNumThreads: 1 } },
    ...options,
  });
  const carried = createServing<object, { stateN: Tensor }, never, never>({
    name: 'carried',
    model: {
      file,
      outputs: { stateN: { batchAxis: 1 } },
      session: { intraOpNumThreads: 1 },
    },
    ...options,
  });
  await Promise.all([kept.start(), carried.start()]);
  const steps = Math.ceil((seconds * 8000) / streams);
  const runs = await interleave(rounds, {
    sessions: () => costOf(steps, () => inSession(kept)),
    'state with the caller': () => costOf(steps, () => withState(carried)),
  });
  await Promise.all([kept.close(), carried.close()]);
  const sidesOf = (value: (cost: Cost) => number) => ({
    sessions: runs.sessions.map(value),
    'state with the caller': runs['state with the caller'].map(value),
  });
  return [
    compare({
      figure: 'P19',
      title: `${streams} audio streams, steps of a core's second`,
      by: 'ratio',
      sides: sidesOf(({ perCore }) => perCore),
      sideUnit: 'steps/s',
    }),
    compare({
      figure: 'P19',
      title: `${streams} audio streams, main thread's time of a step`,
      better: 'lower',
      by: 'ratio',
      sides: sidesOf(({ mainThread }) => mainThread),
      sideUnit: 'µs',
    }),
  ];
}

interface Cost {
  /** Steps for each second of CPU time of the whole process. */
  readonly perCore: number;
  /** Microseconds of the main thread for a step. */
  readonly mainThread: number;
}

async function costOf(steps: number, open: () => Stream): Promise<Cost> {
  const opened = Array.from({ length: streams }, open);
  const [before, main] = [process.cpuUsage(), threadTime()];
  await Promise.all(
    opened.map(async (stream) => {
      for (let count = 0; count < steps; count++) {
        await stream.step();
      }
    }),
  );
  const mainThread = (threadTime() - main) / (steps * streams);
  const { user, system } = process.cpuUsage(before);
  await Promise.all(opened.map((stream) => stream.close()));
  return { perCore: (steps * streams * 1e6) / (user + system), mainThread };
}

function inSession(serving: LocalServing<object>): Stream {
  const session = serving.open();
  return { step: () => session.run({ input, sr }), close: () => session.close() };
}

function withState(serving: LocalServing<object, { readonly stateN: Tensor }>): Stream {
  let state: Tensor = new Tensor('float32', new Float32Array(256), [2, 1, 128]);
  const step = async (): Promise<void> => {
    state = (await serving.batchedRun({ input, state, sr })).stateN;
  };
  return { step, close: async () => {} };
}
