import type { Call } from './calls.js';
import type { HttpReply } from './http-client.js';

/** What has become of calls. */
export class Tally {
  answers = 0;
  /** Answers that were somebody else's. */
  wrong = 0;
  /** Calls that were never answered. */
  lost = 0;
  /** Those that were answered with an error, by its code or else its status. */
  readonly failures = new Map<string, number>();
  /** The calls that failed, or were lost. */
  readonly failed: Call[] = [];
  private readonly latencies: number[] = [];
  private readonly waiting = new Set<{ readonly answers: number; readonly resolve: () => void }>();
  private lastAnswerAt = performance.now();
  private longest = 0;

  reply(call: Call, { status, headers, body }: HttpReply, sentAt: number): void {
    if (status !== 200) {
      const code = String(headers['x-code'] ?? status);
      this.failures.set(code, (this.failures.get(code) ?? 0) + 1);
      this.failed.push(call);
      return;
    }
    const now = performance.now();
    this.latencies.push(now - sentAt);
    this.longest = Math.max(this.longest, now - this.lastAnswerAt);
    this.lastAnswerAt = now;
    this.answers++;
    this.wrong += call.isOwn(JSON.parse(body)) ? 0 : 1;
    this.tellThoseWhoWait();
  }

  unanswered(call: Call): void {
    this.lost++;
    this.failed.push(call);
  }

  /** Resolves when there are so many more answers. */
  answered(more: number): Promise<void> {
    return new Promise((resolve) => this.waiting.add({ answers: this.answers + more, resolve }));
  }

  get calls(): number {
    return this.answers + this.failed.length;
  }

  /** The longest time without an answer, in milliseconds. */
  get longestGap(): number {
    return this.longest;
  }

  /** In milliseconds. */
  latency(share: number): number {
    const sorted = Float64Array.from(this.latencies).toSorted();
    return sorted[Math.floor((sorted.length - 1) * share)] ?? 0;
  }

  private tellThoseWhoWait(): void {
    for (const each of this.waiting) {
      if (each.answers <= this.answers) {
        this.waiting.delete(each);
        each.resolve();
      }
    }
  }
}
