import { threadId } from 'node:worker_threads';

/**
 * The lock for WebGPU: one session at a time, over all threads and applications of the process.
 *
 * onnxruntime keeps one WebGPU device per process, and crashes when two sessions use it at once:
 * https://github.com/microsoft/onnxruntime/issues/32561
 */
export const webgpuTurn = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT);

const FREE = 0;

/** Blocks the thread until it holds the lock, works, and releases the lock. */
export async function inTurn<T>(turn: Int32Array, work: () => Promise<T>): Promise<T> {
  acquire(turn);
  try {
    return await work();
  } finally {
    release(turn, holderOf(threadId));
  }
}

/**
 * Acquires the lock when the thread ends, since its sessions free the device then. The thread that
 * started it releases the lock with {@link releaseTurnOf}.
 */
export function endInTurn(turn: Int32Array): void {
  process.once('exit', () => acquire(turn));
}

/** Releases the lock of a thread that has ended, if it held it. */
export function releaseTurnOf(ended: number): void {
  release(new Int32Array(webgpuTurn), holderOf(ended));
}

/** Blocks the thread until it holds the lock; returns at once if it holds it already. */
function acquire(turn: Int32Array): void {
  const own = holderOf(threadId);
  const tryAcquire = (): number => Atomics.compareExchange(turn, 0, FREE, own);
  for (let holder = tryAcquire(); holder !== FREE && holder !== own; holder = tryAcquire()) {
    Atomics.wait(turn, 0, holder);
  }
}

/** Not 0, which is the number of the main thread. */
function holderOf(thread: number): number {
  return thread + 1;
}

function release(turn: Int32Array, holder: number): void {
  if (Atomics.compareExchange(turn, 0, holder, FREE) === holder) {
    Atomics.notify(turn, 0, 1);
  }
}
