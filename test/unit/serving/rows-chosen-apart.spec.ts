import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Batch, type LocalServing } from 'nestjs-serving';
import { iterated } from '../../fixtures/async/streams.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const lengths = fc.array(
  fc.array(fc.integer({ min: 1, max: 30 }), { minLength: 1, maxLength: 12 }),
  {
    minLength: 1,
    maxLength: 8,
  },
);

/** A text for each length, unlike all others. */
const textsOf = (call: readonly number[], index: number): string[] =>
  call.map((length, row) => `${index}.${row}`.padEnd(length, 'x').slice(0, 30));

const upper = (text: string): string => text.toUpperCase();

/** Each text in two steps: its length, and itself. */
async function* inSteps(texts: string[]): AsyncGenerator<unknown[], void> {
  yield texts.map(({ length }) => length);
  yield texts.map(upper);
}

describe('Rows that are chosen apart from others of their call', () => {
  useVirtualTime();
  const startServing = useServings();

  const start = (run: (texts: string[]) => unknown): Promise<LocalServing> =>
    startServing<unknown>({
      name: 'texts',
      partitions: 2,
      batchSize: {
        rows: 6,
        cost: {
          of: (text: string) => text.length,
          most: 60,
          padded: true,
          similar: { overtaking: 3 },
        },
      },
      model: { useFactory: () => run },
    });

  it('[14.3] Replies have the outputs of their own rows, in their order', async () => {
    const serving = await start((texts) => texts.map(upper));
    await fc.assert(
      fc.asyncProperty(lengths, async (calls) => {
        const texts = calls.map(textsOf);
        const replies = texts.map((rows) => serving.batchedRun(Batch.stack(rows)));
        await later();

        expect(await Promise.all(replies)).toEqual(texts.map((rows) => rows.map(upper)));
      }),
      { numRuns: 60 },
    );
  });

  it('[14.3] Streams have the outputs of their own rows, in their order', async () => {
    const serving = await start((texts) => texts.map(upper));
    await fc.assert(
      fc.asyncProperty(lengths, async (calls) => {
        const texts = calls.map(textsOf);
        const streams = texts.map((rows) => iterated(serving.stream(Batch.stack(rows))));
        await later();
        const events = await Promise.all(streams);

        expect(events.map((own) => own.flatMap(({ output }) => output))).toEqual(
          texts.map((rows) => rows.map(upper)),
        );
      }),
      { numRuns: 60 },
    );
  });

  it('[14.3] Steps of a generator are those of their own rows', async () => {
    const serving = await start(inSteps);
    await fc.assert(
      fc.asyncProperty(lengths, async (calls) => {
        const texts = calls.map(textsOf);
        const replies = texts.map((rows) => serving.batchedRun(Batch.stack(rows)));
        await later();

        expect(await Promise.all(replies)).toEqual(
          texts.map((rows) => rows.map((row) => [row.length, upper(row)])),
        );
      }),
      { numRuns: 60 },
    );
  });
});
