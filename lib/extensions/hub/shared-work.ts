/** Work that concurrent callers share by key. It is aborted when the last of them leaves. */
export class SharedWork<T> {
  private readonly running = new Map<string, Running<T>>();

  /** The caller leaves when its signal aborts. */
  join(key: string, signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    signal.throwIfAborted();
    const running = this.running.get(key) ?? this.start(key, work);
    running.callers++;
    return new Promise((resolve, reject) => {
      const leave = (): void => {
        running.callers--;
        if (running.callers > 0) {
          reject(signal.reason as Error);
        } else {
          // Settles only when the work ends, because it may have files to delete.
          this.forget(key, running);
          running.controller.abort(signal.reason);
        }
      };
      signal.addEventListener('abort', leave);
      running.result
        .finally(() => signal.removeEventListener('abort', leave))
        .then(resolve, reject);
    });
  }

  private start(key: string, work: (signal: AbortSignal) => Promise<T>): Running<T> {
    const controller = new AbortController();
    const running = { controller, callers: 0, result: work(controller.signal) };
    this.running.set(key, running);
    const end = (): void => this.forget(key, running);
    running.result.then(end, end);
    return running;
  }

  private forget(key: string, running: Running<T>): void {
    if (this.running.get(key) === running) {
      this.running.delete(key);
    }
  }
}

interface Running<T> {
  readonly controller: AbortController;
  readonly result: Promise<T>;
  callers: number;
}
