/** A bar on one line of a terminal; elsewhere it writes nothing. */
export class ProgressBar {
  private done = 0;

  /** @param stream standard error, so that results can be piped */
  constructor(
    private readonly total: number,
    private readonly isShown: boolean,
    private readonly stream: NodeJS.WriteStream = process.stderr,
  ) {}

  /** One step of the total is done; the next is described. */
  step(description: string): void {
    this.show(description);
    this.done = Math.min(this.done + 1, this.total);
  }

  /** Removes the bar. */
  end(): void {
    if (this.isShown) {
      this.stream.write('\r\u001B[K');
    }
  }

  private show(description: string): void {
    if (!this.isShown) {
      return;
    }
    const width = 30;
    const full = Math.round((width * this.done) / this.total);
    const bar = '█'.repeat(full) + '░'.repeat(width - full);
    const line = `${bar} ${description}`;
    this.stream.write(`\r\u001B[K${line.slice(0, (this.stream.columns || 80) - 1)}`);
  }
}
