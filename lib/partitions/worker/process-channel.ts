import { fork } from 'node:child_process';
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { fromWire, ServingLoadError } from '../../errors.js';
import {
  type Channel,
  type Ending,
  type OnMessage,
  type ExitMessage,
  MARKS,
  type RevokeRequest,
  type RevokeReply,
  type LoadResult,
  type WorkerReply,
  type WorkerTask,
} from './worker-protocol.js';
import { decode, encode, lengthOf, MOST_BYTES, owned, type Packet } from './codec.js';
import { processUrl } from './entry-urls.js';
import { contentForProcess } from '../onnx/model-content.js';
import { TooLargeToSendError } from '../partition.js';

/**
 * Starts a child process, which can be killed at any moment. Messages to and from it are copied.
 */
export async function openProcess(task: WorkerTask): Promise<Channel> {
  const opening = encode(
    'model' in task ? { ...task, model: await contentForProcess(task.model) } : task,
  );
  if (lengthOf(opening) > MOST_BYTES) {
    throw new ServingLoadError(
      `A model of ${lengthOf(opening)} bytes is more than a process can be sent in one message, ` +
        `${MOST_BYTES} bytes; ` +
        "give its path, or use isolation: 'thread'",
    );
  }
  const child = fork(processUrl, {
    execArgv: optionsForChild(process.execArgv),
    serialization: 'advanced',
    stdio: ['ignore', 'inherit', 'inherit', 'ipc', 'pipe'],
  });
  // Rejects with the reason when there is no child.
  await once(child, 'spawn');
  const marks = child.stdio[MARKS] as Socket;
  let hear: OnMessage | undefined;
  let begun = 0;
  let cause: unknown;
  marks.on('data', ({ length }) => (begun += length));
  child.on('error', (error) => (cause ??= error));
  const tellTaken: ((taken: number) => void)[] = [];
  child.on('message', (packet: Packet | RevokeReply) => {
    if ('revoked' in packet) {
      tellTaken.shift()!(packet.revoked);
      return;
    }
    const message = readable(packet);
    if ('failure' in message) {
      cause = message.failure && fromWire(message.failure);
    } else {
      hear?.(message);
    }
  });
  // A child that has gone hears nothing, and its end is told elsewhere.
  const send = (packet: Packet | RevokeRequest): boolean => child.send(packet, () => {});
  send(opening);
  return {
    name: 'process',
    // Not "exit": what it sent before is still to be read then.
    ended: new Promise<Ending>((resolve) =>
      child.once('close', (code: number | null, signal: NodeJS.Signals | null) =>
        resolve({ code, signal, cause }),
      ),
    ),
    get begun() {
      return begun;
    },
    listen: (listener) => (hear = listener),
    post: (request) => {
      const packet = encode(request);
      if (lengthOf(packet) > MOST_BYTES) {
        throw new TooLargeToSendError(
          `A batch of ${lengthOf(packet)} bytes is more than a process can be sent in one ` +
            `message, ${MOST_BYTES} bytes; ` +
            "give fewer or smaller rows, lower batchSize, or use isolation: 'thread'",
        );
      }
      send(packet);
    },
    ref: () => [child, child.channel, marks].forEach((each) => each?.ref()),
    unref: () => [child, child.channel, marks].forEach((each) => each?.unref()),
    revoke: (given, tell) => {
      tellTaken.push(tell);
      send({ revoke: given });
    },
    kill: () => child.kill('SIGKILL'),
    halt: () => child.kill('SIGKILL'),
  };
}

function readable(
  packet: Packet,
): LoadResult | WorkerReply | ExitMessage | { readonly unreadable: unknown } {
  try {
    return decode(owned(packet)) as LoadResult | WorkerReply | ExitMessage;
  } catch (unreadable) {
    return { unreadable };
  }
}

/** What says what to run, and how to debug it. */
const OF_THE_PARENT =
  /^(?:--(?:input-type|eval|print|check|interactive|test|watch|inspect|debug|env-file)|-[epci])/;

/** Of the options that Node was started with those that hold for a child, too. */
export function optionsForChild(options: readonly string[]): string[] {
  const [, kept] = options.reduce<[boolean, string[]]>(
    ([drops, sofar], option) => {
      // What does not start with a dash is the value of the option before it.
      const dropped = option.startsWith('-') ? OF_THE_PARENT.test(option) : drops;
      return [dropped, dropped ? sofar : [...sofar, option]];
    },
    [false, []],
  );
  // An inspector that the environment asks for finds the port of the parent taken.
  return [...kept, '--inspect-port=0'];
}
