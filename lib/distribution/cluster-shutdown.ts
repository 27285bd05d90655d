import type { Logger } from '@nestjs/common';
import { ServingClosedError } from '../errors.js';
import type { ExportedServings } from './calls/exported-servings.js';
import type { InboundCalls } from './calls/inbound-calls.js';
import type { OutboundCalls } from './calls/outbound-calls.js';
import type { Heartbeats } from './membership/heartbeats.js';
import type { NodeSelector } from './membership/balancer.js';

/** Milliseconds of shutdown where neither an option nor a serving of the node sets a limit. */
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

/** Ends the calls of a node, those from other nodes first, within a time limit. */
export class ClusterShutdown {
  private drained: Promise<void> | undefined;
  private limitReached: Promise<void> | undefined;
  private timer: NodeJS.Timeout | undefined;
  private endsAt = Infinity;

  constructor(private readonly options: ClusterShutdownOptions) {}

  /** Milliseconds until the limit. */
  get timeLeft(): number {
    return Math.max(0, this.endsAt - performance.now());
  }

  /** Refuses calls of other nodes; resolves when those that were taken are answered. */
  drain(): Promise<void> {
    if (!this.drained) {
      this.drained = this.options.inbound.drain();
      this.options.heartbeats.drain();
    }
    return this.drained;
  }

  /** Starts the clock, and lets no row of a serving wait for others. */
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
    // Nest may call their own hooks later than that of this node.
    local.forEach((serving) => serving.beforeApplicationShutdown());
  }

  /** Resolves when the calls of other nodes are answered, at the limit at the latest. */
  async answered(): Promise<void> {
    this.begin();
    await Promise.race([this.drain(), this.limitReached]);
  }

  /** Resolves when all calls of and to other nodes are answered, at the limit at the latest. */
  async complete(): Promise<void> {
    await this.answered();
    await Promise.race([this.options.outbound.idle(), this.limitReached]);
    clearTimeout(this.timer);
  }

  /** Answers every call that is left, and refuses new ones. */
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
