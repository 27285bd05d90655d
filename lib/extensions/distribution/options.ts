import type { FlowControlOptions } from './calls/flow-control.js';
import type { Balance } from './membership/balancer.js';
import type { DistributionTransport } from './transports/transports.js';
import type { WireLimits } from './wire/limits.js';

/** Options of `ServingClusterModule.forRoot`. */
export type DistributionOptions = DistributionTransport & ClusterOptions;

/** A serving on other nodes, injectable here by its name. */
export interface RemoteServingOptions<Input = unknown> {
  /** Name of the serving. */
  readonly name: string;
  /** Transforms an input before it is sent, for example to make it smaller. */
  preprocess?(input: Input): unknown;
}

/** How a node finds and calls the other nodes. */
export interface ClusterOptions {
  /**
   * Only nodes with the same namespace form a cluster.
   *
   * @default 'default'
   */
  readonly namespace?: string;
  /**
   * Name of this node, unique in its namespace.
   *
   * @default host name, process id and random letters
   */
  readonly nodeId?: string;
  /**
   * A `node` answers other nodes' calls; a `client` only calls them.
   *
   * @default 'node' with servings, and otherwise 'client'
   */
  readonly role?: 'node' | 'client';
  /**
   * Other nodes' servings that can be injected here: names, or `{ name, preprocess }`.
   *
   * @default []
   */
  readonly remotes?: readonly (string | RemoteServingOptions<never>)[];
  /**
   * How to pick a node: at random by weight × partitions (`weighted`), the less loaded of two such
   * picks (`least-loaded`), or by a function.
   *
   * @default 'weighted'
   */
  readonly balance?: Balance;
  /**
   * `always`: calls by name go to this node's own serving. `unless-saturated`: they go to other
   * nodes while two batches per partition wait here.
   *
   * @default 'always'
   */
  readonly localFirst?: 'always' | 'unless-saturated';
  /**
   * Maximum nodes that may run one call's rows, for `idempotent` servings, if nodes are lost. A
   * call that has not run always goes to another node.
   *
   * @default 3
   */
  readonly attempts?: number;
  /**
   * Default timeout of calls to other nodes, in milliseconds; not for streams.
   *
   * @default 30000
   */
  readonly requestTimeout?: number;
  /**
   * Milliseconds that a call waits for a node with its serving.
   *
   * @default 2000
   */
  readonly discoveryTimeout?: number;
  /**
   * Milliseconds between two heartbeats, ± 10 %.
   *
   * @default 1000
   */
  readonly heartbeat?: number;
  /**
   * Milliseconds of silence until a node and its calls count as lost. After two thirds of it, the
   * node gets no new calls.
   *
   * @default 3 heartbeats
   */
  readonly downAfter?: number;
  /**
   * Milliseconds without an answer until we ask the broker if the node is connected. Not for TCP
   * and gRPC, which notice closed connections.
   *
   * @default 100
   */
  readonly probeAfter?: number;
  /**
   * Milliseconds until shutdown fails unanswered calls from and to other nodes. At most the longest
   * `shutdown.timeout` of this node's servings.
   *
   * @default the longest `shutdown.timeout` of its servings; 30000 without any
   */
  readonly drainTimeout?: number;
  /**
   * Limits a stream's unacknowledged part. The smaller of both nodes' windows counts, and the
   * receiver enforces it.
   *
   * @default { messages: 64, bytes: 1048576 }
   */
  readonly window?: Partial<FlowControlOptions>;
  /** Limits for frames, calls and nodes. Set the same on all nodes. */
  readonly limits?: Partial<DistributionLimits>;
  /**
   * Signs packets (HMAC-SHA256) and refuses those without a valid signature; does not encrypt. JSON
   * clients cannot sign, so a node with a secret refuses them. At least 16 characters.
   * Of a list, the first signs and all are valid, so that a secret can be replaced while nodes run.
   * An undefined one, as of a missing environment variable, fails the boot.
   *
   * @default none
   */
  readonly secret?: string | readonly string[] | undefined;
}

/** Limits for frames, calls and nodes. */
export interface DistributionLimits extends Omit<WireLimits, 'nodes'> {
  /**
   * Maximum concurrent calls to other nodes, and from them.
   *
   * @default 10000
   */
  readonly calls: number;
  /**
   * Maximum known nodes.
   *
   * @default 1024
   */
  readonly nodes: number;
}
