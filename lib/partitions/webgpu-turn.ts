/**
 * Whose turn it is to use WebGPU: that of one session at a time, over all threads and applications of the process.
 *
 * onnxruntime keeps one WebGPU device per process, and dies of two sessions that use it at once:
 * https://github.com/microsoft/onnxruntime/issues/32561
 */
export const webgpuTurn = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT);

/** Blocks the thread until it has the turn, works, and passes the turn on. */
export async function inTurn<T>(turn: Int32Array, work: () => Promise<T>): Promise<T> {
  while (Atomics.compareExchange(turn, 0, 0, 1) === 1) {
    Atomics.wait(turn, 0, 1);
  }
  try {
    return await work();
  } finally {
    Atomics.store(turn, 0, 0);
    Atomics.notify(turn, 0, 1);
  }
}
