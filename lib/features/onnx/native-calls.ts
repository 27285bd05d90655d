import { getEnvironmentData, setEnvironmentData, threadId } from 'node:worker_threads';

/** Names the memory, also for other copies of the package. */
const NAME = 'nestjs-serving: native calls';

/** Milliseconds that an exit waits. */
const LONGEST_WAIT = 10_000;

/** Places in the memory. */
export const CALLS = 0;
export const IS_CLOSED = 1;
const OWNER = 2;

/**
 * Counts native calls of threads. A process that exits while one is under way aborts, so an exit
 * waits for them, and others do not begin.
 */
export const nativeCalls = (getEnvironmentData(NAME) as Int32Array | undefined) ?? counted();

function counted(): Int32Array {
  const calls = new Int32Array(new SharedArrayBuffer(3 * Int32Array.BYTES_PER_ELEMENT));
  calls[OWNER] = threadId;
  setEnvironmentData(NAME, calls);
  process.once('exit', () => endCalls(calls));
  return calls;
}

function endCalls(calls: Int32Array): void {
  Atomics.store(calls, IS_CLOSED, 1);
  const end = performance.now() + LONGEST_WAIT;
  for (let left = LONGEST_WAIT; left > 0; left = end - performance.now()) {
    const count = Atomics.load(calls, CALLS);
    if (count === 0) {
      return;
    }
    Atomics.wait(calls, CALLS, count, left);
  }
}

/** Never resolves once the process exits. */
export async function callNative<T>(work: () => Promise<T>): Promise<T> {
  if (nativeCalls[OWNER] === threadId) {
    return work();
  }
  Atomics.add(nativeCalls, CALLS, 1);
  try {
    if (Atomics.load(nativeCalls, IS_CLOSED) === 1) {
      endCall();
      Atomics.wait(nativeCalls, IS_CLOSED, 1);
    }
    return await work();
  } finally {
    endCall();
  }
}

function endCall(): void {
  Atomics.sub(nativeCalls, CALLS, 1);
  Atomics.notify(nativeCalls, CALLS);
}

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
