import type { OutboundCalls } from '../calls/outbound-calls.js';
import type { Address, ServingTransport } from '../transport.js';

/** Probes nodes that have calls, over transports that do not notice the end of a node. */
export class LivenessProbes {
  private timer: NodeJS.Timeout | undefined;
  private readonly probed = new Set<Address>();

  constructor(
    private readonly transport: ServingTransport,
    private readonly period: number,
    private readonly outbound: OutboundCalls,
    private readonly onGone: (address: Address) => void,
  ) {}

  begin(): void {
    if (this.transport.probe) {
      this.timer = setInterval(() => this.probeAll(), this.period).unref();
    }
  }

  end(): void {
    clearInterval(this.timer);
  }

  private probeAll(): void {
    for (const node of this.outbound.nodes) {
      void this.probe(node);
    }
  }

  private async probe(node: Address): Promise<void> {
    if (this.probed.has(node)) {
      return;
    }
    this.probed.add(node);
    try {
      if (!(await this.transport.probe!(node))) {
        this.onGone(node);
      }
    } catch {
      // The probe failed: only heartbeats show whether the node is there.
    } finally {
      this.probed.delete(node);
    }
  }
}
