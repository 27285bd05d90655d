import { randomBytes } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import {
  type BeforeApplicationShutdown,
  Logger,
  type OnApplicationBootstrap,
  type OnApplicationShutdown,
  type OnModuleDestroy,
  type OnModuleInit,
} from '@nestjs/common';
import { firstValueFrom, merge, Subject, timer } from 'rxjs';
import { ServingClosedError, UnknownServingError } from '../errors.js';
import { LocalServing } from '../serving/local-serving.js';
import type { Serving } from '../serving/serving.js';
import type { RemotePreprocess, ServingRouter } from '../serving/serving-router.js';
import { formatValue } from '../format.js';
import { MembershipLog, RateLimitedLogger } from './membership/membership-log.js';
import { type Balancer, balancerOf, type Candidate } from './membership/balancer.js';
import { type ClusterNode, clusterNodeOf } from './membership/member.js';
import { InboundCalls } from './calls/inbound-calls.js';
import { Members } from './membership/members.js';
import { readNodeInfo, type NodeInfo } from './membership/node-info.js';
import type { ExportedServings } from './calls/exported-servings.js';
import type { ResolvedDistribution } from './options.js';
import { RoutesWithoutSelf, type Routes } from './calls/failover.js';
import { OutboundCalls } from './calls/outbound-calls.js';
import { jsonHandlersOf } from './json/json-handlers.js';
import { type Message, Messenger } from './wire/messenger.js';
import { LivenessProbes } from './membership/liveness-probes.js';
import { RemoteServing, type RemoteCallOptions } from './calls/remote-serving.js';
import { ShutdownLimit } from './shutdown-limit.js';
import type { Address, JsonHandler, Receiver, ServingTransport } from './transport.js';
import { FrameError, Kind } from './wire/prelude.js';
import { namespaceSecret } from './wire/signature.js';

/** Milliseconds of shutdown where neither an option nor a serving of the node says how many. */
const DEFAULT_LIMIT = 30_000;
/** Milliseconds for the last packets to leave, as far as the limit of shutdown allows. */
const FLUSH = 5_000;
/** Beyond the limit they have this many; once for the goodbye and once for the connections. */
const GRACE = 400;

/**
 * This node among the others: it tells them how it is, hears how they are, answers their calls, and
 * has its own answered.
 */
export class ServingCluster
  implements
    OnModuleInit,
    OnApplicationBootstrap,
    OnModuleDestroy,
    BeforeApplicationShutdown,
    OnApplicationShutdown,
    Receiver,
    Routes,
    ServingRouter
{
  readonly address: Address;
  isOnline = false;
  private readonly logger = new Logger('Serving');
  private readonly epoch = Date.now();
  private readonly members: Members;
  private readonly balancer: Balancer;
  private readonly changed = new Subject<void>();
  private readonly remotes = new Map<string, RemoteServing>();
  private readonly post: Messenger;
  private readonly outgoing: OutboundCalls;
  private readonly incoming: InboundCalls;
  private readonly way: RemoteCallOptions;
  /** As `way`, but never back here. */
  private readonly otherNodes: RemoteCallOptions;
  private readonly probes: LivenessProbes;
  private heartbeats: NodeJS.Timeout | undefined;
  /** Nodes that this one has answered since its last heartbeat. */
  private answers = 0;
  private checks: NodeJS.Timeout | undefined;
  private state: NodeInfo['state'] = 'up';
  private outages = 0;
  private seq = 0;
  private drained: Promise<void> | undefined;
  private limit: ShutdownLimit | undefined;
  private ended: Promise<void> | undefined;
  private isOver = false;

  constructor(
    private readonly options: ResolvedDistribution,
    private readonly transport: ServingTransport,
    private readonly offers: ExportedServings,
  ) {
    const {
      balance,
      downAfter,
      heartbeat,
      limits,
      maxNodes,
      namespace,
      nodeId,
      window,
      secret,
      probeAfter,
    } = options;
    const readableId = nodeId.replaceAll(/[^\w-]/g, '_').slice(0, 100);
    const address = `${readableId}-${randomBytes(6).toString('hex')}`;
    this.address = address;
    this.balancer = balancerOf(balance);
    this.members = new Members({
      suspectAfter: Math.max(1.5 * heartbeat, (downAfter * 2) / 3),
      downAfter,
      maxNodes,
    });
    const complaints = new RateLimitedLogger(this.logger);
    this.post = new Messenger({
      address,
      transport,
      limits,
      secret: secret === undefined ? undefined : namespaceSecret(secret, namespace),
      read: (letter) => this.read(letter),
      refuse: (letter, error) =>
        (letter.kind < Kind.reply ? this.incoming : this.outgoing).refuse(letter, error),
      unreadable: (error) =>
        complaints.warn(`Something came that this node cannot read: ${error.message}`),
    });
    this.outgoing = new OutboundCalls(this.post, window, limits.calls);
    this.incoming = new InboundCalls({
      post: this.post,
      limits,
      window,
      most: limits.calls,
      offer: (name) => offers.find(name),
    });
    this.way = { ...options, routes: this, outgoing: this.outgoing };
    this.otherNodes = { ...this.way, routes: new RoutesWithoutSelf(this, address) };
    this.probes = new LivenessProbes(transport, probeAfter, this.outgoing, (of) =>
      this.nodeDisconnected(of),
    );
  }

  /**
   * The handle of a serving that other nodes own, or that is to be called as if they did.
   *
   * @throws UnknownServingError for what is no name
   */
  remote(name: string, preprocess?: RemotePreprocess): Serving {
    if (typeof name !== 'string') {
      throw new UnknownServingError(`There is no serving ${formatValue(name)}`);
    }
    if (preprocess) {
      return new RemoteServing(name, this.way, preprocess);
    }
    const known = this.remotes.get(name);
    if (known) {
      return known;
    }
    const remote = new RemoteServing(
      name,
      this.way,
      this.options.remotes.get(name) ?? this.offers.preprocessingOf(name),
    );
    // Names may come from a request, and are many only where they are wrong.
    if (this.members.candidates(name).list.length > 0 || this.options.remotes.has(name)) {
      this.remotes.set(name, remote);
    }
    return remote;
  }

  isRemote(serving: Serving | undefined): boolean {
    return serving instanceof RemoteServing;
  }

  /**
   * Where a call by name goes: to the serving of this node, if it has one and that can keep up,
   * else to those of others.
   */
  route(name: string, local: Serving | undefined, preprocess?: RemotePreprocess): Serving {
    if (!local) {
      return this.remote(name, preprocess);
    }
    return this.isSaturated(local) ? new RemoteServing(name, this.otherNodes, preprocess) : local;
  }

  /**
   * The nodes that this node knows, itself included, with their servings and weights, as of their
   * last heartbeats.
   */
  nodes(): readonly ClusterNode[] {
    return this.members.all.map((member) => clusterNodeOf(member, this.address));
  }

  get others(): readonly NodeInfo[] {
    return this.members.all
      .map(({ info }) => info)
      .filter(({ address }) => address !== this.address);
  }

  async onModuleInit(): Promise<void> {
    const { transport, options, address, role, incoming, offers } = this;
    const { heartbeat, limits, namespace, nodeId, secret } = options;
    const attendance = new MembershipLog(address, this.logger);
    this.members.changes$.subscribe((change) => {
      if (change.type === 'left') {
        this.forget(change.address);
      } else if (change.type === 'joined') {
        this.answer(change.address);
      }
      attendance.note(change, this.members.get(change.address) !== undefined);
      // Calls that this has ended here look for another node first.
      setImmediate(() => this.changed.next());
    });
    // Plain messages are not signed: where there is a secret, only who knows it may call. And
    // nobody calls a client.
    const jsonHandlers =
      secret === undefined && role === 'node'
        ? jsonHandlersOf(offers, { incoming, limits })
        : new Map<string, JsonHandler>();
    await transport.start({ namespace, address, role, receiver: this, jsonHandlers });
    this.isOnline = true;
    this.logger.log(
      `This is ${role} ${formatValue(nodeId)} in the namespace ${formatValue(namespace)}`,
    );
    this.probes.begin();
    this.checks = setInterval(() => this.check(), heartbeat / 4).unref();
    await this.post.broadcast(Kind.hello, {});
    this.sendHeartbeat();
  }

  /** Now at the latest all servings of this node are ready, and others may know. */
  onApplicationBootstrap(): void {
    this.offers.watch();
    this.sendHeartbeat();
  }

  /** Others are to stop calling before anything here ends. */
  onModuleDestroy(): void {
    void this.drain();
  }

  /** From now on rows of other nodes are treated as those of this node. */
  beforeApplicationShutdown(): void {
    this.beginShutdown();
  }

  /**
   * Resolves when the calls of other nodes are answered, at the limit of shutdown at the latest.
   */
  async answered(): Promise<void> {
    await this.beginShutdown().within(this.drain());
  }

  onApplicationShutdown(): Promise<void> {
    return (this.ended ??= this.end());
  }

  receive(packet: Uint8Array): void {
    this.post.hear(packet);
  }

  nodeConnected(address: Address): void {
    this.tell(address);
  }

  nodeDisconnected(address: Address): void {
    this.members.gone(address);
    this.forget(address);
  }

  online(isOnline: boolean): void {
    this.isOnline = isOnline;
    this.members.freeze(!isOnline, performance.now());
    if (isOnline) {
      this.post.broadcast(Kind.hello, {}).catch(() => {});
      this.sendHeartbeat();
    } else {
      // Answers would come and go by way of the broker, and some may have been lost there already.
      this.outages++;
      [...this.outgoing.nodes].forEach((node) => this.outgoing.lose(node, 'unknown'));
      this.incoming.loseAll();
    }
    this.changed.next();
  }

  pick(serving: string, excluded: ReadonlySet<Address>): Candidate | undefined {
    const owners = this.members.candidates(serving);
    return this.balancer(owners, excluded, {
      serving,
      underWay: (of) => this.outgoing.underWay(of),
    });
  }

  owners(serving: string): readonly Candidate[] {
    return this.members.candidates(serving).list;
  }

  async change(milliseconds: number): Promise<void> {
    await firstValueFrom(merge(this.changed, timer(milliseconds)));
  }

  /** Whether its calls are to go to other nodes, as there are some and its queue is long. */
  private isSaturated(local: Serving): boolean {
    return (
      this.options.localFirst === 'unless-saturated' &&
      local instanceof LocalServing &&
      (local.queueDepths().get(local.name) ?? 0) >= local.distribution.saturation &&
      this.owners(local.name).some(({ address }) => address !== this.address)
    );
  }

  private get role(): 'node' | 'client' {
    return this.options.role ?? (this.offers.names().length > 0 ? 'node' : 'client');
  }

  private read(letter: Message): void {
    const { kind, from, header } = letter;
    if (kind === Kind.heartbeat) {
      const info = readNodeInfo(header['info']);
      if (info.address !== from) {
        throw new FrameError(`Node ${from} gives the beat of ${info.address}`);
      }
      this.members.hear(info, performance.now());
    } else if (kind === Kind.hello) {
      this.answer(from);
    } else if (kind === Kind.goodbye) {
      if (header['drained'] === true) {
        // All that it has taken it has answered before; what has no answer crossed with its
        // leaving.
        this.outgoing.lose(from, 'no');
      }
      this.nodeDisconnected(from);
    } else if (kind < Kind.reply) {
      this.incoming.hear(letter);
    } else if (kind < Kind.heartbeat) {
      this.outgoing.hear(letter);
    } else {
      throw new FrameError(`A frame of kind ${kind} is unknown here`);
    }
  }

  /** Tells all how this node is, and does so again and again. */
  private sendHeartbeat(): void {
    if (this.isOver || !this.isOnline) {
      return;
    }
    clearTimeout(this.heartbeats);
    const jitter = 0.9 + Math.random() / 5;
    this.heartbeats = setTimeout(
      () => this.sendHeartbeat(),
      this.options.heartbeat * jitter,
    ).unref();
    this.answers = 0;
    const info = this.info();
    this.members.hear(info, performance.now());
    this.post.broadcast(Kind.heartbeat, { info }).catch(() => {});
  }

  /**
   * Sends the state of this node to one that asks for it or has joined. Where there is no secret,
   * anybody can name any sender, so an unknown one gets no answer, and the rate is bounded.
   */
  private answer(address: Address): void {
    const { heartbeat, maxNodes } = this.options;
    const member = this.members.get(address);
    const now = performance.now();
    if (member && now - member.answeredAt >= heartbeat / 10 && this.answers < maxNodes) {
      member.answeredAt = now;
      this.answers++;
      this.tell(address);
    }
  }

  private check(): void {
    for (const address of this.members.check(performance.now())) {
      this.transport.drop?.(address);
    }
  }

  private tell(address: Address): void {
    if (address !== this.address && !this.isOver) {
      this.post.send(address, Kind.heartbeat, { info: this.info() }).catch(() => {});
    }
  }

  private info(): NodeInfo {
    const { address, epoch, outages, state, role, options, offers, incoming } = this;
    const servings = role === 'client' ? [] : offers.all((name) => incoming.count(name));
    return { id: options.nodeId, epoch, address, outages, seq: ++this.seq, role, state, servings };
  }

  private forget(address: Address): void {
    this.outgoing.lose(address, 'unknown');
    this.incoming.lose(address);
    this.post.forget(address);
  }

  private drain(): Promise<void> {
    if (!this.drained) {
      this.state = 'draining';
      this.drained = this.incoming.drain();
      this.sendHeartbeat();
    }
    return this.drained;
  }

  /** Starts the clock of shutdown, and lets no row of a serving wait for others. */
  private beginShutdown(): ShutdownLimit {
    if (!this.limit) {
      const { drainTimeout } = this.options;
      const { local } = this.offers;
      const limits = local.map(({ shutdownLimit }) => shutdownLimit);
      const longest = limits.length === 0 ? undefined : Math.max(...limits);
      const milliseconds = Math.min(
        drainTimeout ?? Infinity,
        longest ?? drainTimeout ?? DEFAULT_LIMIT,
      );
      this.limit = new ShutdownLimit();
      this.limit.begin(milliseconds, () => {
        this.logger.warn(
          `Calls of or to other nodes did not end within ${milliseconds} ms; they are answered ` +
            'as closed',
        );
        this.closeCalls();
      });
      void this.drain();
      // Nest may call their own hooks later than that of this node.
      local.forEach((serving) => serving.beforeApplicationShutdown());
    }
    return this.limit;
  }

  /** Answers every call that is left. */
  private closeCalls(): void {
    this.incoming.close(new ServingClosedError('This node shuts down, and the call had not ended'));
    const error = new ServingClosedError('This node shuts down, and calls no other any more');
    this.outgoing.close(error);
    this.changed.error(error);
  }

  private async end(): Promise<void> {
    const limit = this.beginShutdown();
    // Who answers must hear meanwhile that this node is there.
    await this.answered();
    await limit.within(this.outgoing.idle());
    limit.end();
    this.isOver = true;
    clearTimeout(this.heartbeats);
    clearInterval(this.checks);
    this.probes.end();
    this.closeCalls();
    const goodbye = this.post
      .broadcast(Kind.goodbye, { drained: this.incoming.isDrained })
      .catch(() => {});
    const patience = Math.min(limit.left, FLUSH) + GRACE;
    await Promise.race([goodbye, pause(patience, undefined, { ref: false })]);
    this.remotes.forEach((remote) => remote.end());
    await this.transport.stop(Math.min(limit.left, FLUSH) + GRACE);
    // Nobody can be told any more.
    this.incoming.loseAll();
  }
}
