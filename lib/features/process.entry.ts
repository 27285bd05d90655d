import { writeSync } from 'node:fs';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { InvalidOutputError, toWire, type WireError } from '../core/errors.js';
import {
  decode,
  encode,
  lengthOf,
  MAX_BYTES,
  owned,
  type Packet,
} from '../core/partitions/worker/codec.js';
import { BatchClaims } from '../core/partitions/worker/thread-channel.js';
import {
  type ExitMessage,
  marked,
  MARKS,
  ownOnly,
  type RevokeRequest,
  type RevokeReply,
  type WorkerRequest,
  type WorkerTask,
} from '../core/partitions/worker/worker-protocol.js';
import { WorkerHost } from '../core/partitions/worker/worker-host.js';
import { openers } from './openers.js';

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
  const first: (message: unknown) => void = ownOnly((task: Packet) => {
    process.off('message', first);
    begin(owned(task));
  });
  process.on('message', first);
}

function begin(task: Packet): void {
  const claims = new BatchClaims();
  const worker = new Worker(process.argv[1]!, {
    workerData: { task, claims: claims.memory } satisfies HostData,
    transferList: buffersOf(task),
  });
  let failure: WireError | undefined;
  const receive = (request: Packet | RevokeRequest): void => {
    if ('revoke' in request) {
      send({ revoked: claims.revoke(request.revoke) });
      return;
    }
    const packet = owned(request);
    worker.postMessage(marked(packet), buffersOf(packet));
  };
  process.on('message', ownOnly(receive));
  worker.on(
    'message',
    ownOnly((reply: Packet) => send(reply)),
  );
  worker.on('error', (error) => (failure = toWire(error)));
  // The last message; once sent, the process exits.
  worker.on('exit', (code) =>
    send(encode({ failure } satisfies ExitMessage), () => process.exit(code)),
  );
}

function send(message: Packet | RevokeReply, sent = (): void => {}): void {
  process.send!(marked(message), undefined, undefined, sent);
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
  await new WorkerHost(
    decode(task) as WorkerTask,
    {
      listen: (onRequest) =>
        void port.on(
          'message',
          ownOnly((packet: Packet) => onRequest(requestIn(packet))),
        ),
      post: (message, transfer) => {
        const packet = encode(message);
        if (lengthOf(packet) > MAX_BYTES) {
          throw new InvalidOutputError(
            `An output of ${lengthOf(packet)} bytes is more than a process can send in one ` +
              `message, ${MAX_BYTES} bytes; ` +
              "return less, lower batchSize, or use isolation: 'thread'",
          );
        }
        port.postMessage(marked(packet), transfer);
      },
      begin: (batch) => {
        const begins = claims.tryBegin(batch);
        // Also for a revoked batch: the parent counts marks.
        writeSync(MARKS, '.');
        return begins;
      },
      exit: () => process.exit(),
    },
    openers,
  ).run();
  // The module may have left a timer or connection open.
  process.exit();
}
