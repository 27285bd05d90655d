import { formatValue } from '../../format.js';
import type { Address } from '../transport.js';
import { FrameError } from '../wire/prelude.js';

/** How one serving of a node is. */
export interface ServingStatus {
  readonly name: string;
  /** Its `distribution.weight`: 0 or more, also a fraction. */
  readonly weight: number;
  /** The partitions that work now. */
  readonly partitions: number;
  /** The calls of other nodes that are under way. */
  readonly inflight: number;
  /** The rows that wait. */
  readonly queued: number;
  /**
   * Milliseconds that a batch runs, on average over the last ones, without the time that rows wait;
   * 0: none has run.
   */
  readonly ewmaMs: number;
  /** Whether a call whose answer was lost may be made again. */
  readonly idempotent: boolean;
  /**
   * Whether it answers calls: it is loaded and warm, and neither closing nor without partitions.
   */
  readonly isReady: boolean;
}

/** How a node is: what it says of itself with each beat. */
export interface NodeInfo {
  /** The same after a restart, where it is configured. */
  readonly id: string;
  /** Larger with each start of the node. */
  readonly epoch: number;
  readonly address: Address;
  /**
   * How often it has been cut off from all others, and knew it: what was under way then, from it or
   * to it, may be lost.
   */
  readonly outages: number;
  /** Larger with each beat of the epoch. */
  readonly seq: number;
  /** A client calls, and serves nothing. */
  readonly role: 'node' | 'client';
  /** `draining`: it finishes what it has, and wants no more. */
  readonly state: 'up' | 'draining';
  readonly servings: readonly ServingStatus[];
}

/** The characters of the longest name of a node or serving. */
export const LONGEST_NAME = 256;
const MOST_SERVINGS = 1024;
const MOST_PARTITIONS = 2 ** 16;

/**
 * Together with the most partitions, and as many nodes as there may be, still far from where sums
 * lose what is small.
 */
const LARGEST_WEIGHT = 1e6;

/** @throws FrameError for a header that is not that of a beat */
export function readNodeInfo(header: unknown): NodeInfo {
  const { id, epoch, address, outages, seq, role, state, servings } = recordOf(header, 'a beat');
  if (typeof address !== 'string' || !/^[\w-]{1,256}$/.test(address)) {
    throw odd('address', address);
  }
  const served = servingsOf(servings);
  const isClient = oneOf(['client', 'node'], role, 'role') === 'client';
  if (isClient && served.length > 0) {
    throw new FrameError(`A beat of a client that has ${served.length} servings`);
  }
  return {
    id: nameOf(id, 'id'),
    epoch: wholeOf(epoch, 'epoch'),
    address,
    outages: wholeOf(outages, 'outages'),
    seq: wholeOf(seq, 'seq'),
    role: isClient ? 'client' : 'node',
    state: oneOf(['up', 'draining'], state, 'state'),
    servings: served,
  };
}

function servingsOf(servings: unknown): readonly ServingStatus[] {
  if (!Array.isArray(servings) || servings.length > MOST_SERVINGS) {
    throw odd('list of servings', servings);
  }
  const served = servings.map(servedOf);
  if (new Set(served.map(({ name }) => name)).size < served.length) {
    throw new FrameError('A beat that names a serving twice');
  }
  return served;
}

function servedOf(serving: unknown): ServingStatus {
  const { name, weight, partitions, inflight, queued, ewmaMs, idempotent, isReady } = recordOf(
    serving,
    'a serving in a beat',
  );
  return {
    name: nameOf(name, 'name of a serving'),
    weight: numberOf(weight, 'weight', LARGEST_WEIGHT),
    partitions: wholeOf(partitions, 'partitions', MOST_PARTITIONS),
    inflight: wholeOf(inflight, 'inflight'),
    queued: wholeOf(queued, 'queued'),
    ewmaMs: numberOf(ewmaMs, 'ewmaMs'),
    idempotent: flagOf(idempotent, 'idempotent'),
    isReady: flagOf(isReady, 'isReady'),
  };
}

function recordOf(value: unknown, what: string): Readonly<Record<string, unknown>> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new FrameError(`${formatValue(value)} is not ${what}`);
  }
  return value as Readonly<Record<string, unknown>>;
}

function nameOf(value: unknown, what: string): string {
  if (typeof value !== 'string' || value === '' || value.length > LONGEST_NAME) {
    throw odd(what, value);
  }
  return value;
}

function wholeOf(value: unknown, what: string, most = Number.MAX_SAFE_INTEGER): number {
  if (!Number.isInteger(value)) {
    throw odd(what, value);
  }
  return numberOf(value, what, most);
}

function numberOf(value: unknown, what: string, most = Number.MAX_SAFE_INTEGER): number {
  if (typeof value !== 'number' || !(value >= 0 && value <= most)) {
    throw odd(what, value);
  }
  return value;
}

function flagOf(value: unknown, what: string): boolean {
  if (typeof value !== 'boolean') {
    throw odd(what, value);
  }
  return value;
}

function oneOf<Value extends string>(
  allowed: readonly Value[],
  value: unknown,
  what: string,
): Value {
  const found = allowed.find((one) => one === value);
  if (found === undefined) {
    throw odd(what, value);
  }
  return found;
}

function odd(what: string, value: unknown): FrameError {
  return new FrameError(`A beat with ${formatValue(value)} for its ${what}`);
}
