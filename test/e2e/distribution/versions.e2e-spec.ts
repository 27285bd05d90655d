import { describe, expect, it } from '@jest/globals';
import {
  getServingToken,
  InvalidServingError,
  type LocalServing,
  Tensor,
  UnknownVersionError,
} from 'nestjs-serving';
import { lastValueFrom } from 'rxjs';
import { until } from '../../fixtures/async/awaited.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { type ClusterApp, useCluster } from '../../fixtures/cluster/use-cluster.js';
import { gainModel, recurrentModel } from '../../fixtures/models/models.js';
import { floats } from '../../fixtures/values/tensors.js';

const x = floats([1, 2], [1, 1]);
const firstOf = (output: unknown): number => Number((output as { y: Tensor }).y.data[0]);

const servingOf = ({ app }: ClusterApp): LocalServing =>
  app.get<LocalServing>(getServingToken('net'), { strict: false });
const gainOf = async (web: ClusterApp, options = {}): Promise<number> =>
  firstOf(await web.servings.batchedRun('net', { x }, options));

describe('Versions over nodes', () => {
  const cluster = useCluster();
  const nodeWith = (gain: number, version: string): Promise<ClusterApp> =>
    cluster.node({ servings: [{ name: 'net', model: gainModel(gain), rollout: { version } }] });

  it('[17.8] A reload on a node loses no call of another node, and later calls run on the new version', async () => {
    const node = await nodeWith(1, '1');
    const web = await cluster.node();
    await web.untilNodes('net');
    const seen: number[] = [];
    const play = { isOver: false };
    const callers = Promise.all(
      Array.from({ length: 6 }, async () => {
        while (!play.isOver) {
          seen.push(await gainOf(web));
        }
      }),
    );

    for (const next of [2, 3]) {
      const goal = seen.length + 20;
      await until(() => seen.length >= goal);
      await servingOf(node).reload({ model: gainModel(next) });
      expect(await gainOf(web)).toBe(next);
    }
    play.isOver = true;
    await callers;

    expect(new Set(seen)).toEqual(new Set([1, 2, 3]));
    expect(servingOf(node).counters()).toMatchObject({ answered: seen.length + 2, failed: {} });
    expect(web.servings.get('net').signature?.inputs).toMatchObject([{ name: 'x' }]);
  });

  it('[17.8] A call for a version goes to a node that has it, by every method', async () => {
    await nodeWith(1, 'a');
    await nodeWith(2, 'b');
    const web = await cluster.node();
    await web.untilNodes('net', 2);

    for (let count = 0; count < 5; count++) {
      for (const [version, expected] of [
        ['a', 1],
        ['b', 2],
      ] as const) {
        expect(await gainOf(web, { version })).toBe(expected);
        expect(firstOf(await web.servings.run('net', { x }, { version }))).toBe(expected);
        const streamed = await lastValueFrom(web.servings.stream('net', { x }, { version }));
        expect(firstOf((streamed as { output: unknown }).output)).toBe(expected);
      }
    }
  });

  it('[17.8] A call for a version that no node has fails with UnknownVersionError', async () => {
    await nodeWith(1, 'a');
    await nodeWith(2, 'b');
    const web = await cluster.node();
    await web.untilNodes('net', 2);

    const failure = await failureOf(gainOf(web, { version: 'c' }));

    expect(failure).toBeInstanceOf(UnknownVersionError);
    expect((failure as Error).message).toContain('has no version "c"');
  });

  it('[17.8] A session of another node opens on the version that it asks for, and stays there', async () => {
    const model = { file: recurrentModel(1, 'batch'), state: { state: 'next' }, fetches: ['next'] };
    const node = await cluster.node({ servings: [{ name: 'net', model }] });
    const web = await cluster.node();
    await web.untilNodes('net');
    const rate = new Tensor('int64', [1n], []);
    const input = { x: floats([1, 3], [1, 1, 1]), rate };
    const session = web.servings.open('net');
    const sum = async (open: typeof session): Promise<number> =>
      Number(((await open.run(input)) as { next: Tensor }).next.data[0]);
    expect(await sum(session)).toBe(1);

    await servingOf(node).reload();
    const other = web.servings.open('net', { version: '2' });

    expect([await sum(session), await sum(other), await sum(session)]).toEqual([2, 1, 3]);
    const [one, two] = servingOf(node).versions();
    expect([one?.counters.answered, two?.counters.answered]).toEqual([3, 1]);
    await Promise.all([session.close(), other.close()]);
    await until(() => servingOf(node).versions().length === 1);
  });

  it('[17.8] A serving of another node is reloaded there', async () => {
    await nodeWith(1, '1');
    const web = await cluster.node();
    await web.untilNodes('net');

    const failure = await failureOf(web.servings.get('net').reload());

    expect(failure).toBeInstanceOf(InvalidServingError);
    expect((failure as Error).message).toContain('reload it on the node that has it');
    expect(web.servings.get('net').versions()).toEqual([]);
  });
});
