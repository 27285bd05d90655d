import { threadId } from 'node:worker_threads';

/**
 * Whose turn it is to use WebGPU: that of one session at a time, over all threads and applications
 * of the process.
 *
 * onnxruntime keeps one WebGPU device per process, and dies of two sessions that use it at once:
 * https://github.com/microsoft/onnxruntime/issues/32561
 */
export const webgpuTurn = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT);

const NOBODY = 0;

/** Blocks the thread until it has the turn, works, and passes the turn on. */
export async function inTurn<T>(turn: Int32Array, work: () => Promise<T>): Promise<T> {
  awaitTurn(turn);
  try {
    return await work();
  } finally {
    passOn(turn, holderOf(threadId));
  }
}

/**
 * Has the thread end in its turn, too: what its sessions hold of the device is freed with it.
 * Whoever started it passes the turn on.
 */
export function endInTurn(turn: Int32Array): void {
  process.once('exit', () => awaitTurn(turn));
}

/** Passes on the turn of a thread that has ended, where it had it: nobody else would. */
export function passOnFor(ended: number): void {
  passOn(new Int32Array(webgpuTurn), holderOf(ended));
}

/** Blocks the thread until it has the turn, unless it has it already. */
function awaitTurn(turn: Int32Array): void {
  const own = holderOf(threadId);
  for (
    let holder = take(turn, own);
    holder !== NOBODY && holder !== own;
    holder = take(turn, own)
  ) {
    Atomics.wait(turn, 0, holder);
  }
}

/** The number of the main thread is 0. */
function holderOf(thread: number): number {
  return thread + 1;
}

/** Takes the turn if nobody has it; says who had. */
function take(turn: Int32Array, own: number): number {
  return Atomics.compareExchange(turn, 0, NOBODY, own);
}

function passOn(turn: Int32Array, holder: number): void {
  if (Atomics.compareExchange(turn, 0, holder, NOBODY) === holder) {
    Atomics.notify(turn, 0, 1);
  }
}
