import type { Origin } from '../context/caller-context.js';

/** The version that replies belong to, where a store may hold those of others. */
export interface VersionIdentity {
  readonly serving: string;
  /** Undefined for a model: its content identifies it, and nodes may label it differently. */
  readonly label: string | undefined;
  /** The hash of the model or module file; undefined for code of the application. */
  readonly content: string | undefined;
}

/** The parts by which calls of one version differ. */
export interface CallIdentity {
  /** Only in a serving that separates origins. */
  readonly origin: Origin | undefined;
  /** The option `key` of the call. */
  readonly key: string | undefined;
  /** The identity of the input. */
  readonly input: string;
}

/**
 * The identity of a call among those of its version. Single flight and the reply cache both use it,
 * so that one never shares what the other keeps apart.
 */
export function identityOfCall({ origin, key, input }: CallIdentity): string {
  return joined([origin, key, input]);
}

/** The key of a reply in a store, under the identity of its call. */
export function cacheKeyOf({ serving, label, content }: VersionIdentity, call: string): string {
  return `nestjs-serving:${joined([serving, label, content])},${call}`;
}

/**
 * Parts as one text, each with its length, and `-` for one that is not there. Every part is always
 * written, so two different lists never give the same text, whatever callers put into them.
 */
function joined(parts: readonly (string | undefined)[]): string {
  return parts.map((part) => (part === undefined ? '-' : `${part.length}:${part}`)).join(',');
}
