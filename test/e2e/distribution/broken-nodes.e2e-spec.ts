import { describe, expect, it } from '@jest/globals';
import {
  DeadlineTooShortError,
  OverloadedError,
  ServingUnavailableError,
  UnknownServingError,
  UnknownVersionError,
} from 'nestjs-serving';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
import { passTime, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { iterated } from '../../fixtures/async/streams.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';

type Run = (rows: readonly unknown[]) => unknown[] | Promise<unknown[]>;

const serving = (run: Run): FunctionServingDefinition => ({
  name: 'm',
  batchSize: 1,
  model: { useFactory: () => run },
});
const slowly: Run = async (rows) => {
  await new Promise((resolve) => setTimeout(resolve, 20));
  return [...rows];
};

/** Passes its events on as they are. */
const passing = (output: string, maxRows: number): FunctionServingDefinition => ({
  ...serving(() => [output]),
  queue: { maxRows },
  postprocess: (each) => each,
  async *postprocessStream(events) {
    yield* events;
  },
});

describe('Nodes that cannot run their calls', () => {
  const cluster = useCluster();
  useVirtualTime();

  it.each<[string, Run]>([
    [
      'each batch',
      () => {
        throw new Error('device lost');
      },
    ],
    ['each row', (rows) => rows.map(() => new Error('device lost'))],
  ])(
    '[FV2] A node that fails %s immediately gets no more calls than the others, balanced by load',
    async (_, fails) => {
      await cluster.node({ servings: [serving(slowly)] });
      await cluster.node({ servings: [serving(fails)] });
      const web = await cluster.node({ balance: 'least-loaded' });
      await web.untilNodes('m', 2);
      let [answered, failed] = [0, 0];
      const callers = Array.from({ length: 8 }, async () => {
        for (let calls = 0; calls < 50; calls++) {
          await new Promise((resolve) => setTimeout(resolve, 5));
          await web.servings.batchedRun('m', 1).then(
            () => answered++,
            () => failed++,
          );
        }
      });
      await passTime(Promise.all(callers));

      expect(failed).toBeLessThan(answered * 1.5);
    },
  );

  it('[FV4] Calls that a node refuses because it was drained by hand go to another node, and the next ones there directly', async () => {
    const drained = await cluster.node({
      heartbeat: 1000,
      servings: [serving((rows) => rows.map(() => 'drained'))],
    });
    await cluster.node({ servings: [serving((rows) => rows.map(() => 'well'))] });
    const web = await cluster.node();
    await web.untilNodes('m', 2);
    drained.servings.get('m').drain();

    const replies = Promise.all(Array.from({ length: 20 }, () => web.servings.batchedRun('m', 1)));

    expect(await replies).toEqual(Array.from({ length: 20 }, () => 'well'));
    // Less than the pause until the next heartbeat.
    await passTime(new Promise((resolve) => setTimeout(resolve, 110)));
    expect(web.cluster.selector.candidates('m').length).toBe(1);
  });

  it.each<[string, (fail: () => Error) => Partial<FunctionServingDefinition>]>([
    [
      'batch function throws',
      (fail) => ({
        model: {
          useFactory: () => () => {
            throw fail();
          },
        },
      }),
    ],
    [
      'row has',
      (fail) => ({ model: { useFactory: () => (rows: unknown[]) => rows.map(() => fail()) } }),
    ],
    [
      'postprocess throws',
      (fail) => ({
        postprocess() {
          throw fail();
        },
      }),
    ],
    [
      'postprocess of its own rejects with',
      (fail) => ({ postprocess: () => Promise.reject(fail()) }),
    ],
    [
      'preprocess throws',
      (fail) => ({
        preprocess() {
          throw fail();
        },
      }),
    ],
    [
      'preprocess of its own rejects with',
      (fail) => ({ preprocess: () => Promise.reject(fail()) }),
    ],
    [
      'distribution.postprocess throws',
      (fail) => ({
        distribution: {
          postprocess() {
            throw fail();
          },
        },
      }),
    ],
  ])(
    '[FV4] A refusal by another serving, which a %s, runs its rows nowhere else: code of the application has run',
    async (_, failing) => {
      for (const Refusal of [
        OverloadedError,
        DeadlineTooShortError,
        ServingUnavailableError,
        UnknownServingError,
        UnknownVersionError,
      ]) {
        let runs = 0;
        const fail = (): Error => {
          runs++;
          return new Refusal('Serving "other" takes no rows');
        };
        const name = Refusal.name;
        const definition = { ...serving((rows) => [...rows]), ...failing(fail), name };
        await cluster.node({ servings: [definition] });
        await cluster.node({ servings: [definition] });
        const web = await cluster.node();
        await web.untilNodes(name, 2);

        await expect(web.servings.batchedRun(name, 1)).rejects.toBeInstanceOf(Refusal);
        expect(runs).toBe(1);
      }
    },
  );

  it.each<[string, (fail: () => Error) => Partial<FunctionServingDefinition>]>([
    [
      'postprocess throws',
      (fail) => ({
        postprocess() {
          throw fail();
        },
      }),
    ],
    [
      'postprocessStream throws',
      (fail) => ({
        postprocess: (output) => output,
        postprocessStream() {
          throw fail();
        },
      }),
    ],
    [
      'postprocessStream throws at the first output',
      (fail) => ({
        postprocess: (output) => output,
        async *postprocessStream(events) {
          for await (const _ of events) {
            throw fail();
          }
          yield 'no output';
        },
      }),
    ],
  ])('[FV4] A refusal that a %s runs no stream on another node', async (_, failing) => {
    let runs = 0;
    const fail = (): Error => {
      runs++;
      return new OverloadedError('Serving "other" takes no rows');
    };
    const definition = { ...serving((rows) => [...rows]), ...failing(fail) };
    await cluster.node({ servings: [definition] });
    await cluster.node({ servings: [definition] });
    const web = await cluster.node();
    await web.untilNodes(definition.name, 2);

    await expect(iterated(web.servings.stream(definition.name, 1))).rejects.toBeInstanceOf(
      OverloadedError,
    );
    expect(runs).toBe(1);
  });

  it('[FV4] A refusal of its own rows lets a stream run on another node, also through postprocessStream', async () => {
    const full = await cluster.node({ servings: [passing('full', 1)] });
    await cluster.node({ servings: [passing('works', 100)] });
    const web = await cluster.node();
    await web.untilNodes('m', 2);
    full.servings.get('m').pause();
    const waiting = full.servings.batchedRun({ local: 'm' }, 1);

    const streams = await Promise.all(
      Array.from({ length: 8 }, () => iterated(web.servings.stream('m', 1))),
    );

    expect(streams.flat()).toEqual(
      streams.map(() => expect.objectContaining({ output: 'works' }) as unknown),
    );
    full.servings.get('m').resume();
    await expect(waiting).resolves.toBe('full');
  });
});
