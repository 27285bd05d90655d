import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { InvalidServingError } from '../../index.js';
import {
  checkOptions,
  delay,
  milliseconds,
  oneOf,
  type Rule,
  type Rules,
  whole,
} from '../../doors/options.js';
import { type RemotePreprocess } from '../../doors/servings.js';
import type { FlowControlOptions } from './calls/flow-control.js';
import type { Balance } from './membership/balancer.js';
import type { DistributionLimits, DistributionOptions, RemoteServingOptions } from './options.js';
import type { Secrets } from './wire/signature.js';
import { defaultWireLimits, type WireLimits } from './wire/limits.js';

/** Options with defaults. */
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
  readonly maxNodes: number;
  readonly secret: Secrets | undefined;
}

export const OWNER = 'ServingClusterModule';
export const DEFAULT_NAMESPACE = 'default';

const name: Rule = {
  check: (value) => typeof value === 'string' && value !== '' && value.length <= 128,
  allowed: 'a string of 1 to 128 characters',
};
const anObject: Rule = {
  check: (value) => typeof value === 'object' && value !== null,
  allowed: 'an object',
};
const count = whole(1, 2 ** 31);

export const rules: Rules = {
  transport: {
    check: (value) => value !== undefined,
    allowed: "one of Nest's transports, or a ServingTransport",
  },
  options: anObject,
  namespace: name,
  nodeId: name,
  role: oneOf('node', 'client'),
  peers: {
    check: (value) => Array.isArray(value) || typeof value === 'function',
    allowed: 'a list of nodes, or a function that returns one',
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
    check: (value) => {
      const secrets: readonly unknown[] = Array.isArray(value) ? value : [value];
      return (
        secrets.length > 0 &&
        secrets.every((secret) => typeof secret === 'string' && secret.length >= 16)
      );
    },
    allowed: 'a string of 16 characters or more, or a list of such strings',
    isSecret: true,
  },
};
const windowRules: Rules = { messages: count, bytes: count };
const limitRules: Rules = Object.fromEntries(
  [...Object.keys(defaultWireLimits), 'calls', 'nodes'].map((each) => [each, count]),
);

/** @throws InvalidServingError naming the option, its value, and what is allowed */
export function resolveDistribution(given: DistributionOptions): ResolvedDistribution {
  checkOptions(OWNER, given, rules);
  checkOptions(`${OWNER}, "window"`, given.window ?? {}, windowRules);
  checkOptions(`${OWNER}, "limits"`, given.limits ?? {}, limitRules);
  if ('secret' in given && given.secret === undefined) {
    throw new InvalidServingError(
      `${OWNER}: option "secret" is undefined, so that no packet would be signed; is the environment ` +
        'variable that holds it set? Leave the option out for a cluster without a secret',
    );
  }
  const { heartbeat = 1000 } = given;
  const { downAfter = 3 * heartbeat } = given;
  if (downAfter < 2 * heartbeat) {
    throw new InvalidServingError(
      `${OWNER}: downAfter ${downAfter} is less than two heartbeats of ${heartbeat}, so a node ` +
        'would leave whenever one heartbeat is late',
    );
  }
  return {
    namespace: given.namespace ?? DEFAULT_NAMESPACE,
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
    // The option `limits.nodes` counts cluster nodes, the wire limit parts of a value.
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
      const options: RemoteServingOptions = remote;
      return [options.name, options.preprocess && ((input) => options.preprocess!(input))];
    }),
  );
}
