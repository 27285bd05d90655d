import type { InboundCalls } from './calls/inbound-calls.js';
import type { OutboundCalls } from './calls/outbound-calls.js';
import type { Heartbeats } from './membership/heartbeats.js';
import type { Members } from './membership/members.js';
import { readNodeInfo } from './membership/node-info.js';
import type { NodeSelector } from './membership/balancer.js';
import type { Address, Receiver } from './transport.js';
import type { Message, MessageHead, Messenger } from './wire/messenger.js';
import { FrameError, Kind } from './wire/prelude.js';

export interface ClusterReceiverOptions {
  readonly messenger: Messenger;
  readonly members: Members;
  readonly selector: NodeSelector;
  readonly heartbeats: Heartbeats;
  readonly inbound: InboundCalls;
  readonly outbound: OutboundCalls;
}

/** Dispatches the transport's packets and events. */
export class ClusterReceiver implements Receiver {
  constructor(private readonly options: ClusterReceiverOptions) {}

  receive(packet: Uint8Array): void {
    this.options.messenger.receive(packet);
  }

  nodeConnected(address: Address): void {
    this.options.heartbeats.sendTo(address);
  }

  nodeDisconnected(address: Address): void {
    this.options.members.disconnect(address);
    this.forget(address);
  }

  online(isOnline: boolean): void {
    const { members, selector, heartbeats, inbound, outbound } = this.options;
    selector.isOnline = isOnline;
    members.freeze(!isOnline, performance.now());
    if (isOnline) {
      heartbeats.resume();
    } else {
      // The broker may have lost some answers.
      heartbeats.countOutage();
      [...outbound.nodes].forEach((node) => outbound.lose(node, 'unknown'));
      inbound.loseAll();
    }
    selector.notifyChange();
  }

  /** @throws FrameError for a malformed message */
  read(message: Message): void {
    const { members, messenger, heartbeats, inbound, outbound } = this.options;
    const { kind, from, header } = message;
    members.hear(from);
    if (kind === Kind.heartbeat) {
      const info = readNodeInfo(header['info']);
      if (info.address !== from) {
        throw new FrameError(`Node ${from} sends the heartbeat of ${info.address}`);
      }
      members.receive(info, performance.now());
    } else if (kind === Kind.hello) {
      heartbeats.replyTo(from);
    } else if (kind === Kind.goodbye) {
      if (header['drained'] === true) {
        // It answered every call it received, so it never received the others.
        outbound.lose(from, 'no');
      }
      this.nodeDisconnected(from);
    } else if (kind === Kind.mark) {
      messenger.returnMark(message);
    } else if (kind === Kind.marked) {
      messenger.marked(message);
    } else if (kind < Kind.reply) {
      inbound.receive(message);
    } else if (kind < Kind.heartbeat) {
      outbound.receive(message);
    } else {
      throw new FrameError(`A frame has the unknown kind ${kind}`);
    }
  }

  refuse(message: MessageHead, error: FrameError): void {
    const { inbound, outbound } = this.options;
    (message.kind < Kind.reply ? inbound : outbound).refuse(message, error);
  }

  forget(address: Address): void {
    const { inbound, outbound, messenger } = this.options;
    outbound.lose(address, 'unknown');
    inbound.lose(address);
    messenger.drop(address);
  }
}
