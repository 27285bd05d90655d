import { writeSync } from 'node:fs';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { InvalidOutputError, toWire, type WireError } from '../../errors.js';
import { decode, encode, lengthOf, MOST_BYTES, owned, type Packet } from './codec.js';
import {
  BatchClaims,
  type ExitMessage,
  MARKS,
  type RevokeRequest,
  type RevokeReply,
  type WorkerRequest,
  type WorkerTask,
} from './worker-protocol.js';
import { WorkerHost } from './worker-host.js';

/**
 * A process has two threads. The first hears and speaks to the parent also while native code blocks
 * the second, which has the session: the next batch comes in, and the last output goes out, while
 * one runs; and when the parent dies, the process does not outlive it.
 */
if (isMainThread) {
  relay();
} else {
  await host();
}

function relay(): void {
  // A terminal tells the whole group; when to end is for the parent to say.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT']) {
    process.on(signal, () => {});
  }
  // In the middle of native code nothing but a kill is safe.
  process.once('disconnect', () => process.kill(process.pid, 'SIGKILL'));
  process.once('message', (task: Packet) => {
    const first = owned(task);
    const turnstile = new BatchClaims();
    const worker = new Worker(new URL(import.meta.url), {
      workerData: { task: first, passed: turnstile.memory } satisfies HostData,
      transferList: buffersOf(first),
    });
    let failure: WireError | undefined;
    process.on('message', (request: Packet | RevokeRequest) => {
      if ('revoke' in request) {
        const taken: RevokeReply = { revoked: turnstile.revoke(request.revoke) };
        process.send!(taken, undefined, undefined, () => {});
        return;
      }
      const packet = owned(request);
      worker.postMessage(packet, buffersOf(packet));
    });
    worker.on('message', (reply: Packet) => process.send!(reply, undefined, undefined, () => {}));
    worker.on('error', (error) => (failure = toWire(error)));
    // Nothing is lost on the way: this is the last to be sent.
    worker.on('exit', (code) =>
      process.send!(encode({ failure } satisfies ExitMessage), undefined, undefined, () =>
        process.exit(code),
      ),
    );
  });
}

/** What the second thread is given. */
interface HostData {
  readonly task: Packet;
  readonly passed: SharedArrayBuffer;
}

function buffersOf({ head, views }: Packet): ArrayBuffer[] {
  return [head, ...views].map(({ buffer }) => buffer as ArrayBuffer);
}

function requestIn(packet: Packet): WorkerRequest {
  try {
    return decode(packet) as WorkerRequest;
  } catch (unreadable) {
    return { unreadable };
  }
}

async function host(): Promise<void> {
  const port = parentPort!;
  const { task, passed } = workerData as HostData;
  const turnstile = new BatchClaims(passed);
  await new WorkerHost(decode(task) as WorkerTask, {
    listen: (hear) => void port.on('message', (packet: Packet) => hear(requestIn(packet))),
    post: (message, transfer) => {
      const packet = encode(message);
      if (lengthOf(packet) > MOST_BYTES) {
        throw new InvalidOutputError(
          `An output of ${lengthOf(packet)} bytes is more than a process can send in one ` +
            `message, ${MOST_BYTES} bytes; ` +
            "return less, lower batchSize, or use isolation: 'thread'",
        );
      }
      port.postMessage(packet, transfer);
    },
    begin: (batch) => {
      const begins = turnstile.tryBegin(batch);
      // Also for a batch that was taken back, since the other side counts the marks.
      writeSync(MARKS, '.');
      return begins;
    },
    exit: () => process.exit(),
  }).run();
  // Ends the thread also where the module left a timer or a connection open.
  process.exit();
}
