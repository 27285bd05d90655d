import { describe, expect, it } from '@jest/globals';
import type { PartitionStatus, ServingState } from 'nestjs-serving';
import { healthOf } from '../../../lib/core/serving/serving.js';

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

const of = (state: ServingState, ...partitions: PartitionStatus[]) =>
  healthOf('embedder', {
    state,
    partitions: () => partitions,
    queued: 7,
  });

describe('The health of a serving', () => {
  it('[9.2] [5.6] Health has the name, the state, the partitions and the number of queued rows', () => {
    expect(of('ready', up)).toEqual({
      serving: 'embedder',
      state: 'ready',
      isReady: true,
      isLive: true,
      queued: 7,
      partitions: [up],
    });
  });

  it.each(['stopped', 'starting', 'closing', 'closed'] as const)(
    '[9.2] A serving that is %s is live and not ready',
    (state) => {
      expect(of(state, up)).toMatchObject({
        isReady: false,
        isLive: true,
        reason: `it is ${state}`,
      });
    },
  );

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
    ({ partitions, ...expected }) => {
      expect(of('ready', ...partitions)).toMatchObject(expected);
    },
  );

  it('[9.2] A handle without health of its own counts as ready', () => {
    expect(healthOf('fake', {})).toEqual({
      serving: 'fake',
      state: 'ready',
      isReady: true,
      isLive: true,
      queued: 0,
      partitions: [],
    });
  });
});
