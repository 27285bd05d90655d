import { describe, expect, it } from '@jest/globals';
import { createServing, InvalidServingError, type ServingDefinition } from 'nestjs-serving';

const useFactory = () => (rows: unknown[]) => rows;

describe('The option deduplication', () => {
  it.each([
    [
      { key: String },
      'deduplication.key needs deduplication.singleFlight: true or deduplication.cache, whose inputs it identifies',
    ],
    [
      { key: String, singleFlight: false },
      'deduplication.key needs deduplication.singleFlight: true or',
    ],
    [
      { cache: { ttl: 0 } },
      'option "deduplication.cache.ttl" is 0; allowed is a whole number from 1 to',
    ],
    [{ cache: {} }, 'option "deduplication.cache" is {}; allowed is an object of ttl and timeout'],
    [{ singleflight: true }, 'unknown option "deduplication.singleflight" (true); did you mean'],
    [
      { cache: { ttl: 1000 } },
      'deduplication.cache needs the application that has the cache manager; use ServingModule',
    ],
  ])('[1.9] [M8] The options %p are refused', (deduplication: object, message) => {
    const definition = { name: 'net', model: { useFactory }, deduplication } as ServingDefinition;

    expect(() => createServing(definition)).toThrow(InvalidServingError);
    expect(() => createServing(definition)).toThrow(message);
  });

  it('[1.9] [M8] Sessions are refused with it: their calls have states', () => {
    const definition = {
      name: 'net',
      model: { useFactory, sessions: {} },
      deduplication: { singleFlight: true },
    };

    expect(() => createServing(definition)).toThrow(
      'deduplication has no effect with sessions, whose calls with the same input have different states',
    );
  });
});
