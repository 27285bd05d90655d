import type { Logger } from '@nestjs/common';
import { ServingClosedError } from '../../index.js';
import type { ExportedServings } from './calls/exported-servings.js';
import type { InboundCalls } from './calls/inbound-calls.js';
import type { OutboundCalls } from './calls/outbound-calls.js';
import type { Heartbeats } from './membership/heartbeats.js';
import type { NodeSelector } from './membership/balancer.js';

/** Milliseconds, if no option or serving sets a limit. */
const DEFAULT_LIMIT = 30_000;

export interface ClusterShutdownOptions {
  readonly drainTimeout: number | undefined;
  readonly exported: ExportedServings;
  readonly heartbeats: Heartbeats;
  readonly inbound: InboundCalls;
  readonly outbound: OutboundCalls;
  readonly selector: NodeSelector;
  readonly logger: Logger;
}

export class ClusterShutdown {
  private drained: Promise<void> | undefined;
  private limitReached: Promise<void> | undefined;
  private timer: NodeJS.Timeout | undefined;
  private endsAt = Infinity;

  constructor(private readonly options: ClusterShutdownOptions) {}

  /** Milliseconds. */
  get timeLeft(): number {
    return Math.max(0, this.endsAt - performance.now());
  }

  drain(): Promise<void> {
    if (!this.drained) {
      this.drained = this.options.inbound.drain();
      this.options.heartbeats.drain();
    }
    return this.drained;
  }

  /** Servings no longer wait for fuller batches. */
  begin(): void {
    if (this.limitReached) {
      return;
    }
    const { local } = this.options.exported;
    const milliseconds = this.limitOf(local.map(({ shutdownLimit }) => shutdownLimit));
    this.endsAt = performance.now() + milliseconds;
    this.limitReached = new Promise((resolve) => {
      this.timer = setTimeout(() => {
        this.options.logger.warn(
          `Calls of or to other nodes did not end within ${milliseconds} ms; they are answered ` +
            'as closed',
        );
        this.closeCalls();
        resolve();
      }, milliseconds);
    });
    void this.drain();
    // Nest may call their hooks later.
    local.forEach((serving) => serving.beforeApplicationShutdown());
  }

  async answered(): Promise<void> {
    this.begin();
    await Promise.race([this.drain(), this.limitReached]);
  }

  async complete(): Promise<void> {
    await this.answered();
    await Promise.race([this.options.outbound.idle(), this.limitReached]);
    clearTimeout(this.timer);
  }

  closeCalls(): void {
    const { inbound, outbound, selector } = this.options;
    inbound.close(new ServingClosedError('This node shut down before the call had ended'));
    const error = new ServingClosedError('This node is shutting down and calls no other node');
    outbound.close(error);
    selector.close(error);
  }

  private limitOf(servingLimits: readonly number[]): number {
    const { drainTimeout } = this.options;
    const longest = servingLimits.length === 0 ? undefined : Math.max(...servingLimits);
    return Math.min(drainTimeout ?? Infinity, longest ?? drainTimeout ?? DEFAULT_LIMIT);
  }
}
