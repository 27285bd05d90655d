import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { InvalidServingError } from '../errors.js';
import {
  checkOptions,
  delay,
  milliseconds,
  type Rule,
  type Rules,
  whole,
} from '../definition/option-rules.js';
import type { Balance } from './membership/balancer.js';
import type { RemotePreprocess } from '../serving/serving-router.js';
import type { ServingTransport } from './transport.js';
import type { GrpcTransportOptions } from './transports/grpc/grpc.transport.js';
import type { Transport } from './transports/nest-types.js';
import type { NatsTransportOptions } from './transports/nats/nats.transport.js';
import type { RedisTransportOptions } from './transports/redis/redis.transport.js';
import type { Peers } from './transports/peers.js';
import type { TcpTransportOptions } from './transports/tcp/tcp.transport.js';
import { defaultWireLimits, type WireLimits } from './wire/limits.js';
import type { FlowControlOptions } from './calls/flow-control.js';

/** Nodes that are connected to each other, without a broker. */
export interface TcpDistribution {
  readonly transport: Transport.TCP;
  /**
   * Those of Nest's TCP transport, passed on as they are. @default a node listens on 127.0.0.1, on
   * any free port
   */
  readonly options?: TcpTransportOptions;
  /** The other nodes' addresses. It does not matter whether this node is among them. */
  readonly peers?: Peers;
  /**
   * Whether a node may listen beyond this machine with neither a `secret` nor certificates of both
   * sides.
   *
   * @default false
   */
  readonly insecure?: boolean;
}

/** Nodes that are connected to each other by gRPC, without a broker. */
export interface GrpcDistribution {
  readonly transport: Transport.GRPC;
  /**
   * Those of Nest's gRPC transport that are not about the service. @default a node listens on
   * localhost:5000
   */
  readonly options?: GrpcTransportOptions;
  /** The other nodes' addresses. It does not matter whether this node is among them. */
  readonly peers?: Peers;
  /**
   * Whether a node may listen beyond this machine with neither a `secret` nor certificates of both
   * sides.
   *
   * @default false
   */
  readonly insecure?: boolean;
}

/** Nodes that meet at NATS servers. */
export interface NatsDistribution {
  readonly transport: Transport.NATS;
  /**
   * Those of Nest's NATS transport, passed on as they are. @default a server at
   * nats://localhost:4222, to which nodes reconnect for ever
   */
  readonly options?: NatsTransportOptions;
}

/** Nodes that meet at a Redis server. */
export interface RedisDistribution {
  readonly transport: Transport.REDIS;
  /**
   * Those of Nest's Redis transport, passed on as they are. @default a server at localhost:6379, to
   * which nodes reconnect for ever
   */
  readonly options?: RedisTransportOptions;
}

/** A transport of one's own. */
export interface CustomTransport {
  readonly transport: ServingTransport;
}

/** How nodes reach each other. */
export type DistributionTransport =
  TcpDistribution | GrpcDistribution | NatsDistribution | RedisDistribution | CustomTransport;

/** A serving that other nodes own, as the callers of this node see it. */
export interface RemoteServingOptions<Input = unknown> {
  readonly name: string;
  /**
   * Applied to the input of every call before it leaves this node, so that less of it travels, or
   * something smaller.
   */
  preprocess?(input: Input): unknown;
}

/** How a node reaches others, finds them, and calls them. */
export type DistributionOptions = DistributionTransport & ClusterOptions;

/** How a node finds others, and calls them. */
export interface ClusterOptions {
  /**
   * Nodes of one namespace know each other, and no others.
   *
   * @default 'default'
   */
  readonly namespace?: string;
  /**
   * The name of this node, unique in its namespace.
   *
   * @default the name of the host, the number of the process, and some random letters
   */
  readonly nodeId?: string;
  /**
   * `node`: it serves others, too; `client`: it only calls.
   *
   * @default 'node' where it has servings, else 'client'
   */
  readonly role?: 'node' | 'client';
  /**
   * Servings of other nodes that can be injected here by name, and what is done to their inputs on
   * this side.
   */
  readonly remotes?: readonly (string | RemoteServingOptions<never>)[];
  /**
   * How the node for a call is picked: at random by weight × partitions (`weighted`); the less
   * loaded of two that are picked so (`least-loaded`); or by a function.
   *
   * @default 'weighted'
   */
  readonly balance?: Balance;
  /**
   * Whether a call by name goes to other nodes while the queue of this one's own serving is longer
   * than two batches of it (`unless-saturated`), or never where this one has the serving
   * (`always`).
   *
   * @default 'always'
   */
  readonly localFirst?: 'always' | 'unless-saturated';
  /**
   * How many nodes may run the rows of a call whose node was lost, for servings that are
   * `idempotent`; 1: no other. Calls that were not executed go elsewhere in any case.
   *
   * @default 3
   */
  readonly attempts?: number;
  /**
   * Milliseconds in which a call to another node must be answered that has no `timeout` itself; not
   * for streams.
   *
   * @default 30000
   */
  readonly requestTimeout?: number;
  /**
   * Milliseconds that a call waits for a node that has its serving.
   *
   * @default 2000
   */
  readonly discoveryTimeout?: number;
  /**
   * Milliseconds between two beats of a node, give or take a tenth.
   *
   * @default 1000
   */
  readonly heartbeat?: number;
  /**
   * Milliseconds of silence after which a node counts as gone, and calls that it has are lost.
   * After two thirds of them it gets no new ones.
   *
   * @default 3 heartbeats
   */
  readonly downAfter?: number;
  /**
   * Milliseconds after which a call that is not answered makes this node ask the broker whether the
   * other is still there. Not for TCP and gRPC, whose connections tell.
   *
   * @default 100
   */
  readonly probeAfter?: number;
  /**
   * Milliseconds of shutdown after which the calls of other nodes, and those to other nodes, are
   * answered as closed. Never more than the longest `shutdown` of the servings of this node.
   *
   * @default the longest `shutdown` of its servings; 30000 without any
   */
  readonly drainTimeout?: number;
  /**
   * What may be on its way of one stream before its reader has taken some of it. @default 64
   * messages, 1 MiB
   */
  readonly window?: Partial<FlowControlOptions>;
  /** What a frame may hold, and how much may be under way. */
  readonly limits?: Partial<DistributionLimits>;
  /**
   * Signs every packet, and refuses what is not signed so (HMAC-SHA256). It does not encrypt.
   * Clients that are no nodes cannot sign, so there is no door for them where there is a secret.
   */
  readonly secret?: string;
}

export interface DistributionLimits extends Omit<WireLimits, 'nodes'> {
  /** The most calls to other nodes at a time, and the most from them. @default 10000 each */
  readonly calls: number;
  /** The most nodes that are known. @default 1024 */
  readonly nodes: number;
}

/** The options with every default filled in. */
export interface ResolvedDistribution {
  readonly namespace: string;
  readonly nodeId: string;
  readonly role: 'node' | 'client' | undefined;
  readonly remotes: ReadonlyMap<string, RemotePreprocess | undefined>;
  readonly balance: Balance;
  readonly localFirst: 'always' | 'unless-saturated';
  readonly attempts: number;
  readonly requestTimeout: number;
  readonly discoveryTimeout: number;
  readonly heartbeat: number;
  readonly downAfter: number;
  readonly probeAfter: number;
  readonly drainTimeout: number | undefined;
  readonly window: FlowControlOptions;
  readonly limits: WireLimits & Pick<DistributionLimits, 'calls'>;
  /** The most nodes that are known. */
  readonly maxNodes: number;
  readonly secret: string | undefined;
}

const OWNER = 'ServingClusterModule';

const name: Rule = {
  check: (value) => typeof value === 'string' && value !== '' && value.length <= 128,
  allowed: 'a string of 1 to 128 characters',
};
const oneOf = (...values: readonly string[]): Rule => ({
  check: (value) => values.some((each) => each === value),
  allowed: values.map((each) => `"${each}"`).join(' or '),
});
const anObject: Rule = {
  check: (value) => typeof value === 'object' && value !== null,
  allowed: 'an object',
};
const count = whole(1, 2 ** 31);

const rules: Rules = {
  transport: {
    check: (value) => value !== undefined,
    allowed: "one of Nest's transports, or an object that is one",
  },
  options: anObject,
  namespace: name,
  nodeId: name,
  role: oneOf('node', 'client'),
  peers: {
    check: (value) => Array.isArray(value) || typeof value === 'function',
    allowed: 'a list of nodes, or a function that gives one',
  },
  insecure: { check: (value) => typeof value === 'boolean', allowed: 'true or false' },
  remotes: { check: Array.isArray, allowed: 'a list of names, or of objects with a name' },
  balance: {
    check: (value) =>
      value === 'weighted' || value === 'least-loaded' || typeof value === 'function',
    allowed: '"weighted", "least-loaded" or a function',
  },
  localFirst: oneOf('always', 'unless-saturated'),
  attempts: whole(1, 100),
  requestTimeout: milliseconds(1),
  discoveryTimeout: delay,
  heartbeat: milliseconds(10, 60_000),
  downAfter: milliseconds(20, 600_000),
  probeAfter: milliseconds(1),
  drainTimeout: delay,
  window: anObject,
  limits: anObject,
  secret: {
    check: (value) => typeof value === 'string' && value.length >= 16,
    allowed: 'a string of 16 characters or more',
  },
};
const windowRules: Rules = { messages: count, bytes: count };
const limitRules: Rules = Object.fromEntries(
  [...Object.keys(defaultWireLimits), 'calls', 'nodes'].map((each) => [each, count]),
);

/**
 * Checks the options and fills in their defaults.
 *
 * @throws InvalidServingError naming the option, its value, and what is allowed
 */
export function resolveDistribution(given: DistributionOptions): ResolvedDistribution {
  checkOptions(OWNER, given, rules);
  checkOptions(`${OWNER}, "window"`, given.window ?? {}, windowRules);
  checkOptions(`${OWNER}, "limits"`, given.limits ?? {}, limitRules);
  const { heartbeat = 1000 } = given;
  const { downAfter = 3 * heartbeat } = given;
  if (downAfter < 2 * heartbeat) {
    throw new InvalidServingError(
      `${OWNER}: downAfter ${downAfter} is less than two heartbeats of ${heartbeat}, so nodes ` +
        'would go whenever one beat is late',
    );
  }
  return {
    namespace: given.namespace ?? 'default',
    nodeId:
      given.nodeId ?? `${hostname().slice(0, 64)}-${process.pid}-${randomBytes(3).toString('hex')}`,
    role: given.role,
    remotes: remotesIn(given.remotes ?? []),
    balance: given.balance ?? 'weighted',
    localFirst: given.localFirst ?? 'always',
    attempts: given.attempts ?? 3,
    requestTimeout: given.requestTimeout ?? 30_000,
    discoveryTimeout: given.discoveryTimeout ?? 2000,
    heartbeat,
    downAfter,
    probeAfter: given.probeAfter ?? 100,
    drainTimeout: given.drainTimeout,
    window: { messages: 64, bytes: 2 ** 20, ...given.window },
    // Nodes of the cluster, and not the parts of a value, which wire limits call so.
    limits: {
      ...defaultWireLimits,
      calls: 10_000,
      ...given.limits,
      nodes: defaultWireLimits.nodes,
    },
    maxNodes: given.limits?.nodes ?? 1024,
    secret: given.secret,
  };
}

function remotesIn(
  remotes: NonNullable<DistributionOptions['remotes']>,
): ResolvedDistribution['remotes'] {
  return new Map(
    remotes.map((remote) => {
      if (typeof remote === 'string') {
        return [remote, undefined];
      }
      const of: RemoteServingOptions = remote;
      return [of.name, of.preprocess && ((input) => of.preprocess!(input))];
    }),
  );
}
