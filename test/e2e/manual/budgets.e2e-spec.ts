import { describe, expect, it } from '@jest/globals';
import { defineServing, type ServingDefinition, Tensor } from 'nestjs-serving';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { value } from '../../fixtures/models/models.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

/** Doubles each token id that is not masked. */
const encoder = onnxModel({
  inputs: {
    input_ids: value('int64', 'batch', 'sequence'),
    attention_mask: value('int64', 'batch', 'sequence'),
  },
  outputs: { last_hidden_state: value('int64', 'batch', 'sequence') },
  nodes: [
    node('Add', ['input_ids', 'input_ids'], ['twice']),
    node('Mul', ['twice', 'attention_mask'], ['last_hidden_state']),
  ],
});

// #region cost
export const summaries = defineServing({
  name: 'summaries',
  batchSize: {
    cost: {
      of: (text: string) => text.length, // The cost of one row.
      most: 2000, // A batch has at most 32 texts, and at most 2,000 characters.
    },
  },
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.split(' ')[0]!) },
});
// #endregion

// #region similar
type Tokens = Record<'input_ids' | 'attention_mask', Tensor>;

export const embedder = defineServing({
  name: 'embedder',
  batchSize: {
    cost: {
      of: ({ input_ids }: Tokens) => input_ids.dims[1]!, // Its tokens.
      most: 512, // Of tokens with their padding.
      padded: true,
      similar: { overtaking: 16 },
    },
  },
  model: {
    file: encoder, // A path, an address, or bytes.
    inputs: {
      input_ids: { variableAxis: 1, padWith: 0 },
      attention_mask: { variableAxis: 1, padWith: 0 },
    },
    outputs: { last_hidden_state: { variableAxis: 1 } },
  },
});
// #endregion

// #region template
export const curves = defineServing({
  name: 'curves',
  model: {
    useFactory: () => (rows: Tensor) =>
      new Tensor('float32', Float32Array.from(rows.data as Float32Array, Math.sqrt), rows.dims),
    signature: {
      template: { type: 'float32', shape: [null, null], variableAxis: 1, padWith: NaN },
      outputs: { '': { variableAxis: 1 } }, // A tensor without a name.
    },
  },
});
// #endregion

// #region late
export const reports = defineServing({
  name: 'reports',
  timeout: {
    default: 1000, // For calls that name none,
    most: 30_000, // and the longest that a call may ask for.
  },
  queue: { order: 'preserve' }, // A reply waits for those before it, and for no late call.
  model: { useFactory: () => (rows: string[]) => rows.map((row) => row.toUpperCase()) },
});
// #endregion

const tokens = (...ids: number[]): Tokens => {
  const dims = [1, ids.length];
  return {
    input_ids: new Tensor('int64', BigInt64Array.from(ids, BigInt), dims),
    attention_mask: new Tensor('int64', new BigInt64Array(ids.length).fill(1n), dims),
  };
};

describe('The manual: budgets', () => {
  const start = useServings();

  it('[14.2] Texts share a batch of at most 2,000 characters', async () => {
    const serving = await start(summaries as ServingDefinition);
    const sizes: number[] = [];
    serving.eventsOf('batch:end').subscribe(({ rows }) => sizes.push(rows));
    const texts = ['first', 'second', 'third'].map((word) => word.padEnd(900, ' x'));

    expect(await Promise.all(texts.map((text) => serving.batchedRun(text)))).toEqual([
      'first',
      'second',
      'third',
    ]);
    expect(sizes).toEqual([2, 1]);
  });

  it('[14.3] [14.4] Texts of different lengths share the batches of a model', async () => {
    const serving = await start(embedder);
    const replies = await Promise.all(
      [tokens(1, 2, 3), tokens(4), tokens(5, 6)].map((row) => serving.batchedRun(row)),
    );

    expect(
      (replies as { last_hidden_state: Tensor }[]).map(({ last_hidden_state }) => [
        ...(last_hidden_state.data as BigInt64Array),
      ]),
    ).toEqual([[2n, 4n, 6n], [8n], [10n, 12n]]);
  });

  it('[14.4] Rows of a function have lengths of their own, too', async () => {
    const serving = await start(curves as ServingDefinition);
    const rows = [[1, 4], [9]].map((row) => new Tensor('float32', row, [1, row.length]));
    const replies = (await Promise.all(rows.map((row) => serving.batchedRun(row)))) as Tensor[];

    expect(replies.map(({ data }) => [...(data as Float32Array)])).toEqual([[1, 2], [3]]);
  });

  it('[14.7] Calls are answered in order', async () => {
    const serving = await start(reports as ServingDefinition);
    const answered: unknown[] = [];
    await Promise.all(
      ['a', 'b'].map((row) => serving.batchedRun(row).then((reply) => answered.push(reply))),
    );

    expect(answered).toEqual(['A', 'B']);
  });
});
