import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import {
  Batch,
  BatchFailedError,
  createServing,
  InvalidOutputError,
  type LocalServing,
  type OutputEvent,
  PartitionLostError,
  type ServingDefinition,
  type ServingOptions,
  ServingStream,
  SlowConsumerError,
} from 'nestjs-serving';
import { stepped, type SteppedRow } from '../../fixtures/batching/stepped.js';
import { iterated, observed, outputsOf, until } from '../../fixtures/async/streams.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const FOREVER = 1e9;
const steps = await stepped('steps');
const watched = await stepped('watched');
const row = (name: string, count: number, more: Partial<SteppedRow> = {}): SteppedRow => ({
  name,
  steps: count,
  ...more,
});

const withItsMetadata = (output: unknown, { metadata }: { metadata: unknown }) => [
  output,
  metadata,
];

/** The received outputs, and the error that ended them. */
async function received(stream: ServingStream<OutputEvent>): Promise<unknown[]> {
  const outputs: unknown[] = [];
  try {
    for await (const { output } of stream) {
      outputs.push(output);
    }
  } catch (error) {
    outputs.push(error);
  }
  return outputs;
}

describe.each(['a function', 'a class', 'a thread'] as const)('A generator in %s', (host) => {
  const start = useServings();
  /** The number of steps and of ended generators. */
  const counts = new Int32Array(new SharedArrayBuffer(8));
  const definition = (options: Partial<ServingOptions> = {}): ServingDefinition => ({
    ...steps[host]({ counts }),
    batchTimeout: 1,
    ...options,
  });
  /** One serving for many tests, since a thread takes long to start. */
  let serving: LocalServing;

  beforeAll(async () => {
    serving = createServing(definition());
    await serving.start();
  });

  beforeEach(() => {
    counts.fill(0);
  });

  afterAll(() => serving.close());

  it('[8.4] The row of one caller ends while the generator goes on for others', async () => {
    const events = await Promise.all(
      [row('a', 1), row('b', 3), row('c', 2)].map((input) => iterated(serving.stream(input))),
    );

    expect(events.map(outputsOf)).toEqual([['a0'], ['b0', 'b1', 'b2'], ['c0', 'c1']]);
    expect(events[1]).toEqual(
      [0, 1, 2].map((step) => ({
        batch: { offset: 0, rows: 1 },
        output: `b${step}`,
        metadata: { step },
      })),
    );
    expect([...counts]).toEqual([3, 1]);
  });

  it('[8.4] A call with several rows gets a list per step, with undefined for rows that have ended', async () => {
    const events = await iterated(
      serving.stream(Batch.stack([row('a', 1), row('b', 3), row('c', 0)])),
    );

    expect(events).toEqual([
      { batch: { offset: 0, rows: 3 }, output: ['a0', 'b0', undefined], metadata: { step: 0 } },
      {
        batch: { offset: 0, rows: 3 },
        output: [undefined, 'b1', undefined],
        metadata: { step: 1 },
      },
      {
        batch: { offset: 0, rows: 3 },
        output: [undefined, 'b2', undefined],
        metadata: { step: 2 },
      },
    ]);
  });

  it.each(['batchedRun', 'run'] as const)(
    '[8.4] Steps are collected row by row by %s',
    async (method) => {
      const own = await start(
        definition({ batchSize: 2, postprocess: (output, { metadata }) => ({ output, metadata }) }),
      );

      const replies = await Promise.all([
        own[method](row('a', 2)),
        own[method](Batch.stack([row('b', 1), row('c', 3), row('d', 0)])),
      ]);

      expect(replies.map((reply) => (reply as { output: unknown }).output)).toEqual([
        ['a0', 'a1'],
        [['b0'], ['c0', 'c1', 'c2'], []],
      ]);
    },
  );

  it('[8.4] The steps of several batches arrive in the order of the rows', async () => {
    const own = await start(definition({ batchSize: 2 }));
    const rows = [row('a', 2), row('b', 1), row('c', 1), row('d', 2), row('e', 1)];

    const events = await iterated(own.stream(Batch.stack(rows)));

    expect(events.map(({ batch, output }) => [batch.offset, output])).toEqual([
      [0, ['a0', 'b0']],
      [0, ['a1', undefined]],
      [2, ['c0', 'd0']],
      [2, [undefined, 'd1']],
      [4, ['e0']],
    ]);
  });

  it('[8.5] A generator runs for a sequence of inputs', async () => {
    const own = await start(definition({ batchSize: 2 }));

    const outputs = outputsOf(
      await iterated(own.stream([row('a', 2), row('b', 1), row('c', 1)].values())),
    ).flat();

    expect(
      outputs
        .filter((output) => output !== undefined)
        .map(String)
        .toSorted(),
    ).toEqual(['a0', 'a1', 'b0', 'c0']);
    expect(await own.batchedRun([row('a', 2), row('b', 1)].values())).toEqual([
      ['a0', 'a1'],
      ['b0'],
    ]);
  });

  it('[8.2] Subscribing and iterating give the same events', async () => {
    const stream = serving.stream(row('a', 4));

    expect(await observed(stream)).toEqual(await iterated(stream));
  });

  it('[8.4] A generator runs inline on request', async () => {
    expect(
      outputsOf(await iterated(serving.stream(Batch.stack([row('a', 2)]), { inline: true }))),
    ).toEqual([['a0'], ['a1']]);
  });

  it('[8.4] [1.6] Steps are postprocessed one by one or as a whole', async () => {
    const byStep = await start(definition({ postprocess: withItsMetadata }));
    expect(outputsOf(await iterated(byStep.stream(row('a', 2))))).toEqual([
      ['a0', { step: 0 }],
      ['a1', { step: 1 }],
    ]);

    const whole = await start(
      definition({
        postprocess: withItsMetadata,
        preprocess: (input: unknown) => ({ batch: input, info: 'said' }),
        postprocessStream: async function* (events, { info }) {
          let text = '';
          for await (const event of events) {
            text += String((event as OutputEvent).output);
            yield text;
          }
          yield `${String(info)} ${text}`;
        },
      }),
    );
    expect(await iterated(whole.stream(row('a', 2)))).toEqual(['a0', 'a0a1', 'said a0a1']);
  });

  it('[6.2] [8.4] An error in place of a row fails one caller, and the others go on', async () => {
    const replies = await Promise.all([
      received(serving.stream(row('a', 3, { fault: 'error', at: 1 }))),
      received(serving.stream(row('b', 3))),
      serving.batchedRun(row('c', 2)),
    ]);

    expect(replies).toEqual([
      ['a0', expect.objectContaining({ name: 'RangeError', message: 'a' })],
      ['b0', 'b1', 'b2'],
      ['c0', 'c1'],
    ]);
  });

  it('[6.1] [8.4] A generator that throws fails the waiting calls after their steps, and no others', async () => {
    const replies = await Promise.allSettled([
      received(serving.stream(row('a', 3, { fault: 'throws', at: 2 }))),
      received(serving.stream(row('b', 5))),
      received(serving.stream(row('c', 1))),
      serving.batchedRun(row('d', 2)),
      serving.batchedRun(row('e', 5)),
    ]);

    const failure = expect.objectContaining({
      name: 'BatchFailedError',
      message: 'Serving "steps": a batch of 5 rows failed: no memory',
      cause: expect.objectContaining({ name: 'RangeError' }),
    });
    // Row d ends with the second step, which is only visible with the third.
    expect(replies).toEqual([
      { status: 'fulfilled', value: ['a0', 'a1', failure] },
      { status: 'fulfilled', value: ['b0', 'b1', failure] },
      { status: 'fulfilled', value: ['c0'] },
      { status: 'rejected', reason: failure },
      { status: 'rejected', reason: failure },
    ]);
    expect(await serving.batchedRun(row('f', 1))).toEqual(['f0']);
  });

  it.each(['too few', 'too many', 'no list'] as const)(
    '[6.3] [8.4] A generator that yields %s fails its batch and is closed',
    async (fault) => {
      const replies = await Promise.all([
        received(serving.stream(row('a', FOREVER, { fault, at: 2 }))),
        received(serving.stream(Batch.stack([row('b', FOREVER), row('c', 1)]))),
      ]);

      const failure = expect.any(InvalidOutputError);
      expect(replies).toEqual([
        ['a0', 'a1', failure],
        [['b0', 'c0'], ['b1', undefined], failure],
      ]);
      await until(() => counts[1] === 1);
      expect(await serving.batchedRun(row('d', 1))).toEqual(['d0']);
    },
  );

  it.each<[string, (stream: (options?: object) => ServingStream<OutputEvent>) => Promise<unknown>]>(
    [
      [
        'breaks off',
        async (stream) => {
          for await (const { output } of stream()) {
            if (output === 'a2') {
              break;
            }
          }
        },
      ],
      [
        'unsubscribes',
        (stream) =>
          new Promise<void>((resolve) => {
            const subscription = stream().subscribe(({ output }) => {
              if (output === 'a2') {
                subscription.unsubscribe();
                resolve();
              }
            });
          }),
      ],
      [
        'aborts',
        async (stream) => {
          const controller = new AbortController();
          for await (const { output } of stream({ signal: controller.signal })) {
            if (output === 'a2') {
              break;
            }
          }
          controller.abort();
        },
      ],
      [
        'aborts while it waits',
        async (stream) => {
          const controller = new AbortController();
          const reading = iterated(stream({ signal: controller.signal }));
          await until(() => counts[0]! > 3);
          controller.abort(new Error('left'));
          await expect(reading).rejects.toThrow('left');
        },
      ],
    ],
  )(
    '[8.2] [8.4] A generator is closed and its partition free when the last consumer %s',
    async (_, leave) => {
      await leave((options) => serving.stream(row('a', FOREVER), options));

      expect(await serving.batchedRun(row('b', 2))).toEqual(['b0', 'b1']);
      expect(counts[1]).toBe(2);
      // A thread goes on until the message arrives, which takes a turn of the event loop.
      expect(counts[0]).toBeLessThan(host === 'a thread' ? FOREVER : 1000);
    },
  );

  it('[8.4] A generator can read for each row whether its caller still waits', async () => {
    const own = await start({ ...watched[host](), batchTimeout: 1 });
    const lists: unknown[] = [];
    const staying = (async () => {
      for await (const { output } of own.stream('stays')) {
        lists.push(output);
        if ((output as string[]).length === 1) {
          break;
        }
      }
    })();
    for await (const { output } of own.stream('leaves')) {
      expect(output).toEqual(['stays', 'leaves']);
      break;
    }
    await staying;

    expect([lists[0], lists.at(-1)]).toEqual([['stays', 'leaves'], ['stays']]);
  });

  it('[8.2] A consumer that reads too slowly fails, and the others get all steps', async () => {
    const slow = serving.stream(row('a', 2000))[Symbol.asyncIterator]();
    const first = slow.next();

    const quick = await iterated(serving.stream(row('b', 3000)));

    expect(quick).toHaveLength(3000);
    expect(await first).toMatchObject({ value: { output: 'a0' } });
    const rest: unknown[] = [];
    const read = async (): Promise<void> => {
      for await (const { output } of slow) {
        rest.push(output);
      }
    };
    await expect(read()).rejects.toThrow(SlowConsumerError);
    expect(rest).toHaveLength(1024);
    expect([rest[0], rest.at(-1)]).toEqual(['a1', 'a1024']);
  });
});

describe('A generator in a thread', () => {
  const start = useServings();
  const serve = (partitions = 1) =>
    start({ ...steps['a thread'](), partitions, batchTimeout: 1, batchSize: 2 });

  it('[5.5] [8.4] When its thread ends a generator fails the waiting calls after their steps', async () => {
    const serving = await serve(2);

    const replies = await Promise.all([
      received(serving.stream(row('a', 9, { fault: 'exits', at: 2 }))),
      received(serving.stream(row('b', 9))),
      received(serving.stream(Batch.stack([row('c', 3), row('d', 1)]))),
    ]);

    const lost = expect.any(PartitionLostError);
    expect(replies).toEqual([
      ['a0', 'a1', lost],
      ['b0', 'b1', lost],
      [
        ['c0', 'd0'],
        ['c1', undefined],
        ['c2', undefined],
      ],
    ]);
    expect(await serving.batchedRun(row('e', 1))).toEqual(['e0']);
  });

  it('[8.4] A step that cannot leave the thread fails its batch', async () => {
    const serving = await serve();

    const failed = await received(serving.stream(row('a', 9, { fault: 'uncloneable', at: 1 })));

    expect(failed).toEqual(['a0', expect.any(BatchFailedError)]);
    expect(await serving.batchedRun(row('e', 1))).toEqual(['e0']);
  });
});
