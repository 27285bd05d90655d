import { fileURLToPath } from 'node:url';
import { describe, expect, it } from '@jest/globals';
import { type ExternalModel, PartitionLostError } from 'nestjs-serving';
import { openWorkers } from '../../../../lib/core/partitions/worker/supervised.partition.js';
import { inTurn, releaseTurnOf, webgpuTurn } from '../../../../lib/features/onnx/native-calls.js';
import { useGates } from '../../../fixtures/batching/gate.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';
import { worker } from '../../../fixtures/partitions/worker.js';

/** No thread has this id. */
const ANOTHER = -1;

/** Two threads of a module that takes turns, as those of a model do. */
const takingTurns: ExternalModel = {
  engineFor: () => ({
    partitions: [{}, {}],
    engine: (_kind, partitions, keys, supervision, end) => {
      const file = worker('turns').href;
      const tasks = partitions.map((options, partition) => ({ partition, keys, options, file }));
      return openWorkers(tasks, 'thread', supervision, end, { threadEnded: releaseTurnOf });
    },
  }),
};

describe('inTurn', () => {
  const gate = useGates();
  const serve = useServings();

  it('[5.7] One thread at a time has the GPU turn', async () => {
    const serving = await serve({
      name: 'turns',
      model: { useFile: worker('turns') },
      partitions: 2,
      batchSize: 1,
    });
    const row = {
      turn: new Int32Array(new SharedArrayBuffer(4)),
      counter: new Int32Array(new SharedArrayBuffer(4)),
      times: 500,
    };

    await Promise.all([serving.batchedRun(row), serving.batchedRun(row)]);

    expect(row.counter[0]).toBe(1000);
  });

  it('[5.7] [5.6] The GPU turn passes to the next thread when a thread ends during its turn', async () => {
    const serving = await serve({
      name: 'turns',
      model: takingTurns,
      batchSize: 1,
      recovery: { idempotent: false },
    });
    const held = gate();
    const row = {
      turn: new Int32Array(webgpuTurn),
      counter: new Int32Array(new SharedArrayBuffer(4)),
      times: 1,
    };
    const dying = expect(serving.batchedRun({ ...row, exits: held.row.gate })).rejects.toThrow(
      PartitionLostError,
    );
    await held.entered();

    const next = serving.batchedRun(row);
    held.open();

    await dying;
    expect(await next).toBe('counted');
    expect([row.counter[0], row.turn[0]]).toEqual([1, 0]);
  });

  it('[5.7] A session on WebGPU is released during its GPU turn', async () => {
    const model = fileURLToPath(
      new URL('../../../../sample/01-digits/model/digits.onnx', import.meta.url),
    );
    const turn = new Int32Array(webgpuTurn);
    const ends: string[] = [];
    // Without a GPU the sessions take turns too.
    const gpu = await serve({
      name: 'gpu',
      model,
      partitions: [{ executionProviders: ['webgpu', 'cpu'] }],
    });
    turn[0] = ANOTHER;

    const closing = gpu.close().then(() => ends.push('on WebGPU'));
    const cpu = await serve({ name: 'cpu', model });
    await cpu.close().then(() => ends.push('on the CPU'));
    Atomics.store(turn, 0, 0);
    Atomics.notify(turn, 0);
    await closing;

    expect(ends).toEqual(['on the CPU', 'on WebGPU']);
    expect(turn[0]).toBe(0);
  });

  it('[5.7] The GPU turn passes on after a failure, whose error is reported', async () => {
    const turn = new Int32Array(new SharedArrayBuffer(4));

    await expect(
      inTurn(turn, () => Promise.reject(new RangeError('lost the device'))),
    ).rejects.toThrow('lost the device');
    expect(await inTurn(turn, () => Promise.resolve('next'))).toBe('next');
  });
});
