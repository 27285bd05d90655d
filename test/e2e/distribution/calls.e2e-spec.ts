import { Readable } from 'node:stream';
import { describe, expect, it, jest } from '@jest/globals';
import {
  Batch,
  InvalidInputError,
  InvalidOutputError,
  InvalidServingError,
  RequestTooLargeError,
  ServingClosedError,
  ServingError,
  type ServingService,
  UnknownServingError,
  withMetadata,
  type Tensor,
} from 'nestjs-serving';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { iterated, until } from '../../fixtures/async/streams.js';
import { floats } from '../../fixtures/values/tensors.js';
import { type ClusterApp, useCluster } from '../../fixtures/cluster/use-cluster.js';

/** Replies with the node that ran the row. */
const saying = (name: string, node: string): FunctionServingDefinition => ({
  name,
  model: { useFactory: () => (rows: readonly unknown[]) => rows.map((row) => ({ node, row })) },
});

/** Texts of these lengths. */
const texts = (rows: readonly number[]) => rows.map((length) => 'x'.repeat(length));

/** Returns its rows, two in a batch. */
const twice = (hook: object): FunctionServingDefinition => ({
  name: `by ${Object.keys(hook)[0]}`,
  batchSize: 2,
  batchTimeout: 1_000_000,
  model: { useFactory: () => (rows: unknown) => rows },
  ...hook,
});

describe('A call in a cluster', () => {
  const cluster = useCluster();

  it('[M8] A call with an unknown option is refused before it is sent', async () => {
    await cluster.node({ servings: [saying('far', 'owner')] });
    const web = await cluster.node();
    await web.untilNodes('far');
    const misspelt: object = { timeoutt: 1 };

    const faults = await Promise.all([
      failureOf(web.servings.batchedRun('far', 1, misspelt)),
      failureOf(web.servings.run('far', 1, misspelt)),
      failureOf(iterated(web.servings.stream('far', 1, misspelt))),
    ]);

    expect(faults).toEqual(faults.map(() => expect.any(InvalidInputError)));
    expect(faults[0]).toHaveProperty(
      'message',
      expect.stringContaining('unknown option "timeoutt"'),
    );
  });

  it('[W12] postprocess at the owner gets the metadata of every batch of a remote call', async () => {
    await cluster.node({
      servings: [
        {
          name: 'split',
          batchSize: 2,
          model: {
            useFactory: () => (rows: readonly string[]) => withMetadata(rows, rows.join('')),
          },
          postprocess: (_output: unknown, { metadata }) => metadata,
        },
      ],
    });
    const web = await cluster.node();
    await web.untilNodes('split');

    expect(await web.servings.batchedRun('split', Batch.stack(['a', 'b', 'c']))).toEqual([
      { offset: 0, rows: 2, metadata: 'ab' },
      { offset: 2, rows: 1, metadata: 'c' },
    ]);
  });

  it('[11] A call runs on its own node, or on another when that lacks the serving', async () => {
    const owner = await cluster.node({
      servings: [saying('near', 'owner'), saying('far', 'owner')],
    });
    const web = await cluster.node({ servings: [saying('near', 'web')] });
    await web.untilNodes('far');

    expect(await web.servings.batchedRun('near', 1)).toEqual({ node: 'web', row: 1 });
    expect(await web.servings.batchedRun('far', 2)).toEqual({ node: 'owner', row: 2 });
    expect(await web.servings.run('far', 3)).toEqual({ node: 'owner', row: 3 });
    expect(await owner.servings.batchedRun('near', 4)).toEqual({ node: 'owner', row: 4 });
  });

  it('[11] A call runs on the side that it names', async () => {
    const web = await cluster.node({ servings: [saying('near', 'web')] });
    await web.untilNodes('near');
    const { servings } = web;

    expect(await servings.batchedRun({ local: 'near' }, 1)).toEqual({ node: 'web', row: 1 });
    expect(await servings.batchedRun({ distributed: 'near' }, 1)).toEqual({ node: 'web', row: 1 });
    const owner = await cluster.node({ servings: [saying('far', 'owner')] });
    await web.untilNodes('far');
    expect(await failureOf(servings.batchedRun({ local: 'far' }, 1))).toBeInstanceOf(
      UnknownServingError,
    );
    expect(await servings.batchedRun({ distributed: 'far' }, 1)).toEqual({ node: 'owner', row: 1 });
    expect(await owner.servings.batchedRun({ distributed: 'near' }, 2)).toEqual({
      node: 'web',
      row: 2,
    });
  });

  it('[11] A call fails when no node with its serving joins within the discovery timeout', async () => {
    const web = await cluster.node({ discoveryTimeout: 50 });

    const failure = await failureOf(web.servings.batchedRun('nowhere', 1));

    expect(failure).toBeInstanceOf(UnknownServingError);
    expect(failure).toMatchObject({ message: expect.stringContaining('no node') });
    for (const strange of [Symbol('x'), { distributed: 5 }, { local: null }, {}, undefined]) {
      expect(await failureOf(web.servings.batchedRun(strange as never, 1))).toBeInstanceOf(
        UnknownServingError,
      );
    }
  });

  it('[C4] A serving whose nodes are gone is unavailable, and a name that no node has had fails at once', async () => {
    const owner = await cluster.node({ servings: [saying('known', 'owner')] });
    const web = await cluster.node({ discoveryTimeout: 1 });
    await web.untilNodes('known');
    while (web.cluster.selector.onlineFor < 2) {
      await web.cluster.selector.nextChange(1);
    }
    // None of these calls waits from here on.
    const waits = jest.spyOn(web.cluster.selector, 'nextChange');

    expect(await failureOf(web.servings.batchedRun('unknown', 1))).toMatchObject({
      code: 'SERVING_UNKNOWN',
      statusCode: 500,
    });
    expect(waits).not.toHaveBeenCalled();
    waits.mockRestore();
    owner.kill();
    await web.untilNodes('known', 0);

    expect(await failureOf(web.servings.batchedRun('known', 1))).toMatchObject({
      code: 'SERVING_UNAVAILABLE',
      statusCode: 503,
      message: expect.stringContaining('There is no serving "known" here'),
    });
  });

  it.each([
    ['was killed', 'is lost', async (owner: ClusterApp) => owner.kill()],
    ['has shut down', 'has left', (owner: ClusterApp) => owner.close()],
  ])('[FU22] A call to a serving whose only node %s names the node', async (_, end, stop) => {
    const owner = await cluster.node({ nodeId: 'one', servings: [saying('known', 'one')] });
    await cluster.node({ nodeId: 'two', servings: [saying('other', 'two')] });
    const web = await cluster.node({ discoveryTimeout: 0 });
    await web.untilNodes('known');
    await web.untilNodes('other');
    await stop(owner);
    await web.untilNodes('known', 0);
    while (web.cluster.selector.others.length > 1) {
      await web.cluster.selector.nextChange(10);
    }

    expect(await failureOf(web.servings.batchedRun('known', 1))).toMatchObject({
      code: 'SERVING_UNAVAILABLE',
      message: expect.stringMatching(
        new RegExp(
          `^There is no serving "known" here, and the node "one", which had it, ${end} ` +
            String.raw`\(last seen \d+ s ago\), and no other has it$`,
        ),
      ),
    });
  });

  it('[FU22] A call to a serving that its only node no longer has after a restart lists what the nodes have', async () => {
    const owner = await cluster.node({ nodeId: 'one', servings: [saying('known', 'one')] });
    const web = await cluster.node({ discoveryTimeout: 0 });
    await web.untilNodes('known');
    owner.kill();
    await web.untilNodes('known', 0);
    await cluster.node({ nodeId: 'one', servings: [saying('other', 'one')] });
    await web.untilNodes('other');

    expect(await failureOf(web.servings.batchedRun('known', 1))).toMatchObject({
      code: 'SERVING_UNAVAILABLE',
      message:
        'There is no serving "known" here, and no known node has it: "one". They have "other"',
    });
  });

  it('[11] A call waits for a node that is about to join', async () => {
    const web = await cluster.node({ discoveryTimeout: 60_000 });
    const reply = web.servings.batchedRun('late', 1);

    await cluster.node({ servings: [saying('late', 'owner')] });

    expect(await reply).toEqual({ node: 'owner', row: 1 });
  });

  it('[11] Calls of several nodes share a batch', async () => {
    const held = new HeldFunction<number>();
    await cluster.node({
      servings: [
        {
          name: 'held',
          batchSize: 3,
          batchTimeout: 1_000_000,
          model: { useFactory: held.useFactory },
        },
      ],
    });
    const [one, two] = [await cluster.node(), await cluster.node()];
    await Promise.all([one.untilNodes('held'), two.untilNodes('held')]);

    const replies = [
      one.servings.batchedRun('held', 1),
      two.servings.batchedRun('held', 2),
      one.servings.batchedRun('held', 3),
    ];
    while (held.batches.length === 0) {
      await new Promise(setImmediate);
    }
    expect(held.rows[0]!.toSorted((a, b) => a - b)).toEqual([1, 2, 3]);
    const batch = held.next();
    batch.finish(batch.rows.map((row) => row * 10));

    expect(await Promise.all(replies)).toEqual([10, 20, 30]);
  });

  it('[11] A call runs on another node while two batches per partition wait on its own', async () => {
    const own = new HeldFunction();
    const definition = { name: 'm', batchSize: 1, model: { useFactory: own.useFactory } };
    const web = await cluster.node({
      servings: [definition],
      localFirst: 'unless-saturated',
      drainTimeout: 1000,
    });
    await cluster.node({ servings: [saying('m', 'other')] });
    await web.untilNodes('m', 2);
    const runs = web.servings.batchedRun('m', 'runs');
    await until(() => own.batches.length === 1);
    const waiting = [
      runs,
      web.servings.batchedRun('m', 'waits'),
      web.servings.batchedRun('m', 'waits, too'),
    ];

    expect(web.servings.get({ local: 'm' }).queued).toBe(2);
    expect(await web.servings.batchedRun('m', 'spills over')).toEqual({
      node: 'other',
      row: 'spills over',
    });

    for (let answered = 0; answered < 3; answered++) {
      await until(() => own.batches.length === 1);
      own.next().finish([answered]);
    }
    expect(await Promise.all(waiting)).toEqual([0, 1, 2]);
  });

  it('[11] A call runs on the node that a custom function chooses', async () => {
    const nodes = ['a', 'b', 'c'];
    await Promise.all(
      nodes.map((nodeId) => cluster.node({ nodeId, servings: [saying('m', nodeId)] })),
    );
    const web = await cluster.node({
      balance: (candidates, { serving }) =>
        candidates.find(({ id }) => id === 'b' && serving === 'm'),
    });
    await web.untilNodes('m', 3);

    const replies = await Promise.all(nodes.map((row) => web.servings.batchedRun('m', row)));

    expect(replies).toEqual(nodes.map((row) => ({ node: 'b', row })));
  });

  it('[11] Tensors cross to another node and back', async () => {
    await cluster.node({
      servings: [{ name: 'echo', model: { useFactory: () => (rows: unknown) => rows } }],
    });
    const web = await cluster.node();
    await web.untilNodes('echo');
    const input = { x: floats([2, 3], [1, NaN, -0, Infinity, 5, 6]) };

    expect(await web.servings.batchedRun('echo', input)).toEqual(input);
  });

  it('[11] The input is preprocessed at the caller and the output postprocessed at the owner', async () => {
    const sides: string[] = [];
    const definition: FunctionServingDefinition<string, string> = {
      name: 'sides',
      distribution: {
        preprocess: (input) => `${input} pre@`,
        postprocess: (output) => `${output} post`,
      },
      preprocess: (input) => {
        sides.push('preprocess');
        return { batch: `${input} owner(` };
      },
      postprocess: (output) => `${String(output)})`,
      model: { useFactory: () => (rows: readonly unknown[]) => rows },
    };
    await cluster.node({ servings: [definition] });
    const web = await cluster.node();
    await web.untilNodes('sides');

    expect(await web.servings.batchedRun('sides', 'a')).toBe('a owner() post');
    expect(await web.servings.batchedRun(definition, 'a')).toBe('a pre@ owner() post');
    expect(sides).toHaveLength(2);
  });

  it('[11] [2.1] postprocess at the owner receives only the rows of its own call', async () => {
    const seen: number[] = [];
    const look = (output: unknown): unknown => {
      seen.push(((output as Tensor).data as Float32Array).buffer.byteLength);
      return output;
    };
    const servings = [
      twice({ postprocess: look }),
      twice({ distribution: { postprocess: look } }),
      twice({ batchTimeout: 1_000_000 }),
    ];
    await cluster.node({ servings });
    const web = await cluster.node();

    for (const { name } of servings) {
      await web.untilNodes(name);
      const replies = [1, 2].map((value) => web.servings.batchedRun(name, floats([1, 1], [value])));
      expect(await Promise.all(replies)).toEqual([floats([1, 1], [1]), floats([1, 1], [2])]);
    }

    expect(seen).toEqual([4, 4, 4, 4]);
  });

  it('[11] A reply or error too large for a message fails the call with the reason', async () => {
    const limits = { bytes: 100_000 };
    await cluster.node({
      servings: [
        { name: 'texts', model: { useFactory: () => texts } },
        {
          name: 'failing',
          model: {
            useFactory: () => (rows: readonly number[]) => {
              throw new RangeError(texts(rows)[0], { cause: new Error(texts(rows)[0]) });
            },
          },
        },
      ],
      limits,
    });
    const web = await cluster.node({ limits });
    await web.untilNodes('texts');
    const { servings } = web;

    // Sizes at which the value fits and the frame with its header does not.
    for (const length of [99_950, 100_001, 1_000_000]) {
      expect(await failureOf(servings.batchedRun('texts', length))).toBeInstanceOf(
        InvalidOutputError,
      );
      expect(await failureOf(servings.batchedRun('texts', 'x'.repeat(length)))).toBeInstanceOf(
        RequestTooLargeError,
      );
      expect(await failureOf(iterated(servings.stream('texts', length)))).toBeInstanceOf(
        InvalidOutputError,
      );
    }
    expect(
      await failureOf(servings.batchedRun('texts', 1, { tenant: 'x'.repeat(100_000) })),
    ).toBeInstanceOf(RequestTooLargeError);
    for (const length of [60_000, 1_000_000]) {
      expect(await failureOf(servings.batchedRun('failing', length))).toMatchObject({
        code: 'SERVING_BATCH_FAILED',
        cause: {
          name: 'RangeError',
          message: expect.stringContaining(`xxx... (${length} characters)`),
          cause: expect.any(Error),
        },
      });
    }
    expect(await servings.batchedRun('texts', 10)).toBe('x'.repeat(10));
  });

  it.each([
    ['in one packet', 256 * 1024],
    ['in fragments', 4096],
  ])(
    '[11] A call too large for the other node, or a reply too large for the caller, fails at once: %s',
    async (_, maxPacket) => {
      cluster.network({ maxPacket });
      const servings = [
        { name: 'echo', model: { useFactory: () => (rows: unknown) => rows } },
        { name: 'texts', model: { useFactory: () => texts } },
      ];
      const small = { limits: { bytes: 20_000 }, requestTimeout: 600_000 };
      const node = await cluster.node({ servings, ...small });
      const web = await cluster.node({ requestTimeout: 600_000 });
      await web.untilNodes('echo');

      const large = 'x'.repeat(50_000);
      const lazy = Readable.from([Batch.ofValues(['a']), Batch.ofValues([large])]);
      const refused = {
        name: 'RequestTooLargeError',
        message: expect.stringMatching(/50\d\d\d bytes.*at most 20000 are allowed/),
      };
      expect(await failureOf(web.servings.batchedRun('echo', large))).toMatchObject(refused);
      expect(await failureOf(iterated(web.servings.stream('echo', large)))).toMatchObject(refused);
      expect(await failureOf(web.servings.batchedRun('echo', lazy))).toBeInstanceOf(
        InvalidInputError,
      );
      expect(await web.servings.batchedRun('echo', 'a')).toBe('a');

      await node.close();
      await cluster.node({ servings });
      const caller = await cluster.node({ ...small, attempts: 1 });
      await caller.untilNodes('texts');
      const unreadable = {
        name: 'NodeLostError',
        message: expect.stringMatching(/cannot be read.*at most 20000 are allowed/),
      };
      expect(await failureOf(caller.servings.batchedRun('texts', 50_000))).toMatchObject(
        unreadable,
      );
      expect(await failureOf(iterated(caller.servings.stream('texts', 50_000)))).toMatchObject(
        unreadable,
      );
      expect(await caller.servings.batchedRun('texts', 1)).toBe('x');
    },
  );

  it('[FR5] A ServingError of the application keeps its status and properties on its way from another node', async () => {
    class QuotaError extends ServingError {
      override readonly name = 'QuotaError';
      override readonly code = 'SERVING_QUOTA';
      override readonly statusCode = 429;
      readonly plan = 'free';
    }
    const metered: FunctionServingDefinition = {
      name: 'metered',
      model: {
        useFactory: () => (rows: readonly unknown[]) =>
          rows.map(() => new QuotaError('no more today', { retryAfter: 7 })),
      },
    };
    await cluster.node({ servings: [metered] });
    const web = await cluster.node();
    await web.untilNodes('metered');

    const error = await failureOf(web.servings.batchedRun('metered', 1));

    expect(error).toBeInstanceOf(ServingError);
    expect(error).toMatchObject({
      name: 'QuotaError',
      code: 'SERVING_QUOTA',
      statusCode: 429,
      retryAfter: 7,
      plan: 'free',
      message: 'no more today',
    });
  });

  it('[11] [7.4] The owner determines the tenant of a remote call that names none', async () => {
    const asked: unknown[] = [];
    const tenant = (input: unknown): string => {
      asked.push(input);
      return 'found';
    };
    await cluster.node({ servings: [{ ...saying('shared', 'owner'), queue: { tenant } }] });
    const web = await cluster.node();
    await web.untilNodes('shared');

    await web.servings.batchedRun('shared', 1);
    await web.servings.batchedRun('shared', 2, { tenant: 'said' });

    expect(asked).toEqual([1]);
  });

  it('[11] [M4] A remote call has the key that its caller names', async () => {
    const keyed = {
      name: 'keyed',
      batchKeys: ['long', 'short'],
      model: {
        useFactory:
          ({ key }: { key: string }) =>
          (rows: unknown[]) =>
            rows.map(() => key),
      },
    };
    await cluster.node({ servings: [keyed] });
    const web = await cluster.node();
    await web.untilNodes('keyed');

    const replies = ['short', 'long'].map((key) =>
      web.servings.batchedRun('keyed', 'row', { key }),
    );

    expect(await Promise.all(replies)).toEqual(['short', 'long']);
  });

  it('[11] [9.3] A remote call is answered when its own node closes meanwhile', async () => {
    const held = new HeldFunction<number>();
    await cluster.node({
      servings: [{ name: 'held', batchSize: 1, model: { useFactory: held.useFactory } }],
    });
    const web = await cluster.node({ drainTimeout: 30_000 });
    await web.untilNodes('held');
    const { servings } = web;
    const reply = servings.batchedRun('held', 1);
    await until(() => held.batches.length === 1);

    const closed = web.close();
    const later = servings.batchedRun('held', 2);
    held.next().finish([10]);
    await until(() => held.batches.length === 1);
    held.next().finish([20]);

    expect(await Promise.all([reply, later])).toEqual([10, 20]);
    await closed;
    expect(await failureOf(servings.batchedRun('held', 3))).toBeInstanceOf(ServingClosedError);
  });

  it('[11] A list with more parts than the limit crosses as one block', async () => {
    const sum = {
      name: 'sum',
      model: { useFactory: () => (rows: readonly number[][]) => rows.map((row) => row.length) },
    };
    await cluster.node({ servings: [sum], limits: { nodes: 5 } });
    const web = await cluster.node({ limits: { nodes: 5 } });
    await web.untilNodes('sum');

    expect(
      await web.servings.batchedRun(
        'sum',
        Array.from({ length: 5000 }, () => 1),
      ),
    ).toBe(5000);
  });

  it('[11] Calls to other nodes need the distribution to be configured', async () => {
    const { NestFactory } = await import('@nestjs/core');
    const { ServingModule, ServingService: Service } = await import('nestjs-serving');
    const app = await NestFactory.createApplicationContext(
      { module: class {}, imports: [ServingModule.forRoot({ servings: [saying('near', 'web')] })] },
      { logger: false },
    );
    const servings = app.get<ServingService>(Service);

    expect(await failureOf(servings.batchedRun({ distributed: 'near' }, 1))).toBeInstanceOf(
      InvalidServingError,
    );
    expect(await servings.batchedRun({ local: 'near' }, 1)).toEqual({ node: 'web', row: 1 });
    await app.close();
  });
});
