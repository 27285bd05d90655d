import type { Address } from '../transport.js';
import type { ClusterNode, ServingStatus } from '../../serving/cluster-node.js';
import { readSignature } from './read-signature.js';
import { FrameError } from '../wire/prelude.js';
import {
  flagIn,
  listIn,
  numberIn,
  oneOfIn,
  recordOf,
  stringIn,
  wholeIn,
} from '../wire/record-reader.js';

/** The heartbeat of a node. */
export interface NodeInfo {
  /** A configured id stays the same after a restart. */
  readonly id: string;
  /** Grows with each start of the node. */
  readonly epoch: number;
  readonly address: Address;
  /**
   * The number of times that its transport went offline. Each time the calls from it and to it may
   * be lost.
   */
  readonly outages: number;
  /** Grows with each heartbeat of the epoch. */
  readonly seq: number;
  /** A client calls and serves nothing. */
  readonly role: ClusterNode['role'];
  /** `draining`: it finishes its calls and takes no more. */
  readonly state: 'up' | 'draining';
  readonly servings: readonly ServingStatus[];
}

/** The most characters in the name of a node or serving. */
export const LONGEST_NAME = 256;
const MOST_SERVINGS = 1024;
const MOST_PARTITIONS = 2 ** 16;

/** Small enough that the sum of weight × partitions over all nodes keeps its precision. */
const LARGEST_WEIGHT = 1e6;

const NAME = new RegExp(`^[^]{1,${LONGEST_NAME}}$`);
const ADDRESS = /^[\w-]{1,256}$/;

/** @throws FrameError for a malformed heartbeat */
export function readNodeInfo(value: unknown): NodeInfo {
  const info = recordOf(value, 'A heartbeat');
  const role = oneOfIn(info, 'role', ['client', 'node']);
  const servings = listIn(info, 'servings', MOST_SERVINGS).map(readServingStatus);
  if (role === 'client' && servings.length > 0) {
    throw new FrameError(`The heartbeat of a client lists ${servings.length} servings`);
  }
  if (new Set(servings.map(({ name }) => name)).size < servings.length) {
    throw new FrameError('A heartbeat names a serving twice');
  }
  return {
    id: stringIn(info, 'id', NAME),
    epoch: wholeIn(info, 'epoch'),
    address: stringIn(info, 'address', ADDRESS),
    outages: wholeIn(info, 'outages'),
    seq: wholeIn(info, 'seq'),
    role,
    state: oneOfIn(info, 'state', ['up', 'draining']),
    servings,
  };
}

function readServingStatus(value: unknown): ServingStatus {
  const status = recordOf(value, 'A serving in a heartbeat');
  return {
    name: stringIn(status, 'name', NAME),
    weight: numberIn(status, 'weight', LARGEST_WEIGHT),
    partitions: wholeIn(status, 'partitions', MOST_PARTITIONS),
    activeCalls: wholeIn(status, 'activeCalls'),
    queued: wholeIn(status, 'queued'),
    batchTime: numberIn(status, 'batchTime'),
    idempotent: flagIn(status, 'idempotent'),
    isReady: flagIn(status, 'isReady'),
    signature: status['signature'] === undefined ? undefined : readSignature(status['signature']),
  };
}
