import { writeSync } from 'node:fs';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { InvalidOutputError, toWire, type WireError } from '../../errors.js';
import { decode, encode, lengthOf, MAX_BYTES, owned, type Packet } from './codec.js';
import { BatchClaims } from './thread-channel.js';
import {
  type ExitMessage,
  MARKS,
  type RevokeRequest,
  type RevokeReply,
  type WorkerRequest,
  type WorkerTask,
} from './worker-protocol.js';
import { WorkerHost } from './worker-host.js';

/**
 * The second thread runs the session. Even while native code blocks it, the first one receives the
 * next batch, sends the last output, and ends the process when the parent dies.
 */
if (isMainThread) {
  relay();
} else {
  // A rejection ends the thread.
  void host();
}

function relay(): void {
  // A terminal signals the whole process group, but the parent decides when to end.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT']) {
    process.on(signal, () => {});
  }
  // Only a kill is safe during a native run.
  process.once('disconnect', () => process.kill(process.pid, 'SIGKILL'));
  process.once('message', (task: Packet) => {
    const first = owned(task);
    const claims = new BatchClaims();
    const worker = new Worker(process.argv[1]!, {
      workerData: { task: first, claims: claims.memory } satisfies HostData,
      transferList: buffersOf(first),
    });
    let failure: WireError | undefined;
    process.on('message', (request: Packet | RevokeRequest) => {
      if ('revoke' in request) {
        const reply: RevokeReply = { revoked: claims.revoke(request.revoke) };
        process.send!(reply, undefined, undefined, () => {});
        return;
      }
      const packet = owned(request);
      worker.postMessage(packet, buffersOf(packet));
    });
    worker.on('message', (reply: Packet) => process.send!(reply, undefined, undefined, () => {}));
    worker.on('error', (error) => (failure = toWire(error)));
    // The last message; once sent, the process exits.
    worker.on('exit', (code) =>
      process.send!(encode({ failure } satisfies ExitMessage), undefined, undefined, () =>
        process.exit(code),
      ),
    );
  });
}

interface HostData {
  readonly task: Packet;
  readonly claims: SharedArrayBuffer;
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
  const { task, claims: memory } = workerData as HostData;
  const claims = new BatchClaims(memory);
  await new WorkerHost(decode(task) as WorkerTask, {
    listen: (onRequest) =>
      void port.on('message', (packet: Packet) => onRequest(requestIn(packet))),
    post: (message, transfer) => {
      const packet = encode(message);
      if (lengthOf(packet) > MAX_BYTES) {
        throw new InvalidOutputError(
          `An output of ${lengthOf(packet)} bytes is more than a process can send in one ` +
            `message, ${MAX_BYTES} bytes; ` +
            "return less, lower batchSize, or use isolation: 'thread'",
        );
      }
      port.postMessage(packet, transfer);
    },
    begin: (batch) => {
      const begins = claims.tryBegin(batch);
      // Also for a revoked batch: the parent counts marks.
      writeSync(MARKS, '.');
      return begins;
    },
    exit: () => process.exit(),
  }).run();
  // The module may have left a timer or connection open.
  process.exit();
}
