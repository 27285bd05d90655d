import { formatBytes } from '../../internal.js';

/** Milliseconds between lines of a slow download. */
const INTERVAL = 10_000;

/** Milliseconds between lines of a fast one. */
const LEAST_INTERVAL = 1000;

/** Logs a line per 10 %, at most one per second and at least one per 10 s. */
export class Progress {
  private readonly startedAt = Date.now();
  private loggedAt = this.startedAt;
  private loggedTenths = 0;
  private received = 0;

  constructor(
    private readonly name: string,
    private readonly size: number | undefined,
    private readonly log: (line: string) => void,
  ) {}

  add(bytes: number): void {
    this.received += bytes;
    const { received, size } = this;
    const now = Date.now();
    const tenths = size ? Math.floor((10 * received) / size) : 0;
    const passed = now - this.loggedAt;
    if (passed >= INTERVAL || (passed >= LEAST_INTERVAL && tenths > this.loggedTenths)) {
      this.loggedAt = now;
      this.loggedTenths = tenths;
      const share = size ? `${Math.floor((100 * received) / size)} % of ${formatBytes(size)}` : '';
      const seconds = Math.round((now - this.startedAt) / 1000);
      this.log(`downloads ${this.name}: ${share || formatBytes(received)} after ${seconds} s`);
    }
  }
}
