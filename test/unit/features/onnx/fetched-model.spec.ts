import { describe, expect, it } from '@jest/globals';
import {
  defineServing,
  type Fetching,
  InvalidServingError,
  ServingLoadError,
  Tensor,
} from 'nestjs-serving';
import { echoModel, value } from '../../../fixtures/models/models.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';
import { floats } from '../../../fixtures/values/tensors.js';

const x = value('float32', 'batch', 'length');
const model = echoModel({ x, mask: x, rate: value('float32', 'batch', 2) });
const isolation = 'none';

function rowOf(length: number) {
  const values = floats(
    [1, length],
    Array.from({ length }, (_, i) => i),
  );
  return { x: values, mask: values, rate: floats([1, 2], [1, 2]) };
}

describe('A model', () => {
  const startServing = useServings();

  it('[1.11] A model that code fetches is fetched once for all its sessions, with the log of its serving', async () => {
    const lines: string[] = [];
    let fetches = 0;
    const file = {
      name: 'the store',
      fetch: async ({ log, signal }: Fetching) => {
        log('fetches it');
        lines.push(String(signal.aborted));
        fetches++;
        return echoModel({ x });
      },
    };
    const serving = await startServing({ name: 'net', model: { file, isolation } });
    const row = floats([1, 2], [1, 2]);
    expect(await serving.batchedRun(row)).toEqual({ same_x: row });
    expect(await serving.run(row)).toEqual({ same_x: row });
    expect({ fetches, lines }).toEqual({ fetches: 1, lines: ['false'] });
  });

  it('[1.11] A fetch that fails is the error of the start, and a later start fetches again', async () => {
    let fetches = 0;
    const file = {
      name: 'the store',
      fetch: async () => {
        if (++fetches === 1) {
          throw new ServingLoadError('the store is down');
        }
        return echoModel({ x });
      },
    };
    const start = () => startServing({ name: 'net', model: { file, isolation } });
    await expect(start()).rejects.toThrow('Serving "net": the store is down');
    await start();
    expect(fetches).toBe(2);
  });

  it('[1.5] preprocess gets the signature of the model', async () => {
    const serving = await startServing(
      defineServing({
        name: 'net',
        model: { file: echoModel({ x }), isolation },
        preprocess: (_: string, { signature }) => ({
          batch: new Tensor('float32', [signature!.inputs.length, 7], [1, 2]),
        }),
      }),
    );
    expect(await serving.batchedRun('')).toEqual({ same_x: floats([1, 2], [1, 7]) });
  });

  it('[14.5] A variable axis named * is that of all dynamic inputs, and of the outputs of their length', async () => {
    const serving = await startServing({
      name: 'net',
      model: {
        file: model,
        isolation,
        inputs: { '*': { variableAxis: 1 }, mask: { variableAxis: 1, padWith: 5 } },
        outputs: { '*': { variableAxis: 1 } },
      },
    });
    const replies = await Promise.all([2, 4, 1].map((length) => serving.batchedRun(rowOf(length))));
    expect(replies).toEqual(
      [2, 4, 1].map((length) => {
        const { x: same_x, mask: same_mask, rate: same_rate } = rowOf(length);
        return { same_x, same_mask, same_rate };
      }),
    );
    expect(serving.counters()).toMatchObject({ batches: 1 });
  });

  it('[14.5] A variable axis named * that no input has leaves rows of one length', async () => {
    await expect(
      startServing({
        name: 'net',
        model: {
          file: echoModel({ x: value('float32', 'batch', 2) }),
          isolation,
          outputs: { same_x: { variableAxis: 1 }, '*': { variableAxis: 1 } },
        },
      }),
    ).rejects.toThrow(InvalidServingError);
  });
});
