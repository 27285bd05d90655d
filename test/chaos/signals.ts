import { setTimeout } from 'node:timers/promises';

/** A process that has ended meanwhile receives nothing. */
export function signalTo(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    if (!isNobody(error)) {
      throw error;
    }
  }
}

/** Resolves when nothing is left of the processes, which have ended, or are about to. */
export async function gone(pids: readonly number[]): Promise<void> {
  while (pids.some(isThere)) {
    await setTimeout(20);
  }
}

function isThere(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return !isNobody(error);
  }
}

function isNobody(error: unknown): boolean {
  return (error as NodeJS.ErrnoException).code === 'ESRCH';
}
