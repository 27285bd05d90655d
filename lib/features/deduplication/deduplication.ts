import { contentHash } from '../../core/batch/content-hash.js';
import {
  aFunction,
  flag,
  groupOf,
  isRecord,
  LONGEST_DELAY,
  type Rules,
  whole,
} from '../../core/definition/option-rules.js';
import type { ResolvedServing } from '../../core/definition/resolved-serving.js';
import { InvalidServingError } from '../../core/errors.js';
import type { CallSharing, SharingOpener } from '../../core/execution/call-sharing.js';
import type { OpenedEngine } from '../../core/partitions/engine.js';
import type { Feature, MethodCalls, OfArguments, Provide } from '../../core/serving/feature.js';
import { ReplyCache, type ReplyStore } from './reply-cache.js';
import { SharedCalls, type VersionIdentity } from './shared-calls.js';

declare module '../../core/definition/serving-definition.js' {
  interface OptionsOfCalls<Input, Output, Result, Info, Facts> {
    /** How calls with the same input share one run. */
    readonly deduplication?: DeduplicationOptions<Input>;
  }
}

declare module '../../nest/batched/batched-method.js' {
  interface BatchedOptions {
    /** How calls with the same arguments share one run. */
    readonly deduplication?: BatchedDeduplicationOptions;
  }
}

/** Options of the reply cache. */
export interface ReplyCacheOptions {
  /** Milliseconds that a reply is kept. */
  readonly ttl: number;
  /**
   * Milliseconds that a call waits for the cache before it runs without.
   *
   * @default 100
   */
  readonly timeout?: number;
}

/** How calls with the same input share one run. */
export interface DeduplicationOptions<Input = unknown> {
  /**
   * Whether concurrent calls of `batchedRun` with the same input run once: later ones join the
   * first while it is under way.
   *
   * @default false
   */
  readonly singleFlight?: boolean;
  /**
   * Keeps the replies of `batchedRun` in the application's cache manager, of
   * `@nestjs/cache-manager`.
   *
   * @default none
   */
  readonly cache?: ReplyCacheOptions;
  /**
   * The identity of an input: everything that the answer depends on. `undefined` for an input that
   * shares with no other. Needs `singleFlight` or `cache`.
   *
   * @default contentHash of the input
   */
  key?(input: Input): string | undefined;
}

/** How calls of a batched method with the same arguments share one run. */
export interface BatchedDeduplicationOptions extends Omit<DeduplicationOptions, 'key'> {
  /**
   * A call's identity by its arguments: everything that the answer depends on. `undefined`
   * for a call that shares with no other. Instances of classes, such as `types`, need it.
   *
   * @default contentHash of the list of arguments
   */
  readonly key?: OfArguments<string | undefined>;
}

const rules: Rules = {
  deduplication: groupOf({
    singleFlight: flag,
    cache: {
      check: (value) => isRecord(value) && value['ttl'] !== undefined,
      allowed: 'an object of ttl and timeout, in milliseconds',
      group: { ttl: whole(1, Number.MAX_SAFE_INTEGER), timeout: whole(1, LONGEST_DELAY) },
    },
    key: aFunction,
  }),
};

export const deduplication: Feature = {
  rules,
  combinations: [
    ({ definition }) =>
      definition.deduplication?.key !== undefined &&
      !shares(definition.deduplication) &&
      'deduplication.key needs deduplication.singleFlight: true or deduplication.cache, whose ' +
        'inputs it identifies',
    ({ definition, states }) =>
      definition.deduplication !== undefined &&
      states !== undefined &&
      'deduplication has no effect with sessions, whose calls with the same input have different ' +
        'states; leave it out',
  ],
  sharingOf: ({ name, deduplication: options = {} }, provide) =>
    shares(options) ? new Deduplication(name, options, provide) : undefined,
  ofMethod: ({ deduplication: options }: MethodOptions, calls) =>
    options ? { deduplication: { ...options, key: keyOfCall(options, calls) } } : {},
  ofStandIn: ({ deduplication: options }) => ({
    deduplication: options?.singleFlight ? { ...options, cache: undefined } : undefined,
  }),
};

interface MethodOptions {
  readonly deduplication?: BatchedDeduplicationOptions;
}

function shares({ singleFlight, cache }: Pick<DeduplicationOptions, 'singleFlight' | 'cache'>) {
  return singleFlight === true || cache !== undefined;
}

const CACHE_MANAGER = 'CACHE_MANAGER';

class Deduplication implements SharingOpener {
  constructor(
    private readonly serving: string,
    private readonly options: DeduplicationOptions,
    private readonly provide: Provide | undefined,
  ) {
    if (options.cache && !provide) {
      throw new InvalidServingError(
        `Serving "${serving}": deduplication.cache needs the application that has the cache ` +
          'manager; use ServingModule',
      );
    }
  }

  get keepsAnswers(): boolean {
    return this.options.cache !== undefined;
  }

  check(): void {
    this.store();
  }

  async open(serving: ResolvedServing, loaded: OpenedEngine): Promise<CallSharing> {
    const { options } = this;
    const { singleFlight = false, cache } = options;
    const keyOf = (input: unknown) => (options.key ? options.key(input) : contentHash(input));
    const sharing = { singleFlight, keyOf };
    const store = this.store();
    if (!cache || !store) {
      return new SharedCalls(serving.name, sharing, undefined);
    }
    const { ttl, timeout = 100 } = cache;
    const version = await versionOf(serving, loaded);
    return new SharedCalls(serving.name, sharing, new ReplyCache(store, { ttl, timeout }, version));
  }

  private store(): ReplyStore | undefined {
    if (!this.options.cache) {
      return undefined;
    }
    try {
      return this.provide!(CACHE_MANAGER) as ReplyStore;
    } catch (cause) {
      throw new InvalidServingError(
        `Serving "${this.serving}" has the option "deduplication.cache", and the application has no ` +
          'cache manager to keep replies in; import CacheModule.register() of ' +
          '@nestjs/cache-manager, or drop the option',
        { cause },
      );
    }
  }
}

async function versionOf(
  { name, runner, version }: ResolvedServing,
  { contentOf, fetched }: OpenedEngine,
): Promise<VersionIdentity> {
  const content = await contentOf?.();
  const { facts, content: ofFacts } = fetched ?? {};
  const isIdentified = runner === 'model' && (facts === undefined || ofFacts !== undefined);
  return {
    serving: name,
    label: isIdentified ? undefined : version,
    content: ofFacts === undefined ? content : `${content} ${ofFacts}`,
  };
}

function keyOfCall(
  { key, ...options }: BatchedDeduplicationOptions,
  calls: MethodCalls,
): DeduplicationOptions['key'] {
  if (!shares(options)) {
    // The rules refuse a key that identifies nothing.
    return key && calls.ofCall(key);
  }
  const keyOf = calls.ofCall(key ?? ((...args: unknown[]) => contentHash(args)));
  return (call) => {
    const identity = keyOf(call);
    const owner = calls.ownerOf(call);
    // Another type is refused where it is used.
    return owner === '' || typeof identity !== 'string' ? identity : `${owner} ${identity}`;
  };
}
