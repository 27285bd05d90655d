import type { Address, ServingTransport } from '../transport.js';
import { SentHeader } from '../wire/header.js';
import type { MessageToSend, Messenger } from '../wire/messenger.js';
import { Kind } from '../wire/prelude.js';
import type { Members } from './members.js';
import type { NodeInfo } from './node-info.js';
import type { NodeSelector } from './balancer.js';
import type { OutboundCalls } from '../calls/outbound-calls.js';

export interface HeartbeatsOptions {
  readonly nodeId: string;
  readonly address: Address;
  /** Milliseconds, ± 10 %. */
  readonly heartbeat: number;
  readonly maxNodes: number;
  readonly describe: () => Pick<NodeInfo, 'role' | 'servings'>;
  readonly messenger: Messenger;
  readonly members: Members;
  readonly selector: NodeSelector;
  readonly transport: ServingTransport;
  readonly onBeat: () => void;
}

export class Heartbeats {
  private readonly epoch = Date.now();
  private state: NodeInfo['state'] = 'up';
  private isEnded = false;
  private outages = 0;
  private seq = 0;
  private checkedAt = performance.now();
  private wasLate = false;
  /** Since the last heartbeat. */
  private replies = 0;
  private sentAt = -Infinity;
  private next: NodeJS.Timeout | undefined;
  private checks: NodeJS.Timeout | undefined;

  constructor(private readonly options: HeartbeatsOptions) {}

  async begin(): Promise<void> {
    const { heartbeat, messenger } = this.options;
    // A busy process first reads what has arrived.
    const check = () => setImmediate(() => this.dropSilentNodes()).unref();
    this.checks = setInterval(check, heartbeat / 4).unref();
    await messenger.broadcast({ kind: Kind.hello });
    this.send();
  }

  send(): void {
    const { heartbeat, members, messenger, selector } = this.options;
    if (this.isEnded || !selector.isOnline) {
      return;
    }
    const jitter = 0.9 + Math.random() / 5;
    clearTimeout(this.next);
    this.next = setTimeout(() => this.send(), heartbeat * jitter).unref();
    this.replies = 0;
    this.sentAt = performance.now();
    messenger.remind((address) => members.get(address) !== undefined);
    const info = this.info();
    members.receive(info, performance.now());
    messenger.broadcast(heartbeatOf(info)).catch(() => {});
    this.options.onBeat();
  }

  /** Sends after a change: now, or a tenth of a heartbeat after the last one. */
  announce(): void {
    const wait = this.sentAt + this.options.heartbeat / 10 - performance.now();
    if (wait <= 0) {
      this.send();
    } else if (!this.isEnded) {
      clearTimeout(this.next);
      this.next = setTimeout(() => this.send(), wait).unref();
    }
  }

  sendTo(address: Address): void {
    if (address !== this.options.address && !this.isEnded) {
      const { messenger } = this.options;
      void messenger.trySend(address, heartbeatOf(this.info()));
    }
  }

  /** Replies only to known nodes, at a limited rate: without a `secret`, senders can be forged. */
  replyTo(address: Address): void {
    const { heartbeat, maxNodes, members } = this.options;
    const member = members.get(address);
    const now = performance.now();
    if (member && now - member.repliedAt >= heartbeat / 10 && this.replies < maxNodes) {
      member.repliedAt = now;
      this.replies++;
      this.sendTo(address);
    }
  }

  resume(): void {
    this.options.messenger.broadcast({ kind: Kind.hello }).catch(() => {});
    this.send();
  }

  /** The next heartbeat announces it: calls may be lost. */
  countOutage(): void {
    this.outages++;
  }

  drain(): void {
    this.state = 'draining';
    this.send();
  }

  end(): void {
    this.isEnded = true;
    clearTimeout(this.next);
    clearInterval(this.checks);
  }

  private info(): NodeInfo {
    const { nodeId: id, address, describe } = this.options;
    const { epoch, outages, state } = this;
    return { id, epoch, address, outages, seq: ++this.seq, state, ...describe() };
  }

  /** Skips a late check, but never two in a row: input may be unread. */
  private isLate(): boolean {
    const now = performance.now();
    const isLate = !this.wasLate && now - this.checkedAt > this.options.heartbeat;
    this.checkedAt = now;
    return (this.wasLate = isLate);
  }

  private dropSilentNodes(): void {
    const { members, transport } = this.options;
    if (this.isEnded || this.isLate()) {
      return;
    }
    for (const member of members.all) {
      const received = transport.received?.(member.info.address);
      if (received !== member.received) {
        member.received = received;
        member.wasHeard ||= !member.sendsInvalid;
      }
    }
    for (const address of members.checkSilence(performance.now())) {
      transport.drop?.(address);
    }
  }
}

function heartbeatOf(info: NodeInfo): MessageToSend {
  return { kind: Kind.heartbeat, header: new SentHeader({ info }) };
}

/** Probes nodes with unanswered calls, if the transport doesn't notice lost nodes. */
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
      // Only heartbeats can show that the node is alive.
    } finally {
      this.probed.delete(node);
    }
  }
}
