import { describe, expect, it } from '@jest/globals';
import { Batch, type ServingService } from 'nestjs-serving';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
import { firstValueFrom } from 'rxjs';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { until } from '../../fixtures/async/streams.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';

/** Yields until its consumer leaves. */
const endless: FunctionServingDefinition = {
  name: 'm',
  preprocess: () => ({ batch: batches() }),
  model: { useFactory: () => (rows: readonly unknown[]) => rows },
};

async function* batches(): AsyncGenerator<Batch, void> {
  for (let step = 1; ; step++) {
    yield Batch.ofValues([step]);
  }
}

const reason = new Error('the client has left');

describe('The events of a call to another node', () => {
  const cluster = useCluster();

  /** The end events of the next call on both nodes. */
  async function watched(serving: FunctionServingDefinition) {
    const owner = await cluster.node({ servings: [serving] });
    const web = await cluster.node({ remotes: ['m'] });
    await web.untilNodes('m');
    const ends = [web, owner].map(({ servings }) => firstValueFrom(servings.eventsOf('call:end')));
    return { servings: web.servings, ends };
  }

  it.each<['batchedRun' | 'run', string]>([
    ['batchedRun', 'batched'],
    ['run', 'inline'],
  ])(
    '[11] [7.3] [12.3] Both nodes report a call as cancelled when its caller leaves: %s',
    async (method, mode) => {
      const held = new HeldFunction();
      const { servings, ends } = await watched({
        name: 'm',
        batchSize: 1,
        shutdown: { timeout: 50 },
        model: { useFactory: held.useFactory },
      });
      const leaving = new AbortController();
      const failure = failureOf(servings[method]('m', 'row', leaving));
      await until(() => held.batches.length === 1);

      leaving.abort(reason);
      const [here, there] = await Promise.all(ends);
      held.next().finish(['late']);

      expect(await failure).toBe(reason);
      expect(here).toMatchObject({
        serving: 'm',
        mode,
        stage: 'running',
        error: reason,
        cancelled: true,
      });
      expect(there).toMatchObject({ serving: 'm', mode, stage: 'running', cancelled: true });
    },
  );

  it('[11] [7.3] [12.3] Both nodes report a stream that its signal ends as cancelled', async () => {
    const { servings, ends } = await watched(endless);
    const leaving = new AbortController();
    const failure = failureOf(
      (async () => {
        for await (const event of servings.stream('m', 1, leaving)) {
          expect(event).toBeDefined();
          leaving.abort(reason);
        }
      })(),
    );
    const [here, there] = await Promise.all(ends);

    expect(await failure).toBe(reason);
    expect(here).toMatchObject({ mode: 'stream', error: reason, cancelled: true });
    expect(there).toMatchObject({ mode: 'stream' });
    expect('error' in there! && !there.cancelled).toBe(false);
  });

  it('[11] [8.2] [12.3] A stream whose reader has read enough has not failed on either node', async () => {
    const { servings, ends } = await watched(endless);

    await firstValueFrom(servings.stream('m', 1));
    const [here, there] = await Promise.all(ends);

    expect(here).toMatchObject({ mode: 'stream' });
    expect(here).not.toHaveProperty('error');
    expect('error' in there! && !there.cancelled).toBe(false);
  });

  it('[11] [8.2] [12.3] A stream whose reader stops waiting is reported as cancelled by the owner', async () => {
    const held = new HeldFunction();
    const { servings, ends } = await watched({
      name: 'm',
      batchSize: 1,
      shutdown: { timeout: 50 },
      model: { useFactory: held.useFactory },
    });
    const reading = servings.stream('m', 1).subscribe();
    await until(() => held.batches.length === 1);

    reading.unsubscribe();
    const [here, there] = await Promise.all(ends);
    held.next().finish(['late']);

    expect(here).toMatchObject({ mode: 'stream', stage: 'running' });
    expect(here).not.toHaveProperty('error');
    expect(there).toMatchObject({ mode: 'stream', cancelled: true });
  });

  it.each<[string, (servings: ServingService) => Promise<unknown>]>([
    [
      'batchedRun',
      (servings) => servings.batchedRun('m', 'row', { signal: new AbortController().signal }),
    ],
    [
      'stream',
      (servings) =>
        firstValueFrom(servings.stream('m', 'row', { signal: new AbortController().signal })),
    ],
  ])(
    '[11] [12.3] A failed call is not reported as cancelled on either node: %s',
    async (_, call) => {
      const { servings, ends } = await watched({
        name: 'm',
        model: {
          useFactory: () => () => {
            throw new RangeError('no');
          },
        },
      });

      const failure = await failureOf(call(servings));
      const [here, there] = await Promise.all(ends);

      expect(here).toMatchObject({ error: failure });
      expect(there).toMatchObject({ error: { code: 'SERVING_BATCH_FAILED' } });
      expect([here, there].filter((end) => 'cancelled' in end!)).toEqual([]);
    },
  );
});
