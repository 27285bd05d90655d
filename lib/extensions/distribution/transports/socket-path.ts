import { once } from 'node:events';
import { lstat, unlink } from 'node:fs/promises';
import { connect } from 'node:net';
import { isAbsolute } from 'node:path';
import { InvalidServingError } from '../../../index.js';
import { formatValue } from '../../../doors/text.js';

/** Bytes that every system allows. */
const LONGEST = 103;

/**
 * @param owner names the option
 * @throws InvalidServingError for an impossible path
 */
export function checkSocketPath(owner: string, path: unknown): asserts path is string {
  if (typeof path !== 'string' || !isAbsolute(path) || Buffer.byteLength(path) > LONGEST) {
    throw new InvalidServingError(
      `${owner}: the path of a Unix socket is ${formatValue(path)}; allowed is an absolute path ` +
        `of at most ${LONGEST} bytes`,
    );
  }
}

/**
 * A killed process's socket keeps others from listening. Windows pipes leave no file.
 *
 * @throws InvalidServingError if a process listens, or the file isn't a socket
 */
export async function removeStaleSocket(path: string): Promise<void> {
  const file = await lstat(path).catch(() => undefined);
  if (!file || process.platform === 'win32') {
    return;
  }
  if (!file.isSocket()) {
    throw new InvalidServingError(
      `A node cannot listen at ${path}: there is a file that is no socket; give another path`,
    );
  }
  if (await hasListener(path)) {
    throw new InvalidServingError(
      `A node cannot listen at ${path}: another process does; give each node a path of its own`,
    );
  }
  await unlink(path);
}

async function hasListener(path: string): Promise<boolean> {
  const socket = connect(path);
  try {
    await once(socket, 'connect');
    return true;
  } catch (error) {
    if (codeOf(error) === 'ECONNREFUSED') {
      return false;
    }
    throw error;
  } finally {
    socket.destroy();
  }
}

function codeOf(error: unknown): unknown {
  return error instanceof Error && 'code' in error ? error.code : undefined;
}
