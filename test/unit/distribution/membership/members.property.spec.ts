import { expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import * as fc from 'fast-check';
import { Members } from '../../../../lib/extensions/distribution/membership/members.js';
import type { NodeInfo } from '../../../../lib/extensions/distribution/membership/node-info.js';
import { nodeInfo, servingStatus } from '../../../fixtures/cluster/nodes.js';

const options = { suspectAfter: 2000, downAfter: 3000, maxNodes: 3 };

const status = fc
  .record({
    name: fc.constantFrom('m', 'n'),
    weight: fc.constantFrom(0, 0.5, 1),
    partitions: fc.constantFrom(1, 1, 2),
    isReady: fc.constantFrom(true, true, true, false),
    queued: fc.nat({ max: 3 }),
  })
  .map(servingStatus);

const beat = fc
  .record({
    id: fc.constantFrom('a', 'b', 'c', 'd'),
    epoch: fc.integer({ min: 1, max: 3 }),
    outages: fc.constantFrom(0, 0, 0, 1),
    seq: fc.integer({ min: 1, max: 20 }),
    state: fc.constantFrom('up' as const, 'up' as const, 'draining' as const),
    servings: fc.uniqueArray(status, { maxLength: 2, selector: ({ name }) => name }),
    misplaced: fc.constantFrom(...Array.from({ length: 9 }, () => undefined), 'a-1'),
  })
  .map(({ misplaced, ...rest }) =>
    nodeInfo({ ...rest, ...(misplaced !== undefined && { address: misplaced }) }),
  );

const anything = fc.oneof(
  { weight: 6, arbitrary: fc.record({ what: fc.constant('receive' as const), info: beat }) },
  {
    weight: 6,
    arbitrary: fc.record({
      what: fc.constant('check' as const),
      after: fc.constantFrom(0, 300, 700, 1000, 2000, 2001),
    }),
  },
  fc.record({ what: fc.constant('gone' as const), info: beat }),
  fc.record({ what: fc.constant('freeze' as const), isFrozen: fc.boolean() }),
);

type Happening = typeof anything extends fc.Arbitrary<infer One> ? One : never;

it('[11] Members equal a model built from all heartbeats, report each change, and rebuild nothing without one', () => {
  const silent = (['warn', 'error'] as const).map((level) =>
    jest.spyOn(Logger.prototype, level).mockReturnValue(),
  );
  fc.assert(
    fc.property(fc.array(anything, { maxLength: 60 }), (happenings) => {
      const history = new History();
      for (const one of happenings) {
        history.play(one);
      }
    }),
    { numRuns: 500 },
  );
  silent.forEach((each) => each.mockRestore());
});

const byAddress = (a: { address: string }, b: { address: string }): number =>
  a.address < b.address ? -1 : 1;

/** One incarnation of a node and the begin of its silence. */
interface LastBeat {
  info: NodeInfo;
  since: number;
  isSuspect: boolean;
}

/** Plays the events and compares them with a list that is searched completely each time. */
class History {
  private readonly members = new Members(options);
  private list: LastBeat[] = [];
  private now = 0;
  private checkedAt: number | undefined;
  private isFrozen = false;
  /** The nodes that should be known after all events. */
  private readonly announced = new Set<string>();
  private changed = 0;

  constructor() {
    this.members.changes$.subscribe(({ type, address, info }) => {
      expect(this.announced.has(address)).toBe(type !== 'joined');
      expect(info.address).toBe(address);
      this.changed++;
      if (type === 'left') {
        this.announced.delete(address);
      } else {
        this.announced.add(address);
      }
    });
  }

  play(happening: Happening): void {
    const candidates = ['m', 'n'].map((name) => this.members.candidates(name));
    const { changed } = this;
    if (happening.what === 'receive') {
      this.members.receive(happening.info, this.now);
      this.receive(happening.info);
    } else if (happening.what === 'gone') {
      this.members.disconnect(happening.info.address);
      this.list = this.list.filter(({ info }) => info.address !== happening.info.address);
    } else if (happening.what === 'freeze') {
      this.members.freeze(happening.isFrozen, this.now);
      this.freeze(happening.isFrozen);
    } else {
      this.now += happening.after;
      this.members.checkSilence(this.now);
      this.check();
    }
    if (changed === this.changed) {
      expect(
        ['m', 'n'].map((name) => this.members.candidates(name) === candidates.shift()),
      ).toEqual([true, true]);
    }
    this.compare();
  }

  private receive(info: NodeInfo): void {
    const former = this.list.find((one) => one.info.id === info.id);
    if (this.list.some((one) => one !== former && one.info.address === info.address)) {
      return;
    }
    if (!former && this.list.length >= options.maxNodes) {
      return;
    }
    const latest = { info, since: this.now, isSuspect: false };
    const isSame = former?.info.epoch === info.epoch && former.info.address === info.address;
    if (
      !former ||
      former.info.epoch < info.epoch ||
      (isSame && former.info.outages < info.outages)
    ) {
      this.list = [...this.list.filter((one) => one !== former), latest];
    } else if (isSame && former.info.outages === info.outages && former.info.seq < info.seq) {
      Object.assign(former, latest);
    }
  }

  private freeze(isFrozen: boolean): void {
    if (!isFrozen && this.isFrozen) {
      this.list.forEach((one) => Object.assign(one, { since: this.now, isSuspect: true }));
    }
    this.isFrozen = isFrozen;
  }

  private check(): void {
    const sinceCheck = this.now - (this.checkedAt ?? this.now);
    this.checkedAt = this.now;
    if (this.isFrozen) {
      return;
    }
    if (sinceCheck > options.suspectAfter) {
      this.list.forEach((one) => Object.assign(one, { since: this.now, isSuspect: false }));
    }
    this.list = this.list.filter(({ since }) => this.now - since < options.downAfter);
    this.list.forEach((one) => (one.isSuspect ||= this.now - one.since >= options.suspectAfter));
  }

  private compare(): void {
    const { members, list } = this;
    const expected = list
      .map(({ info, since, isSuspect }) => ({ address: info.address, info, since, isSuspect }))
      .toSorted(byAddress);
    const known = members.all.map(({ info, lastSeenAt, isSuspect }) => ({
      address: info.address,
      info,
      since: lastSeenAt,
      isSuspect,
    }));
    expect(known.toSorted(byAddress)).toEqual(expected);
    expect([...this.announced].toSorted()).toEqual(expected.map(({ address }) => address));
    expect(expected.map(({ address }) => members.get(address)?.info)).toEqual(
      expected.map(({ info }) => info),
    );

    for (const name of ['m', 'n']) {
      const picked = list
        .filter(({ info, isSuspect }) => info.state === 'up' && !isSuspect)
        .flatMap(({ info: { id, address, servings } }) =>
          servings
            .filter((one) => one.name === name && one.isReady && one.weight > 0)
            .map((one) => ({ id, address, share: one.weight * one.partitions, status: one })),
        );
      const candidates = members
        .candidates(name)
        .list.map(({ id, address, share, status: now }) => ({ id, address, share, status: now }));
      expect(candidates.toSorted(byAddress)).toEqual(picked.toSorted(byAddress));
    }
  }
}
