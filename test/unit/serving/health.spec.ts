import { describe, expect, it } from '@jest/globals';
import { Module } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  createServing,
  getServingToken,
  type PartitionStatus,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { externalModel } from '../../fixtures/serving/external-model.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const up: PartitionStatus = { state: 'up', restarts: 0 };
const restarting: PartitionStatus = {
  state: 'restarting',
  restarts: 2,
  reason: 'Partition 1 is being restarted',
};
const hung: PartitionStatus = {
  state: 'hung',
  restarts: 0,
  reason: 'Partition 0 has run a batch for more than 10 ms',
};
const lost: PartitionStatus = {
  state: 'lost',
  restarts: 6,
  reason: 'Partition 0 has failed 6 times in a row',
};

const modelOf = (...partitions: readonly PartitionStatus[]) =>
  externalModel(async () => ({
    partitions: partitions.map((status) => ({
      prefetch: 0,
      status,
      run: () => new Promise<never>(() => {}),
      close: async () => {},
    })),
  }));

describe('The health of a serving', () => {
  const start = useServings();

  it('[9.2] [5.6] Health has the name, the state, the partitions and the number of queued rows', async () => {
    const options = { name: 'embedder', batchSize: 1, shutdown: { drain: false, timeout: 0 } };
    const serving = await start({ ...options, model: modelOf(up) });
    const replies = ['a', 'b', 'c'].map((row) => serving.batchedRun(row).catch(() => {}));
    // A turn, after which the partition has its first row.
    await new Promise((resolve) => setImmediate(resolve));

    expect(serving.health()).toEqual({
      serving: 'embedder',
      state: 'ready',
      isReady: true,
      isLive: true,
      queued: 2,
      partitions: [up],
    });
    await serving.close();
    await Promise.all(replies);
  });

  it('[9.2] A serving that is stopped, starting, closing or closed is live and not ready', async () => {
    let open!: () => void;
    const opened = new Promise<void>((resolve) => (open = resolve));
    let end!: () => void;
    const ended = new Promise<void>((resolve) => (end = resolve));
    const partition = { prefetch: 0, run: () => new Promise<never>(() => {}), close: () => ended };
    const model = externalModel(() => opened.then(() => ({ partitions: [partition] })));
    const serving = createServing({ name: 'embedder', model });
    const expectState = (state: string) =>
      expect(serving.health()).toMatchObject({
        state,
        isReady: false,
        isLive: true,
        reason: `it is ${state}`,
      });

    expectState('stopped');
    const starting = start(serving);
    expectState('starting');
    open();
    await starting;
    const closing = serving.close();
    expectState('closing');
    end();
    await closing;
    expectState('closed');
  });

  it.each([
    {
      partitions: [up, restarting],
      isReady: true,
      isLive: true,
      reason: 'Partition 1 is being restarted',
    },
    { partitions: [up, hung], isReady: true, isLive: true, reason: hung.reason },
    { partitions: [restarting], isReady: false, isLive: true, reason: restarting.reason },
    {
      partitions: [lost, restarting],
      isReady: false,
      isLive: true,
      reason: `${lost.reason}; ${restarting.reason}`,
    },
    {
      partitions: [lost, hung],
      isReady: false,
      isLive: true,
      reason: `${lost.reason}; ${hung.reason}`,
    },
    {
      partitions: [hung, hung],
      isReady: false,
      isLive: false,
      reason: `${hung.reason}; ${hung.reason}`,
    },
  ])(
    '[9.2] [5.6] Health reports the state of the partitions: $reason',
    async ({ partitions, ...expected }) => {
      const serving = await start({ name: 'embedder', model: modelOf(...partitions) });

      expect(serving.health()).toMatchObject(expected);
    },
  );

  it('[9.2] A handle without health of its own counts as ready', async () => {
    @Module({
      imports: [ServingModule.forRoot({ servings: [{ name: 'fake', model: modelOf(up) }] })],
    })
    class Application {}
    const application = await Test.createTestingModule({ imports: [Application] })
      .overrideProvider(getServingToken('fake'))
      .useValue({ batchedRun: async () => 'a' })
      .compile();

    expect(application.get(ServingService).health()).toEqual([
      {
        serving: 'fake',
        state: 'ready',
        isReady: true,
        isLive: true,
        queued: 0,
        partitions: [],
      },
    ]);
    await application.close();
  });
});
