import { threadId } from 'node:worker_threads';

/**
 * The process's WebGPU lock: onnxruntime crashes if two sessions use its only device concurrently,
 * see https://github.com/microsoft/onnxruntime/issues/32561
 */
export const webgpuTurn = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT);

const FREE = 0;

export async function inTurn<T>(turn: Int32Array, work: () => Promise<T>): Promise<T> {
  acquire(turn);
  try {
    return await work();
  } finally {
    release(turn, holderOf(threadId));
  }
}

/**
 * Acquires the lock when the thread ends, since its sessions free the device then. The thread's
 * starter calls {@link releaseTurnOf}.
 */
export function endInTurn(turn: Int32Array): void {
  process.once('exit', () => acquire(turn));
}

export function releaseTurnOf(ended: number): void {
  release(new Int32Array(webgpuTurn), holderOf(ended));
}

/** Blocks the thread until it holds the lock. */
function acquire(turn: Int32Array): void {
  const own = holderOf(threadId);
  const tryAcquire = (): number => Atomics.compareExchange(turn, 0, FREE, own);
  for (let holder = tryAcquire(); holder !== FREE && holder !== own; holder = tryAcquire()) {
    Atomics.wait(turn, 0, holder);
  }
}

/** Never 0, which is `FREE` and the main thread's number. */
function holderOf(thread: number): number {
  return thread + 1;
}

function release(turn: Int32Array, holder: number): void {
  if (Atomics.compareExchange(turn, 0, holder, FREE) === holder) {
    Atomics.notify(turn, 0, 1);
  }
}
