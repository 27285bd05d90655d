import { describe, expect, it } from '@jest/globals';
import { type BatchContext, createServing, type LocalServing, Tensor } from 'nestjs-serving';
import type {
  InferenceCaller,
  ParameterValue,
} from '../../../lib/extensions/inference-protocol/server/inference-request.js';
import type { Inference } from '../../../lib/extensions/inference-protocol/server/inference.js';
import { configOf } from '../../../lib/extensions/inference-protocol/server/inference-server.js';
import { later, passTime, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { inferenceOf, modelsOf, requestOf } from '../../fixtures/serving/inference-core.js';

/** Adds each number to the sum of its sequence. */
async function summing(): Promise<LocalServing> {
  const serving = createServing({
    name: 'sums',
    model: {
      useFactory: () => (rows: number[], batch: BatchContext) => {
        const { states } = batch as BatchContext & { states: (number | undefined)[] };
        return rows.map((row, i) => {
          if (row < 0) {
            throw new Error('negative');
          }
          return (states[i] = (states[i] ?? 0) + row);
        });
      },
      sessions: { idle: 1000, max: 2 },
    },
  });
  await passTime(serving.start());
  return serving;
}

const options = {
  servings: [{ serving: 'sums', inputs: { n: 'INT32' }, outputs: { sum: 'INT32' } }],
};

function stepsOf(core: Inference) {
  return async (
    n: number | readonly number[],
    parameters: Readonly<Record<string, ParameterValue>>,
    caller: InferenceCaller = {},
  ): Promise<unknown> => {
    const rows = [n].flat();
    const input = new Tensor('int32', rows, [rows.length]);
    const { outputs } = await passTime(
      core.infer(requestOf('sums', { n: input }, parameters), caller),
    );
    return outputs.get('sum')!.data[0];
  };
}

describe('Sequences of the protocol', () => {
  useVirtualTime();

  const START = { sequence_start: true };
  const END = { sequence_end: true };

  it('[18.8] The steps of a sequence share a state, from its start to its end', async () => {
    const serving = await summing();
    const step = stepsOf(inferenceOf([serving], options));

    await expect(step(1, { sequence_id: 7, ...START })).resolves.toBe(1);
    await expect(step(10, { sequence_id: 'a', ...START })).resolves.toBe(10);
    await expect(step(2, { sequence_id: 7 })).resolves.toBe(3);
    await expect(step(20, { sequence_id: 'a', ...END })).resolves.toBe(30);
    await expect(step(1, { sequence_id: 'a' })).rejects.toThrow(
      'Model "sums" has no open sequence "a"',
    );
    // A start begins anew, also with an id that is open.
    await expect(step(5, { sequence_id: 7, ...START, ...END })).resolves.toBe(5);
    await expect(step(5, { sequence_id: 7 })).rejects.toThrow('has no open sequence 7');
    await serving.close();
  });

  it('[18.8] No client enters a sequence of another tenant, or one with the same digits as a string', async () => {
    const serving = await summing();
    const step = stepsOf(inferenceOf([serving], options));

    await step(1, { sequence_id: 1, ...START }, { tenant: 'a' });
    for (const [id, tenant] of [
      [1, 'b'],
      [1, undefined],
      ['1', 'a'],
    ] as const) {
      await expect(step(1, { sequence_id: id }, tenant ? { tenant } : {})).rejects.toThrow(
        'has no open sequence',
      );
    }
    await expect(step(1, { sequence_id: 1 }, { tenant: 'a' })).resolves.toBe(2);
    await serving.close();
  });

  it('[18.8] Sequences are limited in number, and end when they idle', async () => {
    const serving = await summing();
    const step = stepsOf(inferenceOf([serving], options));

    await step(1, { sequence_id: 1, ...START });
    await step(1, { sequence_id: 2, ...START });
    await expect(step(1, { sequence_id: 3, ...START })).rejects.toMatchObject({
      code: 'SERVING_OVERLOADED',
    });
    await later(1001);
    await expect(step(1, { sequence_id: 1 })).rejects.toThrow('had no request for too long');
    await expect(step(1, { sequence_id: 3, ...START, ...END })).resolves.toBe(1);
    await serving.close();
  });

  it('[18.8] A sequence whose first step fails was not started; later ones keep the state', async () => {
    const serving = await summing();
    const step = stepsOf(inferenceOf([serving], options));

    await expect(step(-1, { sequence_id: 1, ...START })).rejects.toThrow('negative');
    await expect(step(1, { sequence_id: 1 })).rejects.toThrow('has no open sequence 1');
    await step(1, { sequence_id: 2, ...START });
    await expect(step(-1, { sequence_id: 2 })).rejects.toThrow('negative');
    await expect(step(1, { sequence_id: 2, ...END })).resolves.toBe(2);
    await serving.close();
  });

  it('[P2] Steps that were sent before the first one failed fail, and begin no state of their own', async () => {
    const serving = await summing();
    const step = stepsOf(inferenceOf([serving], options));

    const replies = await Promise.allSettled([
      step(-1, { sequence_id: 1, ...START }),
      step(1, { sequence_id: 1 }),
      step(2, { sequence_id: 1, ...END }),
    ]);

    expect(replies.map(({ status }) => status)).toEqual(['rejected', 'rejected', 'rejected']);
    expect(replies.slice(1)).toMatchObject([
      {
        reason: {
          code: 'SERVING_SESSION_ENDED',
          message: expect.stringContaining('its first call failed'),
        },
      },
      { reason: { code: 'SERVING_SESSION_ENDED' } },
    ]);
    await serving.close();
  });

  it('[P3] A step may name the version that the replies of its sequence name, and no other', async () => {
    const serving = await summing();
    const core = inferenceOf([serving], options);
    const step = (n: number, parameters: object, version?: string) =>
      passTime(
        core.infer(
          {
            ...requestOf(
              'sums',
              { n: new Tensor('int32', [n], [1]) },
              { sequence_id: 1, ...parameters },
            ),
            version,
          },
          {},
        ),
      );

    const { version } = await step(1, START);
    expect(version).toBe('1');
    const second = await step(2, {}, version);
    expect([second.version, second.outputs.get('sum')!.data[0]]).toEqual(['1', 3]);
    await expect(step(1, {}, '2')).rejects.toThrow('Model "sums" has no version "2"');
    await serving.close();
  });

  it('[18.8] A request without an id, with several rows, or to a model without state is refused', async () => {
    const serving = await summing();
    const plain = createServing({
      name: 'plain',
      model: { useFactory: () => (rows: string[]) => rows },
    });
    await passTime(plain.start());
    const core = inferenceOf([serving, plain], { servings: [...options.servings, 'plain'] });
    const step = stepsOf(core);

    await expect(step(1, {})).rejects.toThrow('the request has no sequence_id');
    await expect(step([1, 2], { sequence_id: 1, ...START })).rejects.toThrow(
      'has one row, and not 2',
    );
    const input = new Tensor('string', ['1'], [1]);
    await expect(core.infer(requestOf('plain', { input }, { sequence_id: 1 }), {})).rejects.toThrow(
      'Model "plain" keeps no state',
    );
    await Promise.all([serving.close(), plain.close()]);
  });

  it('[18.1] The configuration of a model with sequences has their idle time', async () => {
    const serving = await summing();

    expect(configOf(modelsOf([serving], options).find('sums'))).toMatchObject({
      sequence_batching: { max_sequence_idle_microseconds: 1_000_000 },
    });
    await serving.close();
  });
});
