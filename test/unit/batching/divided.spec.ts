import { describe, expect, it } from '@jest/globals';
import { DeadlineTooShortError, OverloadedError } from 'nestjs-serving';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { HeldBatcher, type NamedRequest } from '../../fixtures/batching/held-batcher.js';

/** A batcher whose lanes run on one partition each. */
class Divided extends HeldBatcher {
  constructor(options: ConstructorParameters<typeof HeldBatcher>[0] = {}) {
    super({ partitions: 2, isDivided: true, ...options });
  }

  /** Submits rows that this partition alone runs. */
  on(partition: number, name: string, rows = 1, timeout = Infinity): NamedRequest {
    this.laneOn(partition);
    return this.ask(name, { size: rows, deadline: performance.now() + timeout }, partition);
  }

  /** Runs batches of one row on both partitions until their run time is known. */
  async train(milliseconds: number): Promise<void> {
    for (let batch = 0; batch < 8; batch++) {
      this.on(0, 'x');
      this.on(1, 'y');
      await later(milliseconds);
      this.finishBatch(0);
      this.finishBatch(1);
      await turn();
    }
  }
}

describe('A batcher whose lanes belong to partitions', () => {
  useVirtualTime();

  it('[16.10] Rows run on their own partition, also while another one is idle', async () => {
    const batcher = new Divided();
    batcher.on(1, 'a');
    batcher.on(1, 'b');
    await turn();
    expect(batcher.running).toEqual(['1: a0 b0']);

    batcher.on(1, 'c');
    await turn();
    expect(batcher.running).toEqual(['1: a0 b0']);

    batcher.finishBatch(1);
    await turn();
    expect(batcher.running).toEqual(['1: c0']);
    expect(batcher.started.map(({ partition }) => partition)).toEqual([1, 1]);
  });

  it('[16.10] A busy partition does not hold up the rows of others that arrived later', async () => {
    const batcher = new Divided();
    batcher.on(0, 'a');
    await turn();
    batcher.on(0, 'b', 4);
    batcher.on(1, 'c');
    await turn();

    expect(batcher.running).toEqual(['0: a0', '1: c0']);
  });

  it('[16.10] The rows of all partitions have the room of one queue', async () => {
    const batcher = new Divided({ maxRows: 3, batchSize: 1 });
    batcher.on(0, 'a');
    batcher.on(1, 'b');
    await turn();
    batcher.on(0, 'c');
    batcher.on(1, 'd', 2);

    expect(() => batcher.on(0, 'e')).toThrow(OverloadedError);
    expect(batcher.depth).toBe(3);

    batcher.finishBatch(1);
    await turn();
    batcher.on(0, 'e');
    expect(batcher.depth).toBe(3);
  });

  it('[16.10] Rows that idle partitions take at the end of the turn leave room, wherever they run', () => {
    const batcher = new Divided({ maxRows: 3 });
    batcher.on(0, 'a', 3);
    batcher.on(1, 'b', 3);

    expect(() => batcher.on(1, 'c', 4)).toThrow('room in its queue for 3 rows');
    expect(batcher.depth).toBe(3);
  });

  it('[16.10] A call with a deadline waits for the rows of its own partition alone', async () => {
    const batcher = new Divided({ batchSize: 1 });
    await batcher.train(100);
    batcher.on(0, 'a', 6);
    batcher.on(1, 'b');
    await turn();

    expect(() => batcher.on(0, 'c', 1, 400)).toThrow(DeadlineTooShortError);
    expect(batcher.on(1, 'd', 1, 400).error).toBeUndefined();
  });

  it('[16.10] When a partition is lost, only its own rows fail', async () => {
    const batcher = new Divided();
    batcher.targets[0]!.lost = new Error('gone');
    const own = batcher.on(0, 'a');
    const other = batcher.on(1, 'b');
    await turn();

    expect(own.error).toEqual(new Error('gone'));
    expect(other.error).toBeUndefined();
    expect(batcher.running).toEqual(['1: b0']);
  });

  it('[16.10] Pauses, drains, cancels and the end reach the rows of every partition', async () => {
    const batcher = new Divided({ batchTimeout: 1000 });
    batcher.pause(true);
    const cancelled = batcher.on(0, 'a');
    batcher.on(0, 'b');
    batcher.on(1, 'c');
    cancelled.leave();
    batcher.drain();
    await turn();
    expect(batcher.running).toEqual([]);

    batcher.pause(false);
    await turn();
    expect(batcher.running).toEqual(['0: b0', '1: c0']);

    const waiting = [batcher.on(0, 'd'), batcher.on(1, 'e')];
    await turn();
    expect(batcher.end(new Error('the end'))).toBe(true);
    expect(waiting.map(({ error }) => error)).toEqual([new Error('the end'), new Error('the end')]);
    const closed = batcher.close();
    batcher.finishBatch(0);
    batcher.finishBatch(1);
    await closed;
    expect(batcher.depth).toBe(0);
  });
});
