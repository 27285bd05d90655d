import type { FlowControlOptions } from './calls/flow-control.js';
import type { Balance } from './membership/balancer.js';
import type { ServingTransport } from './transport.js';
import type { GrpcTransportOptions } from './transports/grpc/grpc.transport.js';
import type { NatsTransportOptions } from './transports/nats/nats.transport.js';
import type { Transport } from './transports/nest-types.js';
import type { Peers } from './transports/peers.js';
import type { RedisTransportOptions } from './transports/redis/redis.transport.js';
import type { TcpTransportOptions } from './transports/tcp/tcp.transport.js';
import type { WireLimits } from './wire/limits.js';

/** Options of `ServingClusterModule.forRoot`. */
export type DistributionOptions = DistributionTransport & ClusterOptions;

/** The transport between the nodes. */
export type DistributionTransport =
  TcpDistribution | GrpcDistribution | NatsDistribution | RedisDistribution | CustomTransport;

/** Nodes connect to each other over TCP, without a broker. */
export interface TcpDistribution {
  /** The transport. */
  readonly transport: Transport.TCP;
  /**
   * Options of Nest's TCP transport, passed on unchanged, or the `path` of a Unix socket. By default
   * a node listens on 127.0.0.1, on any free port.
   *
   * @default {}
   */
  readonly options?: TcpTransportOptions;
  /**
   * The addresses of the other nodes: `host:port`, `{ host, port }`, `{ dns, port }` for every
   * address of a name, the path of a Unix socket, `{ path }`, or a function that returns them. This
   * node's own address is ignored.
   *
   * @default []
   */
  readonly peers?: Peers;
  /**
   * Allows a node to listen beyond this machine with neither a `secret` nor certificates of both
   * sides.
   *
   * @default false
   */
  readonly insecure?: boolean;
}

/** Nodes connect to each other over gRPC, without a broker. */
export interface GrpcDistribution {
  /** The transport. */
  readonly transport: Transport.GRPC;
  /**
   * Options of Nest's gRPC transport, except those of the service: `url`, `tlsOptions`, `keepalive`
   * and `channelOptions`. By default a node listens on localhost:5000.
   *
   * @default {}
   */
  readonly options?: GrpcTransportOptions;
  /**
   * The addresses of the other nodes: `host:port`, `{ host, port }`, `{ dns, port }` for every
   * address of a name, or a function that returns them. This node's own address is ignored.
   *
   * @default []
   */
  readonly peers?: Peers;
  /**
   * Allows a node to listen beyond this machine with neither a `secret` nor certificates of both
   * sides.
   *
   * @default false
   */
  readonly insecure?: boolean;
}

/** Nodes connect to NATS servers. */
export interface NatsDistribution {
  /** The transport. */
  readonly transport: Transport.NATS;
  /**
   * Options of Nest's NATS transport, passed on unchanged. By default nodes connect to
   * nats://localhost:4222, and reconnect without limit.
   *
   * @default {}
   */
  readonly options?: NatsTransportOptions;
}

/** Nodes connect to a Redis server. */
export interface RedisDistribution {
  /** The transport. */
  readonly transport: Transport.REDIS;
  /**
   * Options of Nest's Redis transport, passed on unchanged. By default nodes connect to
   * localhost:6379, and reconnect without limit.
   *
   * @default {}
   */
  readonly options?: RedisTransportOptions;
}

/** A transport of the application. */
export interface CustomTransport {
  /** The transport. */
  readonly transport: ServingTransport;
}

/** A serving on other nodes, injectable here by its name. */
export interface RemoteServingOptions<Input = unknown> {
  /** The name of the serving. */
  readonly name: string;
  /** Changes the input of a call before it is sent, for example to make it smaller. */
  preprocess?(input: Input): unknown;
}

/** How a node finds the other nodes, and how it calls them. */
export interface ClusterOptions {
  /**
   * Only nodes of the same namespace form a cluster.
   *
   * @default 'default'
   */
  readonly namespace?: string;
  /**
   * The name of this node, unique in its namespace.
   *
   * @default host name, process id and random letters
   */
  readonly nodeId?: string;
  /**
   * A `node` answers calls of other nodes; a `client` only calls them.
   *
   * @default 'node' with servings, else 'client'
   */
  readonly role?: 'node' | 'client';
  /**
   * Servings of other nodes that can be injected here: names, or `{ name, preprocess }`.
   *
   * @default []
   */
  readonly remotes?: readonly (string | RemoteServingOptions<never>)[];
  /**
   * How the node for a call is picked: at random by weight × partitions (`weighted`), the less
   * loaded of two such picks (`least-loaded`), or by a function.
   *
   * @default 'weighted'
   */
  readonly balance?: Balance;
  /**
   * `always`: a call by name goes to this node's own serving. `unless-saturated`: it goes to other
   * nodes while two batches per partition wait here.
   *
   * @default 'always'
   */
  readonly localFirst?: 'always' | 'unless-saturated';
  /**
   * The most nodes that may run the rows of one call when nodes are lost, for `idempotent`
   * servings. Another node always gets a call that has not run.
   *
   * @default 3
   */
  readonly attempts?: number;
  /**
   * The deadline of calls to other nodes that have no `timeout`, in milliseconds; not for streams.
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
   * Milliseconds between two heartbeats, give or take a tenth.
   *
   * @default 1000
   */
  readonly heartbeat?: number;
  /**
   * Milliseconds of silence after which a node counts as lost, with its calls. It gets no new calls
   * after two thirds of this time.
   *
   * @default 3 heartbeats
   */
  readonly downAfter?: number;
  /**
   * Milliseconds without an answer after which the broker is asked whether the node is still
   * connected. Not for TCP and gRPC, which notice a closed connection.
   *
   * @default 100
   */
  readonly probeAfter?: number;
  /**
   * Milliseconds of shutdown after which calls of and to other nodes are answered as closed. At
   * most the longest `shutdown.timeout` of the servings of this node.
   *
   * @default the longest `shutdown.timeout` of its servings; 30000 without any
   */
  readonly drainTimeout?: number;
  /**
   * How much of one stream may be in flight before its reader acknowledges some of it. The smaller
   * window of the two nodes counts, and the receiver enforces it.
   *
   * @default { messages: 64, bytes: 1048576 }
   */
  readonly window?: Partial<FlowControlOptions>;
  /** The largest frames, and the most calls and nodes. Set the same on all nodes. */
  readonly limits?: Partial<DistributionLimits>;
  /**
   * Signs every packet (HMAC-SHA256), and refuses packets without a valid signature. It does not
   * encrypt. A node with a secret takes no calls of JSON clients, which cannot sign. At least 16
   * characters.
   *
   * @default none
   */
  readonly secret?: string;
}

/** The largest frames, and the most calls and nodes. */
export interface DistributionLimits extends Omit<WireLimits, 'nodes'> {
  /**
   * The most calls to other nodes, and the most from them, at a time.
   *
   * @default 10000
   */
  readonly calls: number;
  /**
   * The most known nodes.
   *
   * @default 1024
   */
  readonly nodes: number;
}
