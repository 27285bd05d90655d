import { Worker } from 'node:worker_threads';

const script = `
  const { workerData: { beats, seconds } } = require('node:worker_threads');
  const { writeSync } = require('node:fs');
  let last = -1;
  setInterval(() => {
    const beat = Atomics.load(beats, 0);
    if (beat === last) {
      writeSync(2, 'failed: the event loop has not turned for ' + seconds + ' s\\n');
      process.kill(process.pid, 'SIGKILL');
    }
    last = beat;
  }, seconds * 1000);
`;

/**
 * Ends the process when its event loop has not turned for so long: what hangs cannot tell that it
 * does.
 */
export function watchEventLoop(seconds: number): () => Promise<number> {
  const beats = new Int32Array(new SharedArrayBuffer(4));
  const worker = new Worker(script, { eval: true, workerData: { beats, seconds } });
  const timer = setInterval(() => Atomics.add(beats, 0, 1), (seconds * 1000) / 10);
  return () => {
    clearInterval(timer);
    return worker.terminate();
  };
}
