import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { Members } from '../../../../lib/extensions/distribution/membership/members.js';
import type { NodeInfo } from '../../../../lib/extensions/distribution/membership/node-info.js';
import type { ServingStatus } from '../../../../lib/doors/servings.js';
import { nodeInfo, servingStatus } from '../../../fixtures/cluster/nodes.js';

let members: Members;
let changes: string[];

beforeEach(() => {
  ({ members, changes } = watched(4));
});

function watched(maxNodes: number): { members: Members; changes: string[] } {
  const table = new Members({ suspectAfter: 2000, downAfter: 3000, maxNodes });
  const list: string[] = [];
  table.changes$.subscribe(({ type, address }) => list.push(`${address} ${type}`));
  return { members: table, changes: list };
}

/** A heartbeat of a node that serves `m`. */
function beat(id: string, seq: number, now: number, rest: Partial<NodeInfo> = {}): void {
  members.receive(nodeInfo({ id, seq, servings: [servingStatus()], ...rest }), now);
}

/** Checks repeatedly up to a time. */
function checkUntil(now: number, from = now - 1500): void {
  for (let time = from; time < now; time += 500) {
    members.checkSilence(time);
  }
  members.checkSilence(now);
}

const picked = (serving = 'm'): string[] =>
  members.candidates(serving).list.map(({ id, share }) => `${id} ${share}`);
const known = (): string[] => members.all.map(({ info }) => info.address);
const serving = (rest: Partial<ServingStatus>): Partial<NodeInfo> => ({
  servings: [servingStatus(rest)],
});

describe('Members', () => {
  it('[C2] A node of which anything is received stays, and is picked again, without a heartbeat', () => {
    beat('a', 1, 0);
    beat('b', 1, 0);
    checkUntil(2500, 1000);
    expect(picked()).toEqual([]);

    for (let time = 3000; time <= 12_000; time += 500) {
      members.hear('a-1');
      members.hear('nobody');
      members.checkSilence(time - 250);
    }

    expect(known()).toEqual(['a-1']);
    expect(picked()).toEqual(['a 1']);
  });

  it('[C2] After an outage only a heartbeat shows that a node is back', () => {
    beat('a', 1, 0);
    members.freeze(true, 100);
    members.freeze(false, 200);

    members.hear('a-1');
    members.checkSilence(300);
    expect(picked()).toEqual([]);
    beat('a', 2, 400);

    expect(picked()).toEqual(['a 1']);
  });

  it('[11] Nodes with a heartbeat are known, and those that serve are picked', () => {
    beat('a', 1, 0);
    beat('b', 1, 0, {
      servings: [servingStatus({ weight: 0.5, partitions: 3 }), servingStatus({ name: 'n' })],
    });
    beat('c', 1, 0, { role: 'client', servings: [] });

    expect(known()).toEqual(['a-1', 'b-1', 'c-1']);
    expect([picked('m'), picked('n'), picked('other')]).toEqual([['a 1', 'b 1.5'], ['b 1'], []]);
    expect(members.get('b-1')?.info).toMatchObject({ id: 'b', seq: 1 });
    expect(members.get('b-2')).toBeUndefined();
    expect(changes).toEqual(['a-1 joined', 'b-1 joined', 'c-1 joined']);
  });

  it('[11] Each change is reported with the last state of the node', () => {
    const infos: (readonly [string, number])[] = [];
    members.changes$.subscribe(({ type, info }) => infos.push([type, info.seq]));
    beat('a', 1, 0);
    beat('a', 2, 0, serving({ weight: 2 }));
    beat('a', 3, 0, serving({ weight: 2, queued: 5 }));
    members.disconnect('a-1');

    expect(infos).toEqual([
      ['joined', 1],
      ['changed', 2],
      ['left', 3],
    ]);
  });

  it.each([
    ['its weight', serving({ weight: 2 }), ['a 2']],
    ['its partitions', serving({ partitions: 3 }), ['a 3']],
    ['its readiness', serving({ isReady: false }), []],
    ['its idempotence', serving({ idempotent: false }), ['a 1']],
    ['its servings', serving({ name: 'n' }), []],
    ['its servings to none', { servings: [] }, []],
    ['its state to draining', { state: 'draining' as const }, []],
  ])('[11] A node that changes %s is reported', (_, rest, expected) => {
    beat('a', 1, 0);
    const before = members.candidates('m');

    beat('a', 2, 0, rest);

    expect(picked()).toEqual(expected);
    expect(before.list.map(({ id, share }) => `${id} ${share}`)).toEqual(['a 1']);
    expect(changes).toEqual(['a-1 joined', 'a-1 changed']);
    beat('a', 3, 0);
    expect(picked()).toEqual(['a 1']);
    expect(changes).toHaveLength(3);
  });

  it('[11] Heartbeats with nothing but another load, or for other servings, rebuild nothing', () => {
    beat('a', 1, 0);
    const candidates = members.candidates('m');

    beat('a', 2, 0, serving({ activeCalls: 8, queued: 100, batchTime: 12 }));
    beat('b', 1, 0, serving({ name: 'n' }));
    members.disconnect('b-1');

    expect(members.candidates('m')).toBe(candidates);
    expect(candidates.list[0]?.status).toMatchObject({
      activeCalls: 8,
      queued: 100,
      batchTime: 12,
    });
    expect(members.get('a-1')?.info.seq).toBe(2);
    expect(changes).toEqual(['a-1 joined', 'b-1 joined', 'b-1 left']);
  });

  it('[11] Names that no node serves any more leave nothing behind', () => {
    beat('a', 1, 0);
    beat('a', 2, 0, serving({ name: 'n' }));

    expect(picked('m')).toEqual([]);
    expect(members.candidates('m')).toBe(members.candidates('never status'));
  });

  it('[11] Heartbeats that are older than the last or equal to it are ignored and prove nothing', () => {
    beat('a', 5, 0);
    beat('a', 4, 1900, serving({ weight: 9 }));
    beat('a', 5, 1900, serving({ weight: 9 }));
    expect(picked()).toEqual(['a 1']);

    checkUntil(2000);

    expect(picked()).toEqual([]);
  });

  it('[11] A new epoch ends the old incarnation, whose later heartbeats are ignored', () => {
    beat('a', 7, 0);
    beat('a', 1, 10, { epoch: 2 });
    beat('a', 8, 20);

    expect(changes).toEqual(['a-1 joined', 'a-1 left', 'a-2 joined']);
    expect(known()).toEqual(['a-2']);
    expect(members.get('a-1')).toBeUndefined();
    expect(members.candidates('m').list.map(({ address }) => address)).toEqual(['a-2']);
    members.disconnect('a-1');
    expect(known()).toEqual(['a-2']);
  });

  it('[11] The new incarnation is visible when the departure of the old one is reported', () => {
    beat('a', 1, 0);
    const seen: string[][] = [];
    members.changes$.subscribe(({ type }) => type === 'left' && seen.push(picked(), known()));

    beat('a', 1, 10, { epoch: 2 });

    expect(seen).toEqual([['a 1'], ['a-2']]);
  });

  it('[11] A node with the address of another, or a second address in one epoch, is ignored', () => {
    beat('a', 1, 0);
    beat('b', 1, 0, { address: 'a-1', ...serving({ weight: 100 }) });
    beat('a', 2, 0, { address: 'b-1', ...serving({ weight: 100 }) });

    expect([picked(), known()]).toEqual([['a 1'], ['a-1']]);
    expect(changes).toEqual(['a-1 joined']);
  });

  it('[11] A node is not picked after two missed heartbeats and counts as gone after the configured time', () => {
    beat('a', 1, 0);
    beat('b', 1, 0, { role: 'client', servings: [] });
    checkUntil(1999);
    expect(picked()).toEqual(['a 1']);

    members.checkSilence(2000);
    expect([picked(), members.get('a-1')?.isSuspect]).toEqual([[], true]);
    members.checkSilence(2999);
    expect(changes).toEqual(['a-1 joined', 'b-1 joined', 'a-1 changed', 'b-1 changed']);

    members.checkSilence(3000);
    expect(changes.slice(4)).toEqual(['a-1 left', 'b-1 left']);
    expect(known()).toEqual([]);
  });

  it('[11] A silent node is picked again after its next heartbeat', () => {
    beat('a', 1, 0);
    checkUntil(2000);
    beat('a', 2, 2500);
    checkUntil(4499, 2500);

    expect(picked()).toEqual(['a 1']);
    expect(changes).toEqual(['a-1 joined', 'a-1 changed', 'a-1 changed']);
    beat('a', 3, 5000, { state: 'draining' });
    expect(picked()).toEqual([]);
  });

  it('[11] A node that is gone is removed at once and returns with its next heartbeat', () => {
    beat('a', 1, 0);
    members.disconnect('a-1');
    members.disconnect('a-1');
    members.disconnect('stranger');
    expect([picked(), known()]).toEqual([[], []]);

    beat('a', 2, 10);

    expect(picked()).toEqual(['a 1']);
    expect(changes).toEqual(['a-1 joined', 'a-1 left', 'a-1 joined']);
  });

  it('[11] While the broker is offline no node expires; after that each gets fresh time and is picked after a heartbeat', () => {
    beat('a', 1, 0);
    beat('b', 1, 1500);
    checkUntil(2000);
    expect(picked()).toEqual(['b 1']);

    members.freeze(true, 2100);
    checkUntil(60_000, 2500);
    expect([picked(), known()]).toEqual([['b 1'], ['a-1', 'b-1']]);

    members.freeze(false, 60_100);
    members.freeze(false, 60_200);
    expect([picked(), known()]).toEqual([[], ['a-1', 'b-1']]);
    beat('b', 2, 60_500);
    expect(picked()).toEqual(['b 1']);
    checkUntil(63_099, 61_000);
    expect(changes).toEqual([
      'a-1 joined',
      'b-1 joined',
      'a-1 changed',
      'b-1 changed',
      'b-1 changed',
      'b-1 changed',
    ]);
    expect(known()).toEqual(['a-1', 'b-1']);
    members.checkSilence(63_100);
    expect(known()).toEqual(['b-1']);
  });

  it('[11] A node that returns from an outage counts as having left and joined', () => {
    beat('a', 5, 0, { outages: 1 });

    beat('a', 6, 10, { outages: 2 });
    beat('a', 7, 10, { outages: 1, ...serving({ weight: 9 }) });
    beat('a', 6, 10, { outages: 2, ...serving({ weight: 9 }) });

    expect(changes).toEqual(['a-1 joined', 'a-1 left', 'a-1 joined']);
    expect([picked(), known()]).toEqual([['a 1'], ['a-1']]);
    beat('a', 7, 10, { outages: 2, ...serving({ weight: 2 }) });
    expect(picked()).toEqual(['a 2']);
  });

  it('[FU22] The last node that had a serving is kept, with its end and the time when it was last seen', () => {
    beat('a', 1, 0);
    beat('b', 1, 1000);
    beat('a', 2, 2000, { state: 'draining' });
    expect(members.formerOwners.get('m')).toBeUndefined();
    members.disconnect('a-1');
    expect(members.formerOwners.get('m')).toEqual({ id: 'a', hasLeft: true, lastSeenAt: 2000 });
    checkUntil(4000);

    expect(members.formerOwners.get('m')).toEqual({ id: 'b', hasLeft: false, lastSeenAt: 1000 });
    expect(members.formerOwners.get('n')).toBeUndefined();
  });

  it('[11] Nodes join and leave also while expiry is frozen', () => {
    beat('a', 1, 0);
    members.freeze(true, 10);
    beat('b', 1, 20);
    members.disconnect('a-1');

    expect(picked()).toEqual(['b 1']);
  });

  it('[11] A long pause of the checks themselves gives every node fresh time', () => {
    beat('a', 1, 0);
    members.checkSilence(500);
    members.checkSilence(10_000);
    expect(picked()).toEqual(['a 1']);

    checkUntil(12_000);
    expect([picked(), known()]).toEqual([[], ['a-1']]);
    checkUntil(13_000);
    expect(known()).toEqual([]);
  });

  it('[11] Nodes may leave or join while others are notified of a silence', () => {
    beat('a', 1, 0);
    beat('b', 1, 0);
    beat('c', 1, 0);
    members.changes$.subscribe(({ type, address }) => {
      if (type === 'left' && address === 'a-1') {
        members.disconnect('b-1');
        beat('d', 1, 3000);
      }
    });

    checkUntil(3000);

    expect(changes.slice(6)).toEqual(['a-1 left', 'b-1 left', 'd-1 joined', 'c-1 left']);
    expect(known()).toEqual(['d-1']);
  });

  it('[11] Draining nodes are kept and never picked', () => {
    beat('a', 1, 0, { state: 'draining' });

    expect([picked(), known()]).toEqual([[], ['a-1']]);
    expect(changes).toEqual(['a-1 joined']);
    beat('a', 2, 0, { state: 'draining', ...serving({ queued: 3 }) });
    expect(changes).toEqual(['a-1 joined']);
  });
});

describe('Members with one id', () => {
  let error: jest.SpiedFunction<Logger['error']>;

  beforeEach(() => {
    error = jest.spyOn(Logger.prototype, 'error').mockReturnValue();
  });

  afterEach(() => error.mockRestore());

  it('[11] Two living nodes with one id are reported once', () => {
    beat('a', 7, 0);
    beat('a', 1, 1000, { epoch: 2 });
    for (let now = 1500; now < 6000; now += 500) {
      beat('a', now, now, { epoch: 1 });
      beat('a', now, now, { epoch: 2 });
      expect(error).toHaveBeenCalledTimes(now < 4000 ? 0 : 1);
    }

    expect(error.mock.calls).toEqual([
      [
        'Two nodes have the nodeId "a": a-2 and a-1. The latter started first and gets no calls. ' +
          'Give each node a nodeId of its own, or none',
      ],
    ]);
    expect(known()).toEqual(['a-2']);
  });

  it('[11] Two nodes with one id that started at the same time are reported', () => {
    beat('a', 1, 0);
    beat('a', 1, 3000, { address: 'a-other' });

    expect(error).toHaveBeenCalledTimes(1);
  });

  it('[11] A node that replaces, ends or is late is not reported as a duplicate', () => {
    beat('a', 7, 0);
    beat('a', 1, 1000, { epoch: 2 });
    beat('a', 8, 3999);
    beat('a', 9, 4000, { state: 'draining' });
    beat('a', 2, 9000, { epoch: 2 });
    beat('a', 2, 9000, { epoch: 2 });
    beat('a', 1, 10_000, { epoch: 3 });
    beat('a', 3, 10_000, { epoch: 2 });

    expect(error).not.toHaveBeenCalled();
  });
});

describe('Too many members', () => {
  let warn: jest.SpiedFunction<Logger['warn']>;

  beforeEach(() => {
    warn = jest.spyOn(Logger.prototype, 'warn').mockReturnValue();
    ({ members, changes } = watched(2));
  });

  afterEach(() => warn.mockRestore());

  it('[11] Nodes beyond the limit are ignored with one warning, and the restart of a known node is not one more', () => {
    beat('a', 1, 0);
    beat('b', 1, 0);
    expect(warn).not.toHaveBeenCalled();
    beat('c', 1, 0);
    beat('d', 1, 0);
    beat('b', 1, 0, { epoch: 2 });

    expect(known()).toEqual(['a-1', 'b-2']);
    expect(warn.mock.calls).toEqual([
      ['Node "c" (c-1) and further ones are ignored: 2 nodes are the limit'],
    ]);
    members.disconnect('a-1');
    beat('d', 2, 0);
    expect(known()).toEqual(['b-2', 'd-1']);
  });
});
