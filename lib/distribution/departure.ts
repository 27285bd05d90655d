import type { AbortSignalLike } from '../serving/call-options.js';

/** Says that the caller of one call waits no more. Making a real AbortSignal for each would cost more than to read its frame. */
export class Departure implements AbortSignalLike {
  aborted = false;
  reason: unknown;
  private readonly listeners = new Set<() => void>();

  abort(): void {
    if (this.aborted) {
      return;
    }
    this.aborted = true;
    this.reason = new DOMException('The caller on the other node waits no more', 'AbortError');
    this.listeners.forEach((listener) => listener());
    this.listeners.clear();
  }

  throwIfAborted(): void {
    if (this.aborted) {
      throw this.reason;
    }
  }

  addEventListener(_: 'abort', listener: () => void): void {
    this.listeners.add(listener);
  }

  removeEventListener(_: 'abort', listener: () => void): void {
    this.listeners.delete(listener);
  }
}
