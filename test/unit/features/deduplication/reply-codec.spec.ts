import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { contentHash, createServing, Tensor } from 'nestjs-serving';
import { useServings } from '../../../fixtures/serving/use-servings.js';
import { sixOfEachType } from '../../../fixtures/values/tensors.js';

const kinds = {
  withBigInt: true,
  withDate: true,
  withMap: true,
  withSet: true,
  withTypedArray: true,
  withSparseArray: true,
};

/** A store that writes JSON. */
class JsonStore {
  private readonly entries = new Map<string, string>();

  async get(key: string): Promise<unknown> {
    const entry = this.entries.get(key);
    return entry === undefined ? undefined : JSON.parse(entry);
  }

  async set(key: string, value: unknown): Promise<void> {
    this.entries.set(key, JSON.stringify(value));
  }

  get size(): number {
    return this.entries.size;
  }
}

describe('A reply from the cache', () => {
  const start = useServings();

  /** Returns replies as the cache does, which has each of them once its first call was answered. */
  async function cache(): Promise<(reply: unknown) => Promise<unknown>> {
    const store = new JsonStore();
    const replies: unknown[] = [];
    const definition = {
      name: 'kept',
      deduplication: { cache: { ttl: 60_000 }, key: String },
      model: { useFactory: () => (rows: number[]) => rows.map((row) => ({ reply: replies[row] })) },
    };
    const serving = await start(createServing(definition, undefined, () => store));
    return async (reply) => {
      const row = replies.push(reply) - 1;
      await serving.batchedRun(row);
      expect(store.size).toBe(replies.length);
      replies[row] = 'not from the cache';
      const kept = (await serving.batchedRun(row)) as { reply: unknown };
      return kept.reply;
    };
  }

  it('Any reply is restored as it was, also from a store that writes JSON', async () => {
    const through = await cache();
    await fc.assert(
      fc.asyncProperty(fc.anything(kinds), async (reply) => {
        expect(contentHash(await through(reply))).toBe(contentHash(reply));
      }),
      { numRuns: 500 },
    );
  });

  it('[1.7] Tensors of every type are restored, alone and inside other values', async () => {
    const through = await cache();
    for (const tensor of sixOfEachType) {
      const reply = { label: 'cat', scores: [tensor, new Map([['same', tensor]])], count: 1 };
      const back = (await through(reply)) as typeof reply;
      expect(contentHash(back)).toBe(contentHash(reply));
      expect(back.scores[0]).toBeInstanceOf(Tensor);
      expect(contentHash(await through(tensor))).toBe(contentHash(tensor));
    }
  });

  it('Typed arrays are restored in buffers of exactly their own size', async () => {
    const through = await cache();
    const [one, other] = (await through([
      Float32Array.of(1, 2),
      Float32Array.of(3),
    ])) as Float32Array[];
    expect([one!.buffer.byteLength, other!.buffer.byteLength]).toEqual([8, 4]);
    const { data } = (await through(new Tensor('float32', [1, 2, 3], [3]))) as {
      data: Float32Array;
    };
    expect(data.buffer.byteLength).toBe(12);
  });

  it('A Buffer is restored as a Buffer', async () => {
    const back = await (await cache())(Buffer.from('text'));
    expect(Buffer.isBuffer(back) && back.toString()).toBe('text');
  });
});
