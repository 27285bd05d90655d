import { deserialize, serialize } from 'node:v8';
import { types } from 'node:util';
import { copyLeaf, deepCopy } from '../../core/batch/deep-copy.js';
import { isTensor, type Tensor, tensorOf } from '../../core/batch/tensor.js';
import { messageOf } from '../../core/errors.js';
import { log } from '../../core/log.js';
import type { ReplyCacheOptions } from './deduplication.js';
import { cacheKeyOf, type VersionIdentity } from './shared-calls.js';

export interface ReplyStore {
  get(key: string): Promise<unknown>;
  set(key: string, value: string, ttl: number): Promise<unknown>;
}

/** Milliseconds between two warnings: a store that is down fails every call. */
const BETWEEN_WARNINGS = 60_000;

/** A failing or slow store only delays calls. */
export class ReplyCache {
  private readonly lookups = new Set<Promise<unknown>>();
  private warnedAt = -BETWEEN_WARNINGS;

  constructor(
    private readonly store: ReplyStore,
    private readonly options: Required<ReplyCacheOptions>,
    /** Other versions don't find its replies. */
    private readonly version: VersionIdentity,
  ) {}

  find(identity: string): Promise<{ readonly reply: unknown } | undefined> {
    const lookup = this.lookUp(identity);
    this.lookups.add(lookup);
    void lookup.then(() => this.lookups.delete(lookup));
    return lookup;
  }

  async keep(identity: string, reply: unknown): Promise<void> {
    try {
      await this.store.set(
        cacheKeyOf(this.version, identity),
        encodeReply(reply),
        this.options.ttl,
      );
    } catch (error) {
      this.warn('A reply was not kept', error);
    }
  }

  async idle(): Promise<void> {
    while (this.lookups.size > 0) {
      await Promise.all(this.lookups);
    }
  }

  private async lookUp(identity: string): Promise<{ readonly reply: unknown } | undefined> {
    try {
      const text = await within(
        this.options.timeout,
        this.store.get(cacheKeyOf(this.version, identity)),
      );
      return typeof text === 'string' ? { reply: decodeReply(text) } : undefined;
    } catch (error) {
      this.warn('A reply was not found', error);
      return undefined;
    }
  }

  private warn(what: string, error: unknown): void {
    const now = performance.now();
    if (now - this.warnedAt >= BETWEEN_WARNINGS) {
      this.warnedAt = now;
      log.warn(
        `The cache of serving "${this.version.serving}": ${what}: ${messageOf(error)}; calls go on without`,
      );
    }
  }
}

async function within<T>(milliseconds: number, answer: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new Error(`no answer within ${milliseconds} ms`)),
      milliseconds,
    );
  });
  try {
    return await Promise.race([answer, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** V8 doesn't keep a tensor's class. */
type Parts = Pick<Tensor, 'type' | 'data' | 'dims'>;

/**
 * JSON would not keep typed arrays, tensors, dates and NaN.
 *
 * @throws InvalidOutputError for a reply that can't be copied
 */
export function encodeReply(reply: unknown): string {
  const tensors: Parts[] = [];
  const packed = deepCopy(reply, (leaf) => {
    if (!isTensor(leaf)) {
      return copyLeaf(leaf);
    }
    const { type, data, dims } = leaf;
    tensors.push({ type, data, dims });
    // A Number object marks a tensor's place: V8 keeps it, and no reply holds one.
    return Object(tensors.length - 1);
  });
  return serialize({ packed, tensors }).toString('base64');
}

export function decodeReply(text: string): unknown {
  const { packed, tensors } = deserialize(Buffer.from(text, 'base64')) as {
    packed: unknown;
    tensors: readonly Parts[];
  };
  return deepCopy(packed, (leaf) => {
    if (!types.isNumberObject(leaf)) {
      // V8 returns views of the whole text.
      return copyLeaf(leaf);
    }
    const { type, data, dims } = tensors[Number(leaf)]!;
    return tensorOf({ type, data: deepCopy(data) as Tensor['data'], dims });
  });
}
