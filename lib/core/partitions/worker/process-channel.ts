import { fork } from 'node:child_process';
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { fromWire, ServingLoadError } from '../../errors.js';
import {
  type Channel,
  type OnMessage,
  type ExitMessage,
  marked,
  MARKS,
  ownOnly,
  type RevokeRequest,
  type RevokeReply,
  type LoadResult,
  type WorkerExit,
  type WorkerReply,
  type WorkerTask,
} from './worker-protocol.js';
import { decode, encode, lengthOf, MAX_BYTES, owned, type Packet } from './codec.js';
import { entryScript } from './entry-script.js';
import { TooLargeToSendError } from '../partition.js';

/** A child can be killed at any time. Messages are copied. */
export async function openProcess(task: WorkerTask): Promise<Channel> {
  const opening = encode(task);
  if (lengthOf(opening) > MAX_BYTES) {
    throw new ServingLoadError(
      `A model of ${lengthOf(opening)} bytes is more than a process can be sent in one message, ` +
        `${MAX_BYTES} bytes; give its path, or use isolation: 'thread'`,
    );
  }
  const child = fork(entryScript('process'), {
    execArgv: optionsForChild(process.execArgv),
    env: environmentForChild(process.env),
    serialization: 'advanced',
    stdio: ['ignore', 'inherit', 'inherit', 'ipc', 'pipe'],
  });
  // Rejects if there is no child.
  await once(child, 'spawn');
  const marks = child.stdio[MARKS] as Socket;
  let onMessage: OnMessage | undefined;
  let begun = 0;
  let cause: unknown;
  marks.on('data', ({ length }) => (begun += length));
  child.on('error', (error) => (cause ??= error));
  const onRevoked: ((count: number) => void)[] = [];
  const receive = (packet: Packet | RevokeReply): void => {
    if ('revoked' in packet) {
      onRevoked.shift()!(packet.revoked);
      return;
    }
    const message = readable(packet);
    if ('failure' in message) {
      cause = message.failure && fromWire(message.failure);
    } else {
      onMessage?.(message);
    }
  };
  child.on('message', ownOnly(receive));
  // Ignores errors after the exit, which `exited` reports.
  const send = (packet: Packet | RevokeRequest): boolean => child.send(marked(packet), () => {});
  send(opening);
  return {
    name: 'process',
    // Not "exit", which may come before the last messages.
    exited: new Promise<WorkerExit>((resolve) =>
      child.once('close', (code: number | null, signal: NodeJS.Signals | null) =>
        resolve({ code, signal, cause }),
      ),
    ),
    get begun() {
      return begun;
    },
    listen: (listener) => (onMessage = listener),
    post: (request) => {
      const packet = encode(request);
      if (lengthOf(packet) > MAX_BYTES) {
        throw new TooLargeToSendError(
          `A batch of ${lengthOf(packet)} bytes is more than a process can be sent in one ` +
            `message, ${MAX_BYTES} bytes; ` +
            "give fewer or smaller rows, lower batchSize, or use isolation: 'thread'",
        );
      }
      send(packet);
    },
    ref: () => [child, child.channel, marks].forEach((each) => each?.ref()),
    unref: () => [child, child.channel, marks].forEach((each) => each?.unref()),
    revoke: (sent, callback) => {
      onRevoked.push(callback);
      send({ revoke: sent });
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

/** Removes the variable that makes children report their imports to Node's watch mode. */
function environmentForChild({
  WATCH_REPORT_DEPENDENCIES: _watched,
  ...environment
}: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return environment;
}

/** Options for the parent's script or its debugger. */
const PARENT_ONLY =
  /^(?:--(?:input-type|eval|print|check|interactive|test|watch|inspect|debug|env-file)|-[epci])/;

export function optionsForChild(options: readonly string[]): string[] {
  const [, kept] = options.reduce<[boolean, string[]]>(
    ([wasDropped, others], option) => {
      // An argument without a dash is the previous option's value.
      const isDropped = option.startsWith('-') ? PARENT_ONLY.test(option) : wasDropped;
      return [isDropped, isDropped ? others : [...others, option]];
    },
    [false, []],
  );
  // The parent may already use the default port.
  return [...kept, '--inspect-port=0'];
}
