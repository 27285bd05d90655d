import { describe, expect, it } from '@jest/globals';
import { Batch, InvalidInputError, NodeLostError } from 'nestjs-serving';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';

/** Counts up to its input as it is pulled, and records its ends. */
class Counter {
  steps = 0;
  ends = 0;
  readonly definition: FunctionServingDefinition = {
    name: 'counter',
    preprocess: (last: number) => ({ batch: this.count(last) }),
    model: { useFactory: () => (rows: readonly unknown[]) => rows },
  };

  private async *count(last: number): AsyncGenerator<Batch, void> {
    try {
      for (let step = 1; step <= last; step++) {
        this.steps++;
        yield Batch.ofValues([step]);
      }
    } finally {
      this.ends++;
    }
  }
}

describe('A stream of another node', () => {
  const cluster = useCluster();

  it('[11] [8.1] A stream of another node has all of its events in order', async () => {
    await cluster.node({ servings: [new Counter().definition] });
    const web = await cluster.node();
    await web.untilNodes('counter');

    const outputs = outputsOf(await iterated(web.servings.stream('counter', 500)));

    expect(outputs.flat()).toEqual(Array.from({ length: 500 }, (_, i) => i + 1));
  });

  it('[W16] A second reader of a generator is refused at its caller', async () => {
    const same: FunctionServingDefinition = {
      name: 'same',
      model: { useFactory: () => (rows: readonly unknown[]) => rows },
    };
    await cluster.node({ servings: [same] });
    const web = await cluster.node();
    await web.untilNodes('same');
    const stream = web.servings.stream('same', ['a', 'b'].values());

    expect(outputsOf(await iterated(stream)).flat()).toEqual(['a', 'b']);
    expect(await failureOf(iterated(stream))).toBeInstanceOf(InvalidInputError);
  });

  it('[11] [8.2] A stream ends at its owner when its reader leaves', async () => {
    const counter = new Counter();
    await cluster.node({ servings: [counter.definition] });
    const web = await cluster.node();
    await web.untilNodes('counter');

    for await (const event of web.servings.stream('counter', Infinity)) {
      expect(event).toMatchObject({ output: [1] });
      break;
    }
    while (counter.ends === 0) {
      await new Promise(setImmediate);
    }

    expect(counter.ends).toBe(1);
  });

  it('[11] [8.2] A stream ends at its owner when its reader is lost', async () => {
    const counter = new Counter();
    await cluster.node({ servings: [counter.definition] });
    const web = await cluster.node();
    await web.untilNodes('counter');
    const events = web.servings.stream('counter', Infinity)[Symbol.asyncIterator]();
    await events.next();

    web.kill();
    while (counter.ends === 0) {
      await new Promise(setImmediate);
    }

    const reading = failureOf(iterated({ [Symbol.asyncIterator]: () => events }));
    expect(await reading).toBeInstanceOf(NodeLostError);
  });

  it('[11] [8.2] A stream fails when its owner loses the broker', async () => {
    cluster.network({ connections: false });
    const counter = new Counter();
    const patient = { downAfter: 60_000 };
    const owner = await cluster.node({ servings: [counter.definition], ...patient });
    const web = await cluster.node(patient);
    await web.untilNodes('counter');
    const events = web.servings.stream('counter', Infinity)[Symbol.asyncIterator]();
    await events.next();

    owner.cluster.receiver.online(false);
    while (counter.ends === 0) {
      await new Promise(setImmediate);
    }
    owner.cluster.receiver.online(true);

    expect(await failureOf(iterated({ [Symbol.asyncIterator]: () => events }))).toBeInstanceOf(
      NodeLostError,
    );
  });

  it('[11] [8.5] An input stream to another node is pulled as there is room', async () => {
    let given = 0;
    async function* batches() {
      while (given < 300) {
        given++;
        yield Batch.ofValues([given]);
      }
    }
    await cluster.node({
      servings: [{ name: 'echo', model: { useFactory: () => (rows: readonly unknown[]) => rows } }],
    });
    const web = await cluster.node();
    await web.untilNodes('echo');

    const outputs = outputsOf(await iterated(web.servings.stream('echo', batches())));

    expect(outputs.flat()).toEqual(Array.from({ length: 300 }, (_, i) => i + 1));
    expect(given).toBe(300);
  });

  it('[11] [8.5] A stream fails with the error of its input', async () => {
    const error = new RangeError('no more');
    async function* batches() {
      yield Batch.ofValues([1]);
      throw error;
    }
    await cluster.node({
      servings: [{ name: 'echo', model: { useFactory: () => (rows: readonly unknown[]) => rows } }],
    });
    const web = await cluster.node();
    await web.untilNodes('echo');

    expect(await failureOf(iterated(web.servings.stream('echo', batches())))).toBe(error);
    expect(await failureOf(web.servings.batchedRun('echo', { call: () => {} }))).toBeInstanceOf(
      InvalidInputError,
    );
  });
});
