import { type CallOptions, createServing, type LocalServing, type Tensor } from 'nestjs-serving';
import { rowsPerSecond } from '../harness/callers.js';
import { encoder } from '../models/encoder.js';
import { batchSize, session } from '../models/model.js';
import { randomRows } from '../models/random.js';

/** What every call of P8 and P9 asks for. */
export const row = randomRows(1, encoder.rowShape);

/** How long callers of P8 and P9 wait for an answer, in the time that a full batch takes. */
export const patienceInBatches = 20;

/** What a serving can do, by callers who wait for their answers before they call again. */
export interface Capacity {
  /** Rows a second. */
  readonly rate: number;
  /** Milliseconds. */
  readonly batchTime: number;
  readonly patience: number;
}

/**
 * The serving of P8 and P9: its model keeps its thread so busy that the main thread is not what
 * limits it.
 */
export async function encoderServing(
  queue: { readonly maxRows?: number } = {},
): Promise<LocalServing> {
  const serving = createServing({
    name: encoder.name,
    model: { file: encoder.path, session },
    batchSize,
    queue,
  });
  await serving.start();
  return serving;
}

export async function capacityOf(
  serving: LocalServing,
  seconds: number,
  input: Tensor = row,
): Promise<Capacity> {
  const measure = (batches: number): Promise<number> =>
    rowsPerSecond(
      { callers: 4 * batchSize, rowsPerCall: 1, rows: batches * batchSize, warmup: 2 * batchSize },
      () => serving.batchedRun(input),
    );
  const rate = await measure(Math.ceil(((await measure(4)) * seconds) / batchSize));
  const batchTime = (batchSize / rate) * 1000;
  return { rate, batchTime, patience: patienceInBatches * batchTime };
}

/**
 * A call whose caller waits from its arrival on, also while the event loop lets it wait to be made.
 */
export function timedCall(
  serving: LocalServing,
  { patience }: Capacity,
  options: CallOptions = {},
) {
  return (arrival: number): Promise<unknown> =>
    serving.batchedRun(row, {
      ...options,
      timeout: Math.max(0, arrival + patience - performance.now()),
    });
}
