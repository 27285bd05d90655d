import { threadTime } from './thread-time.js';

export interface Callers {
  readonly callers: number;
  readonly rowsPerCall: number;
  /** Rows on the clock. */
  readonly rows: number;
  /**
   * Rows before the clock starts; a multiple of the batch size, so that it starts and stops at the
   * same point of a batch.
   */
  readonly warmup: number;
}

/** Rows a second when every caller calls again as soon as it has its reply. */
export async function rowsPerSecond(
  callers: Callers,
  call: () => Promise<unknown>,
): Promise<number> {
  const { duration } = await timesOf(callers, call);
  return (callers.rows / duration) * 1000;
}

/** Microseconds of the main thread that a row takes. */
export async function mainThreadTimePerRow(
  callers: Callers,
  call: () => Promise<unknown>,
): Promise<number> {
  const { cpu } = await timesOf(callers, call);
  return cpu / callers.rows;
}

/** Microseconds a row: makes `waiting` calls together, and the next ones when all are answered. */
export async function costPerRow(
  rows: number,
  waiting: number,
  call: (index: number) => Promise<unknown>,
  rowsPerCall = 1,
): Promise<number> {
  const start = performance.now();
  for (let done = 0; done < rows; done += waiting * rowsPerCall) {
    await Promise.all(Array.from({ length: waiting }, (_, index) => call(index)));
  }
  return ((performance.now() - start) / rows) * 1000;
}

/** From the first row on the clock to the last: milliseconds, and microseconds of this thread. */
async function timesOf(
  { callers, rowsPerCall, rows, warmup }: Callers,
  call: () => Promise<unknown>,
): Promise<{ duration: number; cpu: number }> {
  let [done, start, end, cpu] = [0, 0, 0, 0];
  await Promise.all(
    Array.from({ length: callers }, async () => {
      while (end === 0) {
        await call();
        done += rowsPerCall;
        if (start === 0 && done >= warmup) {
          start = performance.now();
          cpu = threadTime();
        }
        if (end === 0 && done >= warmup + rows) {
          end = performance.now();
          cpu = threadTime() - cpu;
        }
      }
    }),
  );
  return { duration: end - start, cpu };
}
