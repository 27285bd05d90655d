import { describe, expect, it } from '@jest/globals';
import { createServing, InvalidServingError, type ServingDefinition } from 'nestjs-serving';
import { useServings } from '../../../fixtures/serving/use-servings.js';

const model = { start: (rows: unknown[]) => rows, step: (states: unknown[]) => states };
const valid = { name: 'writer', model: { useFactory: () => model, sequence: {} } };

/** Options that violate the types are allowed here. */
const create = (options: object) => createServing(options as ServingDefinition);

describe('The definition of a sequence', () => {
  const start = useServings();

  it.each([
    [
      { batchSize: [1, 4] },
      'batchSize [ 1, 4 ] has no effect on a sequence, where it is the number of places; leave it out',
    ],
    [
      { batchTimeout: 0 },
      'batchTimeout 0 has no effect on a sequence, where a row joins as soon as a place is free; leave it out',
    ],
    [
      { batchKeys: ['a', { key: 'b', batchSize: 2 }] },
      "batchKeys { key: 'b', batchSize: 2 } has no effect on a sequence, where all keys share the places of a partition; leave it out",
    ],
    [
      { batchSize: { latencyTarget: 50 } },
      'batchSize { latencyTarget: 50 } has no effect on a sequence, where it is the number of places; leave it out',
    ],
    [
      { model: { useFactory: () => model, sequence: {}, sessions: {} } },
      'sessions have no effect on sequences, where each call has a state of its own; leave one of them out',
    ],
    [
      { batchSize: { cost: { of: (row: string) => row.length, most: 2 } } },
      'batchSize { cost: { of: [Function: of], most: 2 } } has no effect on a sequence, where it is the number of places; leave it out',
    ],
    [
      { recovery: { idempotent: true, isolateFailures: true } },
      'recovery.isolateFailures true has no effect on a sequence, where a step never runs again; leave it out',
    ],
    [
      { model: { useFactory: () => model, sequence: { joins: { rows: 0 } } } },
      'option "model.sequence.joins.rows" is 0; allowed is a whole number from 1 to 9007199254740991',
    ],
    [
      { model: { useFactory: () => model, sequence: { joins: { cost: 0 } } } },
      'option "model.sequence.joins.cost" is 0; allowed is a number above 0',
    ],
    [
      { model: { useFactory: () => model, sequence: { maxCosts: 1 } } },
      'unknown option "model.sequence.maxCosts" (1); did you mean "model.sequence.maxCost"? known are joins, maxCost',
    ],
    [
      { model: { useFactory: () => model, sequence: true } },
      'option "model.sequence" is true; allowed is an object of joins, maxCost',
    ],
  ])('[13.10] The options %j fail the boot', (options, message) => {
    expect(() => create({ ...valid, ...options })).toThrow(
      new InvalidServingError(`Serving "writer" with "useFactory": ${message}`),
    );
  });

  it('[13.10] A sequence with a model file fails the boot', () => {
    expect(() => create({ name: 'writer', model: { file: 'model.onnx', sequence: {} } })).toThrow(
      'Serving "writer" with "model": sequence {} has no effect on a model file, which has no steps; run its ' +
        'session in a file (useFile) or class',
    );
  });

  it('[13.10] A class without the methods of a sequence fails the start', async () => {
    class Translator {
      step(): void {}
    }

    await expect(
      start({ name: 'writer', model: { useClass: Translator as never, sequence: {} } }),
    ).rejects.toThrow(
      'A sequence needs an object with start, step; for partition 0 and key "default" it got ' +
        'Translator {}, without start',
    );
  });

  it.each([
    [
      'a function',
      () => () => [],
      {},
      'an object with start, step; for partition 0 and key "default" it got [Function (anonymous)], without start, step',
    ],
    [
      'nothing',
      () => undefined,
      {},
      'an object with start, step; for partition 0 and key "default" it got undefined, without start, step',
    ],
    ['a model without step', () => ({ start: model.start }), {}, 'without step'],
    [
      'a model without cost where a cost is limited',
      () => model,
      { maxCost: 1 },
      'an object with start, step, cost; for',
    ],
    [
      'a model without cost where joins are limited',
      () => model,
      { joins: { cost: 1 } },
      'without cost',
    ],
  ])(
    '[13.10] A factory that returns %s fails the start',
    async (_, useFactory, sequence, message) => {
      await expect(
        start({ ...valid, model: { useFactory, sequence } } as ServingDefinition),
      ).rejects.toThrow(message);
    },
  );

  it('[13.10] A factory that returns a model without the option sequence fails the start', async () => {
    await expect(start({ name: 'writer', model: { useFactory: () => model } })).rejects.toThrow(
      '; for a model that runs step by step, add the option sequence: {}',
    );
  });

  it('[13.10] The places of a sequence cannot change while it runs', async () => {
    const serving = await start(valid as ServingDefinition);

    expect(() => serving.setBatchSize(2)).toThrow(
      new InvalidServingError(
        'Serving "writer" runs sequences: how many run at a time is fixed when it starts, and its ' +
          'rows wait for no others; set batchSize in its definition',
      ),
    );
    expect(() => serving.setBatchTimeout(2)).toThrow(InvalidServingError);
  });
});
