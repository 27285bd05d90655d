import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  InvalidInputError,
  type LocalServing,
  type ServingDefinition,
  UnknownKeyError,
} from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

/** Returns each row with the key of its batch. */
const definition: ServingDefinition = {
  name: 'keyed',
  batchKeys: ['long', 'short'],
  model: {
    useFactory:
      ({ key }) =>
      (rows: readonly unknown[]) =>
        rows.map((row) => `${key} ${String(row)}`),
  },
};

async function* twoRows(): AsyncGenerator {
  yield Batch.stack(['a']);
  yield Batch.stack(['b']);
}

describe('The key of a call', () => {
  const start = useServings();
  const serve = (options: Partial<ServingDefinition> = {}): Promise<LocalServing> =>
    start({ ...definition, ...options });

  it('[M4] The key of a call applies to one plain row', async () => {
    const serving = await serve();

    expect(await serving.batchedRun('a', { key: 'short' })).toBe('short a');
    expect(await serving.run('a', { key: 'any' })).toBe('any a');
  });

  it.each<[string, unknown]>([
    ['a batch', Batch.stack(['a', 'b'])],
    ['a list of batches', [Batch.stack(['a']), Batch.stack(['b'])]],
  ])('[M4] The key of a call applies to all rows of %s', async (_, input) => {
    const serving = await serve();

    expect(await serving.batchedRun(input, { key: 'long' })).toEqual(['long a', 'long b']);
  });

  it('[M4] The key of a call applies to sequences, to streams and to batches from preprocess', async () => {
    const serving = await serve();
    const prepared = await serve({ name: 'prepared', preprocess: (batch) => ({ batch }) });

    expect(await serving.batchedRun(twoRows(), { key: 'short' })).toEqual(['short a', 'short b']);
    expect(await collect(serving.stream('a', { key: 'short' }))).toMatchObject([
      { output: 'short a' },
    ]);
    expect(await prepared.batchedRun('a', { key: 'long' })).toBe('long a');
  });

  it('[M4] A key that contradicts the batch or is unknown to the serving is refused', async () => {
    const serving = await serve();
    const batch = Batch.stack(['a']).withKey('long');

    expect(await serving.batchedRun(batch, { key: 'long' })).toEqual(['long a']);
    await expect(serving.batchedRun(batch, { key: 'short' })).rejects.toThrow(
      new InvalidInputError(
        'A call to serving "keyed" names the key "short", and its batch has the key "long"; name one of them',
      ),
    );
    await expect(serving.batchedRun('a', { key: 'other' })).rejects.toThrow(UnknownKeyError);
    await expect(serving.batchedRun('a', { key: 7 as never })).rejects.toThrow(
      'has key 7; allowed is a string',
    );
  });

  it('[M4] Calls with equal inputs and different keys do not share a run', async () => {
    const serving = await serve({ deduplication: { singleFlight: true } });
    const replies = ['short', 'long', 'short'].map((key) => serving.batchedRun('a', { key }));

    expect(await Promise.all(replies)).toEqual(['short a', 'long a', 'short a']);
  });
});
