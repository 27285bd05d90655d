import { describe, expect, it } from '@jest/globals';
import { PartitionLostError } from '../../../lib/errors.js';
import { inTurn, webgpuTurn } from '../../../lib/partitions/webgpu-turn.js';
import { useGates } from '../../fixtures/gate.js';
import { useServings } from '../../fixtures/use-servings.js';
import { worker } from '../../fixtures/worker.js';

describe('inTurn', () => {
  const gate = useGates();
  const serve = useServings();

  it('[5.7] lets one thread at a time work', async () => {
    const serving = await serve({ name: 'turns', useFile: worker('turns'), partitions: 2, batchSize: 1 });
    const row = { turn: new Int32Array(new SharedArrayBuffer(4)), counter: new Int32Array(new SharedArrayBuffer(4)), times: 500 };

    await Promise.all([serving.batchedRun(row), serving.batchedRun(row)]);

    expect(row.counter[0]).toBe(1000);
  });

  it('[5.7] [5.6] lets the next one work when a thread ends in the middle of its turn', async () => {
    const serving = await serve({ name: 'turns', useFile: worker('turns'), partitions: 2, batchSize: 1 });
    const held = gate();
    const row = { turn: new Int32Array(webgpuTurn), counter: new Int32Array(new SharedArrayBuffer(4)), times: 1 };
    const dying = expect(serving.batchedRun({ ...row, exits: held.row.gate })).rejects.toThrow(PartitionLostError);
    await held.entered();

    const next = serving.batchedRun(row);
    held.open();

    await dying;
    expect(await next).toBe('counted');
    expect([row.counter[0], row.turn[0]]).toEqual([1, 0]);
  });

  it('[5.7] passes the turn on after a failure, and says what failed', async () => {
    const turn = new Int32Array(new SharedArrayBuffer(4));

    await expect(inTurn(turn, () => Promise.reject(new RangeError('lost the device')))).rejects.toThrow('lost the device');
    expect(await inTurn(turn, () => Promise.resolve('next'))).toBe('next');
  });
});
