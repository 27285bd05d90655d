/** Those who want to hear of changes. */
export class Changes {
  private readonly listeners: (() => void)[] = [];

  add(listener: () => void): void {
    this.listeners.push(listener);
  }

  tell(): void {
    this.listeners.forEach((listener) => listener());
  }
}
