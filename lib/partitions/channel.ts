import type { WorkerOpening, WorkerReply, WorkerRequest } from './worker-protocol.js';

/** How a worker has ended: by itself with a code, or by a signal. */
export interface Ending {
  readonly code: number | null;
  readonly signal?: NodeJS.Signals | null;
  /** The error that it left uncaught. */
  readonly cause?: unknown;
}

/** Hears what a worker says; `unreadable` is why something that it said cannot be read here. */
export type Hear = (message: WorkerOpening | WorkerReply | { readonly unreadable: unknown }) => void;

/** The way to a worker and back. Messages come in their order, and all that the worker has sent before it is said to have ended. */
export interface Channel {
  /** Where the worker is, for messages. */
  readonly name: 'thread' | 'process';
  readonly ended: Promise<Ending>;
  /** How many batches the worker has begun; undefined where that is known from its replies alone. */
  readonly begun?: number;
  /** Whoever listened last is told. */
  listen(hear: Hear): void;
  /**
   * The buffers in `transfer` move where they can.
   *
   * @throws when the message cannot be cloned
   */
  post(request: WorkerRequest, transfer: readonly ArrayBuffer[]): void;
  /** Takes back what the worker has not begun of so many batches that it was given until now, and then tells how many those are. */
  takeBack(given: number, tell: (taken: number) => void): void;
  /** Keeps the application's process alive. */
  ref(): void;
  /** Does so no more. */
  unref(): void;
  /** Ends the worker at once, whatever it does; only where that is safe. */
  kill?(): void;
  /** Ends the worker as soon as that is safe: a process at once, a thread when its event loop turns. */
  halt(): void;
}
