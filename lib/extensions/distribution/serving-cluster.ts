import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import {
  type BeforeApplicationShutdown,
  Logger,
  type LoggerService,
  type OnApplicationBootstrap,
  type OnApplicationShutdown,
  type OnModuleDestroy,
  type OnModuleInit,
} from '@nestjs/common';
import { type ClusterNode } from '../../doors/servings.js';
import { formatValue, truncate } from '../../doors/text.js';
import type { ExportedServings } from './calls/exported-servings.js';
import { InboundCalls } from './calls/inbound-calls.js';
import { OutboundCalls } from './calls/outbound-calls.js';
import { ClusterRouter } from './cluster-router.js';
import { ClusterShutdown } from './cluster-shutdown.js';
import { jsonHandlersOf } from './json/json-handlers.js';
import { Heartbeats, LivenessProbes } from './membership/heartbeats.js';
import { clusterNodeOf } from './membership/member.js';
import { type MemberChange, Members } from './membership/members.js';
import { type NodeInfo, readNodeInfo } from './membership/node-info.js';
import { NodeSelector } from './membership/balancer.js';
import type { ResolvedDistribution } from './resolve-options.js';
import type { Address, JsonHandler, Receiver, ServingTransport } from './transport.js';
import { SentHeader } from './wire/header.js';
import { type Message, type MessageHead, Messenger } from './wire/messenger.js';
import { FrameError, Kind } from './wire/prelude.js';
import { namespaceSecret } from './wire/signature.js';

/** Milliseconds for the last packets, within the limit. */
const FLUSH = 5_000;
/** Milliseconds beyond it, for the goodbye and the connections each. */
const GRACE = 400;

/** This application as a node of its cluster. */
export class ServingCluster
  implements
    OnModuleInit,
    OnApplicationBootstrap,
    OnModuleDestroy,
    BeforeApplicationShutdown,
    OnApplicationShutdown
{
  /** This node's address, new with each start. */
  readonly address: Address;
  /** @internal */
  readonly router: ClusterRouter;
  /** @internal */
  readonly selector: NodeSelector;
  /** @internal */
  readonly receiver: ClusterReceiver;
  private readonly logger = new Logger('Serving');
  private readonly members: Members;
  private readonly messenger: Messenger;
  private readonly inbound: InboundCalls;
  private readonly outbound: OutboundCalls;
  private readonly heartbeats: Heartbeats;
  private readonly probes: LivenessProbes;
  private readonly shutdown: ClusterShutdown;
  private ended: Promise<void> | undefined;

  constructor(
    private readonly options: ResolvedDistribution,
    private readonly transport: ServingTransport,
    private readonly exported: ExportedServings,
  ) {
    const { balance, downAfter, heartbeat, limits, maxNodes, nodeId, window } = options;
    const { namespace, secret, probeAfter, drainTimeout } = options;
    const { logger } = this;
    const readableId = nodeId.replaceAll(/[^\w-]/g, '_').slice(0, 100);
    const address = `${readableId}-${randomBytes(6).toString('hex')}`;
    const suspectAfter = Math.max(1.5 * heartbeat, (downAfter * 2) / 3);
    const members = new Members({ suspectAfter, downAfter, maxNodes });
    const warnings = new RateLimitedLogger(logger);
    const messenger = new Messenger({
      address,
      transport,
      limits,
      secret: secret === undefined ? undefined : namespaceSecret(secret, namespace),
      onMessage: (message) => this.receiver.read(message),
      onTooLarge: (message, error) => this.receiver.refuse(message, error),
      onFragment: (from) => members.hear(from),
      onInvalidFrame: ({ message }) => warnings.warn(`A message cannot be read: ${message}`),
    });
    const outbound = new OutboundCalls(messenger, window, limits.calls);
    const inbound = new InboundCalls({
      messenger,
      limits,
      window,
      maxCalls: limits.calls,
      find: (name) => exported.find(name),
      onRefused: () => this.heartbeats.announce(),
    });
    const activeCalls = (node: Address) => outbound.loadOf(node);
    const isFailing = (node: Address) => outbound.isFailing(node);
    const selector = new NodeSelector({
      self: address,
      members,
      balance,
      activeCalls,
      isFailing,
      lookUp: () => transport.lookUp?.(),
    });
    const heartbeats = new Heartbeats({
      nodeId,
      address,
      heartbeat,
      maxNodes,
      messenger,
      members,
      selector,
      transport,
      describe: () => this.describe(),
      onBeat: () => {
        outbound.check(address);
        inbound.report();
      },
    });
    this.address = address;
    this.members = members;
    this.messenger = messenger;
    this.inbound = inbound;
    this.outbound = outbound;
    this.selector = selector;
    this.heartbeats = heartbeats;
    const parts = { messenger, members, selector, heartbeats, inbound, outbound };
    this.receiver = new ClusterReceiver(parts);
    this.shutdown = new ClusterShutdown({ ...parts, drainTimeout, exported, logger });
    this.router = new ClusterRouter({
      ...options,
      self: address,
      selector,
      outbound,
      exported,
      shutdown: this.shutdown,
      nodes: () => this.nodes(),
    });
    this.probes = new LivenessProbes(transport, probeAfter, outbound, (node) =>
      this.receiver.nodeDisconnected(node),
    );
  }

  /** All nodes, as of their last heartbeats. */
  nodes(): readonly ClusterNode[] {
    const view = { self: this.address, isOnline: this.selector.isOnline };
    return this.members.all.map((member) => clusterNodeOf(member, view));
  }

  /** @internal */
  async onModuleInit(): Promise<void> {
    const { address, heartbeats, logger, probes, receiver, selector, transport } = this;
    const { namespace, nodeId } = this.options;
    this.followMembers();
    const { role } = this.describe();
    const jsonHandlers = this.jsonHandlers();
    await transport.start({ namespace, address, role, receiver, jsonHandlers });
    selector.isOnline = true;
    logger.log(`This is ${role} ${formatValue(nodeId)} in the namespace ${formatValue(namespace)}`);
    probes.begin();
    await heartbeats.begin();
  }

  /** Announces this node's servings, now ready. */
  onApplicationBootstrap(): void {
    this.exported.watch();
    this.heartbeats.send();
  }

  /** Other nodes must stop calling before anything here ends. */
  onModuleDestroy(): void {
    void this.shutdown.drain();
  }

  /** @internal */
  beforeApplicationShutdown(): void {
    this.shutdown.begin();
  }

  /** @internal */
  onApplicationShutdown(): Promise<void> {
    return (this.ended ??= this.end());
  }

  private async end(): Promise<void> {
    const { heartbeats, inbound, messenger, probes, router, shutdown, transport } = this;
    // Nodes with our calls must not count us as lost.
    await shutdown.complete();
    heartbeats.end();
    probes.end();
    shutdown.closeCalls();
    const goodbye = messenger
      .broadcast({
        kind: Kind.goodbye,
        header: new SentHeader({ drained: inbound.isDrained }),
      })
      .catch(() => {});
    const timeout = () => Math.min(shutdown.timeLeft, FLUSH) + GRACE;
    await Promise.race([goodbye, delay(timeout(), undefined, { ref: false })]);
    router.end();
    await transport.stop(timeout());
    // Answers may remain unsent.
    inbound.loseAll();
  }

  private describe(): Pick<NodeInfo, 'role' | 'servings'> {
    const { exported, inbound, options } = this;
    const servings = exported.all((name) => inbound.count(name));
    const role = options.role ?? (servings.length > 0 ? 'node' : 'client');
    return { role, servings: role === 'client' ? [] : servings };
  }

  /** A `secret` excludes JSON clients, which can't sign. */
  private jsonHandlers(): ReadonlyMap<string, JsonHandler> {
    const { exported, inbound, options } = this;
    const { limits, secret } = options;
    return secret === undefined && this.describe().role === 'node'
      ? jsonHandlersOf(exported, { calls: inbound, limits })
      : new Map();
  }

  private followMembers(): void {
    const { address: self, heartbeats, logger, members, receiver, selector, transport } = this;
    const log = new MembershipLog(self, logger);
    members.changes$.subscribe((change) => {
      const { type, address, info } = change;
      if (type === 'left' || info.state === 'draining') {
        transport.lookUp?.();
      }
      if (type === 'left') {
        receiver.forget(address);
      } else if (type === 'joined') {
        heartbeats.replyTo(address);
      }
      log.log(change, members.get(address) !== undefined);
      // Calls that this ended must first look for another node.
      setImmediate(() => selector.notifyChange());
    });
  }
}

interface ClusterReceiverOptions {
  readonly messenger: Messenger;
  readonly members: Members;
  readonly selector: NodeSelector;
  readonly heartbeats: Heartbeats;
  readonly inbound: InboundCalls;
  readonly outbound: OutboundCalls;
}

export class ClusterReceiver implements Receiver {
  constructor(private readonly options: ClusterReceiverOptions) {}

  receive(packet: Uint8Array, via?: Address): void {
    const { messenger, members } = this.options;
    const isValid = messenger.receive(packet);
    if (!isValid && via !== undefined) {
      members.distrust(via);
    }
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
      // The broker may have lost answers.
      heartbeats.countOutage();
      [...outbound.nodes].forEach((node) => outbound.lose(node, 'unknown'));
      inbound.loseAll();
    }
    selector.notifyChange();
  }

  /** @throws FrameError */
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
        // It answered every call it received, so the others never arrived.
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

export class MembershipLog {
  private readonly joined = new Set<Address>();

  constructor(
    private readonly self: Address,
    private readonly logger: Pick<LoggerService, 'log' | 'warn'>,
  ) {}

  /** `isKnown`: still a member, as after an outage. */
  log({ type, address, info }: MemberChange, isKnown: boolean): void {
    if (type === 'joined' && address !== this.self && !this.joined.has(address)) {
      this.joined.add(address);
      this.logger.log(`${nameOf(info)} has joined${servingsOf(info)}`);
    } else if (type === 'left' && !isKnown && this.joined.delete(address)) {
      if (info.state === 'draining') {
        this.logger.log(`${nameOf(info)} has left`);
      } else {
        this.logger.warn(
          `${nameOf(info)} is lost: it cannot be reached any more and was not shutting down`,
        );
      }
    }
  }
}

function nameOf({ role, id }: NodeInfo): string {
  return `${role === 'client' ? 'Client' : 'Node'} ${formatValue(id)}`;
}

function servingsOf({ role, servings }: NodeInfo): string {
  const names = servings.map(({ name }) => formatValue(name)).join(', ');
  return role === 'client' ? '' : ` and serves ${truncate(names) || 'nothing'}`;
}

/** Milliseconds. */
const PAUSE = 10_000;

export class RateLimitedLogger {
  private loggedAt = -Infinity;
  private suppressed = 0;

  constructor(private readonly logger: Pick<LoggerService, 'warn'>) {}

  warn(message: string): void {
    const now = performance.now();
    if (now - this.loggedAt < PAUSE) {
      this.suppressed++;
      return;
    }
    this.logger.warn(
      this.suppressed === 0
        ? message
        : `${message} (and ${this.suppressed} more since the last warning)`,
    );
    this.loggedAt = now;
    this.suppressed = 0;
  }
}
