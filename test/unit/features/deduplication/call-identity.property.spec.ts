import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { createServing, type LocalServing } from 'nestjs-serving';
import { turn, useVirtualTime } from '../../../fixtures/async/virtual-time.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';

/** A text of the parts that identities are made of, as a client that attacks them would choose. */
const text = fc
  .tuple(fc.constantFrom('', '2:de:', '4:2:de:', '-,', '2:de,'), fc.constantFrom('42', '2:42'))
  .map(([before, id]) => before + id);
const keys = ['default', 'de', '2:de', '-'];
const servings = [
  ['a', '1'],
  ['a', '1,-'],
  ['a,1:1', '2'],
  ['a', '1:a'],
] as const;

const call = fc.record({
  serving: fc.nat({ max: servings.length - 1 }),
  key: fc.option(fc.constantFrom(...keys), { nil: undefined }),
  origin: fc.constantFrom('http', '4:http'),
  id: text,
});
type Call = typeof call extends fc.Arbitrary<infer Value> ? Value : never;

interface Row {
  readonly id: string;
  /** What the reply depends on; the identity of the call must tell apart all that differ in it. */
  readonly whole: string;
}

describe('The identity of a call', () => {
  useVirtualTime();
  const start = useServings();

  it('[E1] gives a call without a key another identity than any call with one, in single flight and in the cache', async () => {
    const serving = await opened(new Map(), 'a', '1');
    const evil = { id: '2:de:42', whole: 'evil' };
    const victim = { id: '42', whole: 'victim' };

    expect(
      await Promise.all([serving.batchedRun(evil), serving.batchedRun(victim, { key: 'de' })]),
    ).toEqual(['evil', 'victim']);
    await turn();
    expect(await serving.batchedRun({ ...victim, whole: 'later' }, { key: 'de' })).toBe('victim');
  });

  it('[E1] shares a reply only between calls of the same serving, version, origin, key and input, in random mixes', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.array(call, { minLength: 1, maxLength: 12 }), { maxLength: 4 }),
        async (rounds) => {
          const store = new Map<string, unknown>();
          const open = await Promise.all(
            servings.map(([name, label]) => opened(store, name, label)),
          );
          for (const calls of rounds) {
            const replies = calls.map((each) => {
              const { serving, key, origin, id } = each;
              return open[serving]!.batchedRun({ id, whole: wholeOf(each) }, { key, origin });
            });
            expect(await Promise.all(replies)).toEqual(calls.map(wholeOf));
            await turn();
          }
          const distinct = new Set(rounds.flat().map(wholeOf));
          expect(store.size).toBe(distinct.size);
        },
      ),
      { numRuns: 60 },
    );
  });

  function opened(
    store: Map<string, unknown>,
    name: string,
    version: string,
  ): Promise<LocalServing> {
    const kept = {
      get: async (key: string) => store.get(key),
      set: async (key: string, value: string) => store.set(key, value),
    };
    return start(
      createServing(
        {
          name,
          rollout: { version },
          batchKeys: keys,
          queue: { separateOrigins: true },
          deduplication: { singleFlight: true, cache: { ttl: 60_000 }, key: ({ id }: Row) => id },
          model: { useFactory: () => (rows: Row[]) => rows.map(({ whole }) => whole) },
        },
        undefined,
        () => kept,
      ),
    );
  }
});

function wholeOf(each: Call): string {
  const { serving, key, origin, id } = each;
  return JSON.stringify([servings[serving], key ?? null, origin, id]);
}
