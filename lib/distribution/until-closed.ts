/** Promises that reject when the node closes before they settle. */
export class UntilClosed {
  private readonly waiting = new Set<(error: Error) => void>();

  add<T>(promise: Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.waiting.add(reject);
      promise.then(resolve, reject).finally(() => this.waiting.delete(reject));
    });
  }

  close(error: Error): void {
    this.waiting.forEach((reject) => reject(error));
  }
}
