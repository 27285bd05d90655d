import type { LoggerService } from '@nestjs/common';

/** Milliseconds between two lines. */
const PAUSE = 10_000;

/** Says in the log what is wrong with that which comes; not each time, as who sends it does so again and again. */
export class Complaints {
  private toldAt = -Infinity;
  private untold = 0;

  constructor(private readonly logger: Pick<LoggerService, 'warn'>) {}

  warn(message: string): void {
    const now = performance.now();
    if (now - this.toldAt < PAUSE) {
      this.untold++;
      return;
    }
    this.logger.warn(this.untold === 0 ? message : `${message} (and ${this.untold} more since the last line about that)`);
    this.toldAt = now;
    this.untold = 0;
  }
}
