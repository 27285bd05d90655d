import type { OutboundCalls } from '../calls/outbound-calls.js';
import type { Address, ServingTransport } from '../transport.js';

/** Asks after nodes that have calls, where the transport would not tell of their end. */
export class LivenessProbes {
  private timer: NodeJS.Timeout | undefined;
  private readonly asked = new Set<Address>();

  constructor(
    private readonly transport: ServingTransport,
    private readonly period: number,
    private readonly outgoing: OutboundCalls,
    private readonly gone: (address: Address) => void,
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
    for (const node of this.outgoing.nodes) {
      void this.probe(node);
    }
  }

  private async probe(node: Address): Promise<void> {
    if (this.asked.has(node)) {
      return;
    }
    this.asked.add(node);
    try {
      if (!(await this.transport.probe!(node))) {
        this.gone(node);
      }
    } catch {
      // It cannot be said: its beats will tell.
    } finally {
      this.asked.delete(node);
    }
  }
}
