import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import {
  Batch,
  DONE,
  InvalidOutputError,
  InvalidServingError,
  type LocalServing,
  PartitionLostError,
  type ServingDefinition,
  type ServingOptions,
  type StreamEvent,
  type Tensor,
} from 'nestjs-serving';
import { BatchScript, type HeldBatch, settle } from 'nestjs-serving/testing';
import { floats } from '../../fixtures/values/tensors.js';
import { silenceLog } from '../../fixtures/silent-log.js';

describe('BatchScript', () => {
  const servings: LocalServing[] = [];

  beforeEach(() => silenceLog());

  afterEach(() => Promise.all(servings.splice(0).map((serving) => serving.close())));

  async function start<Row, Result>(
    script: BatchScript<Row, Result>,
    options: Partial<ServingOptions> = {},
  ): Promise<LocalServing> {
    const serving = script.createServing<unknown, unknown>({ name: 'scripted', ...options });
    servings.push(serving);
    await serving.start();
    return serving;
  }

  it.each([undefined, null, 5, {}])('[FU77] createServing() refuses %p as options', (options) => {
    expect(() => new BatchScript().createServing(options as ServingDefinition)).toThrow(
      InvalidServingError,
    );
  });

  describe('held batches', () => {
    it('A script holds batches in order until the test finishes them', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script, { batchSize: 2, partitions: 2 });

      const replies = Promise.all(['a', 'b', 'c'].map((row) => serving.batchedRun(row)));
      await settle();
      expect(script.rows).toEqual([['a', 'b'], ['c']]);
      script.batches[1]!.finish(['C']);
      expect(script.rows).toEqual([['a', 'b']]);
      script.batches[0]!.finish((rows) => rows.map((row) => row.toUpperCase()));

      expect(await replies).toEqual(['A', 'B', 'C']);
    });

    it('A script reports rows, key, size, padding, partition, origin and hooks of each batch', async () => {
      const script = new BatchScript<Tensor>();
      const serving = await start(script, {
        batchKeys: ['a', 'b'],
        partitions: 2,
        queue: { separateOrigins: true },
        batchSize: [2, 4],
      });
      const three = Batch.concatenate([floats([3], [1, 2, 3])]);

      const replies = Promise.all([
        serving.batchedRun(three.withKey('a'), { origin: 'http' }),
        read(serving.stream(three.withKey('b'), { hooks: ['layer'], origin: 'ws' })),
      ]);
      const [a, b] = [await script.next(), await script.next()];
      const common = { size: 3, padding: 1, rows: floats([4], [1, 2, 3, 0]) };
      expect(seenOf(a)).toEqual({ ...common, key: 'a', partition: 0, origin: 'http', hooks: [] });
      expect(seenOf(b)).toEqual({
        ...common,
        key: 'b',
        partition: 1,
        origin: 'ws',
        hooks: ['layer'],
      });
      script.release((rows) => rows);
      await replies;
    });

    it('A script holds the batches of inline runs', async () => {
      const script = new BatchScript<string>();
      const reply = script.createServing({ name: 'inline' }).run('a');

      (await script.next()).finish(['A']);

      expect(await reply).toBe('A');
    });

    it('A script replaces the model of a definition', async () => {
      const script = new BatchScript<Tensor, Tensor>();
      const serving = await start(script, {
        name: 'modelled',
        model: new TextEncoder().encode('no model at all'),
        warmUp: [1],
        preprocess: (x) => ({ batch: floats([1, 1], [x as number]) }),
        postprocess: (y) => (y as Tensor).data[0],
      } as ServingDefinition);

      const reply = serving.batchedRun(3);
      (await script.next()).finish((x) => x);

      expect(await reply).toBe(3);
    });

    it('next() waits for a batch and returns each batch once', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script, { batchSize: 1, partitions: 3 });
      const waiting = script.next();

      const replies = Promise.all(['a', 'b', 'c'].map((row) => serving.batchedRun(row)));
      const batches = [await waiting, await script.next(), await script.next()];

      expect(batches.map(({ rows }) => rows)).toEqual([['a'], ['b'], ['c']]);
      batches.forEach((batch) => batch.finish((rows) => rows));
      await replies;
    });

    it('A released script answers held and later batches at once', async () => {
      const script = new BatchScript<number, number>();
      const serving = await start(script);
      const held = serving.batchedRun(1);
      await script.next();

      script.release((rows) => rows.map((row) => -row));

      expect(await Promise.all([held, serving.batchedRun(2)])).toEqual([-1, -2]);
      expect(script.batches).toEqual([]);
    });
  });

  describe('finished batches', () => {
    it('A batch can be finished with metadata', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script, {
        postprocess: (output, { metadata }) => [output, metadata],
      });

      const reply = serving.batchedRun('a');
      (await script.next()).finish(['A'], { version: 3 });

      expect(await reply).toEqual(['A', { version: 3 }]);
    });

    it('A batch can be finished with an error for one row, or failed as a whole', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script);
      const fault = new RangeError('no such word');
      const call = () => Promise.allSettled(['a', 'b'].map((row) => serving.batchedRun(row)));

      const one = call();
      (await script.next()).finish(['A', fault]);
      expect(await one).toEqual([
        { status: 'fulfilled', value: 'A' },
        { status: 'rejected', reason: fault },
      ]);
      const all = call();
      (await script.next()).fail(fault);
      const failed = {
        status: 'rejected',
        reason: expect.objectContaining({ code: 'SERVING_BATCH_FAILED', cause: fault }),
      };
      expect(await all).toEqual([failed, failed]);
    });

    it('A batch that is finished with too few results fails its callers', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script);

      const replies = Promise.allSettled(['a', 'b'].map((row) => serving.batchedRun(row)));
      (await script.next()).finish(['A']);

      const reason = new InvalidOutputError(
        'Serving "scripted": A batch of 2 rows needs 2 results; the batch function returned 1',
      );
      expect(await replies).toEqual([
        { status: 'rejected', reason },
        { status: 'rejected', reason },
      ]);
    });

    it('A batch can be finished only once', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script);

      const reply = serving.batchedRun('a');
      const batch = await script.next();
      batch.finish(['A']);

      for (const late of [
        () => batch.finish(['B']),
        () => batch.fail(new Error('late')),
        () => batch.crash(),
        () => batch.step(['B']),
      ]) {
        expect(late).toThrow('The batch of 1 rows of key "default" has ended already');
      }
      expect(await reply).toBe('A');
    });
  });

  describe('crashed partitions', () => {
    it('A crashed partition loses its batch, and later batches run on the others', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script, { batchSize: 1, partitions: 2 });

      const lost = serving.batchedRun('a');
      (await script.next()).crash();
      await expect(lost).rejects.toThrow(PartitionLostError);
      const replies = Promise.all(['b', 'c'].map((row) => serving.batchedRun(row)));
      for (const row of ['b', 'c']) {
        const batch = await script.next();
        expect([batch.partition, batch.rows]).toEqual([1, [row]]);
        batch.finish((rows) => rows);
      }

      expect(await replies).toEqual(['b', 'c']);
    });

    it('[FU76] When the last partition has crashed other calls fail as with a real one, queued ones too', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script, { batchSize: 1 });

      const replies = Promise.allSettled(['a', 'b'].map((row) => serving.batchedRun(row)));
      (await script.next()).crash();

      const refused = {
        code: 'SERVING_UNAVAILABLE',
        statusCode: 503,
        retryAfter: 30,
        message:
          'Serving "scripted": Partition 0 has crashed, as its script says, and is not restarted',
      };
      expect(await replies).toMatchObject([
        { reason: { code: 'SERVING_PARTITION_LOST' } },
        { reason: refused },
      ]);
      await expect(serving.batchedRun('c')).rejects.toMatchObject(refused);
      expect(script.batches).toEqual([]);
    });

    it('A crashed partition that restarts loses only its batch', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script);

      const lost = serving.batchedRun('a');
      (await script.next()).crash({ restarts: true });
      await expect(lost).rejects.toThrow(PartitionLostError);
      const reply = serving.batchedRun('b');
      (await script.next()).finish(['B']);

      expect(await reply).toBe('B');
    });

    it('The batch of a crashed partition runs again on another when the serving is idempotent', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script, { partitions: 2, recovery: { idempotent: true } });

      const reply = serving.batchedRun('a');
      (await script.next()).crash();
      const again = await script.next();
      again.finish(['A']);

      expect([again.partition, await reply]).toEqual([1, 'A']);
    });

    it('A crash during a stream fails the stream', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script);

      const events = read(serving.stream('a'));
      const batch = await script.next();
      batch.step(['A']);
      batch.crash();

      await expect(events).rejects.toThrow(PartitionLostError);
    });
  });

  describe('streams', () => {
    it('A batch emits hooks to the calls that subscribed to them, and then the output', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script);

      const streams = Promise.all([
        read(serving.stream('a', { hooks: ['layer'] })),
        read(serving.stream('b')),
      ]);
      const batch = await script.next();
      batch.emit('layer', [0.1, 0.2]);
      expect(() => batch.emit('layer', [0.1])).toThrow(InvalidOutputError);
      batch.finish(['A', 'B']);

      expect(await streams).toEqual([[{ hook: 'layer', value: 0.1 }, 'A'], ['B']]);
    });

    it('A batch emits steps as a generator does, each row until it is done', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script);

      const replies = Promise.all([
        serving.batchedRun('a'),
        read(serving.stream('b')),
        read(serving.stream('c')),
      ]);
      const batch = await script.next();
      batch.step(['a1', 'b1', 'c1']);
      await settle();
      expect(script.batches).toEqual([batch]);
      batch.step(['a2', DONE, 'c2']);
      batch.end();

      expect(await replies).toEqual([['a1', 'a2'], ['b1'], ['c1', 'c2']]);
    });

    it('A batch emits steps until the last consumer has left', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script);

      const words = serving.stream('a')[Symbol.asyncIterator]();
      const first = words.next();
      const batch = await script.next();
      batch.step(['a1']);
      await first;
      await words.return!();
      expect(batch.isWaiting(0)).toBe(false);
      batch.step(['a2']);
      await settle();

      expect(script.batches).toEqual([]);
      expect(() => batch.step(['a3'])).toThrow('nobody waits for it any more');
    });

    it('A batch with steps cannot be finished: it ends after its last step, also when the script is released', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script);

      const reply = serving.batchedRun('a');
      const batch = await script.next();
      batch.step(['a1']);
      expect(() => batch.finish(['A'])).toThrow('has had steps; end it with end, fail or crash');
      script.release((rows) => rows);

      expect(await reply).toEqual(['a1']);
    });

    it('A batch without a step cannot be ended', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script);

      const reply = serving.batchedRun('a');
      const batch = await script.next();
      expect(() => batch.end()).toThrow('has had no step');
      batch.finish(['A']);
      await reply;
    });
  });
});

function seenOf({ key, size, padding, partition, origin, hooks, rows }: HeldBatch<Tensor>): object {
  return { key, size, padding, partition, origin, hooks, rows };
}

/** The hooks and outputs of a stream. */
async function read(stream: AsyncIterable<StreamEvent<unknown, string>>): Promise<unknown[]> {
  const events: unknown[] = [];
  for await (const event of stream) {
    events.push('output' in event ? event.output : event);
  }
  return events;
}
