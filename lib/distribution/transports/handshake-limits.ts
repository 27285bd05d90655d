import type { Socket } from 'node:net';

/** The most bytes of text that a connection may send for the handshake, in all. */
export const HANDSHAKE_BYTES = 16 * 1024;

/**
 * Milliseconds in which a connection must become a link. A node that dials gives up before that,
 * so only strangers and nodes that hang reach this limit.
 */
export const HANDSHAKE_TIMEOUT = 10_000;

/** Closes a connection that has not become a link in time. */
export function closeUnlessLinked(socket: Socket, isLinked: () => boolean): void {
  const timer = setTimeout(() => isLinked() || socket.destroy(), HANDSHAKE_TIMEOUT).unref();
  socket.once('close', () => clearTimeout(timer));
}
