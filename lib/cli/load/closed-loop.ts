/** Runs `callers` callers, each of which waits for its answer; returns the answers per second. */
export async function closedLoop(
  call: () => Promise<unknown>,
  callers: number,
  seconds: number,
): Promise<number> {
  const begin = performance.now();
  const end = begin + seconds * 1000;
  let answered = 0;
  const caller = async (): Promise<void> => {
    while (performance.now() < end) {
      await call();
      answered++;
    }
  };
  await Promise.all(Array.from({ length: callers }, caller));
  return (answered * 1000) / (performance.now() - begin);
}
