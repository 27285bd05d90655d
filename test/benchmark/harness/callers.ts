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
  { callers, rowsPerCall, rows, warmup }: Callers,
  call: () => Promise<unknown>,
): Promise<number> {
  let [done, start, end] = [0, 0, 0];
  await Promise.all(
    Array.from({ length: callers }, async () => {
      while (end === 0) {
        await call();
        done += rowsPerCall;
        if (start === 0 && done >= warmup) start = performance.now();
        if (end === 0 && done >= warmup + rows) end = performance.now();
      }
    }),
  );
  return (rows / (end - start)) * 1000;
}
