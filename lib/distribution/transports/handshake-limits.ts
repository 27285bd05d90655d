import type { Socket } from 'node:net';

/** Limit in bytes of all the text that a connection may send for the handshake. */
export const HANDSHAKE_BYTES = 16 * 1024;

/**
 * Milliseconds in which a connection must finish its handshake. A node that dials gives up before,
 * so only strangers and nodes that hang reach this limit.
 */
export const HANDSHAKE_TIMEOUT = 10_000;

/** Closes a connection that does not finish its handshake in time. */
export function closeUnlessLinked(socket: Socket, isLinked: () => boolean): void {
  const timer = setTimeout(() => isLinked() || socket.destroy(), HANDSHAKE_TIMEOUT).unref();
  socket.once('close', () => clearTimeout(timer));
}
