import { describe, expect, it, jest } from '@jest/globals';
import { Batch, BatchFailedError, type LocalServing, type ServingEvent } from 'nestjs-serving';
import { failureOf } from '../../../fixtures/async/failure-of.js';
import { later, turn, useVirtualTime } from '../../../fixtures/async/virtual-time.js';
import { LabelledVersions } from '../../../fixtures/serving/labelled-versions.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';

const FREED = 100;

const comparison = (serving: LocalServing<unknown, string>): unknown =>
  serving.versions().find(({ role }) => role === 'shadow')?.comparison;

describe('A shadow', () => {
  const start = useServings();
  useVirtualTime();
  const shadowed = async (
    options: Partial<Parameters<LabelledVersions['serving']>[0]> = {},
  ): Promise<{ versions: LabelledVersions; serving: LocalServing<unknown, string> }> => {
    const versions = new LabelledVersions();
    const serving = versions.serving({
      name: 'net',
      recovery: { idempotent: true, isolateFailures: false },
      ...options,
    });
    await start(serving);
    return { versions, serving };
  };

  it('[17.9] A share of calls runs on the shadow, too; callers get the reply of the active version', async () => {
    const { versions, serving } = await shadowed();
    await serving.reload({ shadow: 0.5 });
    const chance = jest.spyOn(Math, 'random').mockReturnValueOnce(0.4).mockReturnValueOnce(0.6);

    const replies = await Promise.all([serving.batchedRun('a'), serving.batchedRun('b')]);
    chance.mockRestore();
    await turn();

    expect(replies).toEqual(['1:a', '1:b']);
    expect(versions.batches).toEqual([['1:a', '1:b'], ['2:a']]);
    expect(serving.versions()).toMatchObject([
      { version: '1', role: 'active' },
      { version: '2', role: 'shadow', share: 0.5, comparison: { compared: 1, different: 1 } },
    ]);
  });

  it('[17.9] Equal replies count as compared, and not as different', async () => {
    const { serving } = await shadowed({ postprocess: (reply) => String(reply).slice(2) });
    await serving.reload({ shadow: 1 });

    await serving.batchedRun('a');
    await turn();

    expect(comparison(serving)).toEqual({
      compared: 1,
      different: 0,
      differing: 0,
      largestDifference: 0,
      failed: 0,
      dropped: 0,
    });
  });

  it('[17.9] The reply of a call does not wait for its copy', async () => {
    const { versions, serving } = await shadowed();
    await serving.reload({ shadow: 1 });
    versions.hold('batch 2');

    expect(await serving.batchedRun('a')).toBe('1:a');

    versions.release('batch 2');
    await turn();
    expect(comparison(serving)).toMatchObject({ compared: 1 });
  });

  it('[17.9] A failure of the shadow is counted, and no caller sees it', async () => {
    const { versions, serving } = await shadowed();
    await serving.reload({ shadow: 1 });
    versions.fail('batch 2', new Error('bad'));

    expect(await serving.batchedRun('a')).toBe('1:a');
    await turn();

    expect(comparison(serving)).toMatchObject({ compared: 0, failed: 1 });
  });

  it('[17.9] A call that fails itself is not compared', async () => {
    const { versions, serving } = await shadowed();
    await serving.reload({ shadow: 1 });
    versions.fail('batch 1', new Error('bad'));

    expect(await failureOf(serving.batchedRun('a'))).toBeInstanceOf(BatchFailedError);
    await turn();

    expect(comparison(serving)).toMatchObject({ compared: 0, failed: 0, dropped: 1 });
  });

  it('[17.9] Copies are dropped while rows wait, and beyond a number of copies', async () => {
    const { versions, serving } = await shadowed({ batchSize: 1 });
    await serving.reload({ shadow: 1 });
    versions.hold('batch 2');
    for (let call = 0; call < 3; call++) {
      await serving.batchedRun(call);
    }
    // The first copy runs, the second one waits for it, and the third one finds that it waits.
    expect(comparison(serving)).toMatchObject({ dropped: 1 });

    versions.release('batch 2');
    await turn();
    versions.hold('batch 1');
    const calls = ['a', 'b', 'c'].map((row) => serving.batchedRun(row));
    await turn();
    versions.release('batch 1');
    await Promise.all(calls);
    await turn();

    expect(comparison(serving)).toMatchObject({ compared: 3, dropped: 3 });
  });

  it('[17.9] At most 32 copies run at a time', async () => {
    const { versions, serving } = await shadowed({ partitions: 64, batchSize: 1 });
    await serving.reload({ shadow: 1 });
    versions.hold('batch 2');

    for (let call = 0; call < 40; call++) {
      await serving.batchedRun(call);
      await turn();
    }

    expect(comparison(serving)).toMatchObject({ compared: 0, dropped: 8 });
    versions.release('batch 2');
    await turn();
    expect(comparison(serving)).toMatchObject({ compared: 32, dropped: 8 });
  });

  it('[17.9] The copies are no calls of the serving: not in its counters, its queue and its events', async () => {
    const { serving } = await shadowed();
    const events: ServingEvent[] = [];
    serving.events$.subscribe((event) => events.push(event));
    await serving.reload({ shadow: 1 });

    await serving.batchedRun('a');
    await turn();

    expect(comparison(serving)).toMatchObject({ compared: 1 });
    expect(serving.counters()).toMatchObject({ answered: 1, batches: 1, rows: 1 });
    expect(new Set(events.map(({ version }) => version))).toEqual(new Set(['1']));
    expect(events).toHaveLength(4);
  });

  it('[17.9] The copy is of the input as it was when the call was made', async () => {
    const { versions, serving } = await shadowed({
      preprocess: (rows: string[]) => ({ batch: Batch.stack(rows) }),
    });
    await serving.reload({ shadow: 1 });
    const input = ['a'];

    const reply = serving.batchedRun(input);
    input[0] = 'changed';
    await reply;
    await turn();

    expect(versions.batches).toEqual([['1:a'], ['2:a']]);
  });

  it('[17.9] A promoted shadow answers calls, and counts from then on', async () => {
    const { versions, serving } = await shadowed();
    const shadow = await serving.reload({ shadow: 1 });
    versions.hold('batch 2');
    await serving.batchedRun('a');
    const promoted = Promise.all([shadow.promote(), shadow.promote()]);
    await turn();
    expect(await serving.batchedRun('b')).toBe('1:b');
    versions.release('batch 2');

    await promoted;
    expect(await serving.batchedRun('c')).toBe('2:c');
    await later(FREED);

    expect(versions.open).toEqual(['2']);
    expect(serving.versions()).toMatchObject([
      { version: '2', role: 'active', counters: { answered: 1, batches: 1 } },
    ]);
    expect(serving.counters()).toMatchObject({ answered: 3, batches: 3 });
  });

  it('[17.9] A shadow that is rolled back gets no more copies, and is freed', async () => {
    const { versions, serving } = await shadowed();
    const shadow = await serving.reload({ shadow: 1 });

    await shadow.rollback();
    await serving.batchedRun('a');
    await later(FREED);

    expect(versions.batches).toEqual([['1:a']]);
    expect(versions.open).toEqual(['1']);
    await expect(shadow.promote()).rejects.toThrow('has ended');
  });

  it('[17.9] No call can ask for a shadow', async () => {
    const { serving } = await shadowed();
    await serving.reload({ shadow: 1 });

    await expect(serving.batchedRun('a', { version: '2' })).rejects.toThrow('it has "1"');
  });

  it('[17.9] A sequence of inputs, which has one reader, is not copied', async () => {
    const { versions, serving } = await shadowed();
    await serving.reload({ shadow: 1 });

    await serving.batchedRun([Batch.stack(['a'])].values());
    await turn();

    expect(versions.batches).toEqual([['1:a']]);
    expect(comparison(serving)).toMatchObject({ dropped: 1 });
  });

  it('[17.9] A version is a canary or a shadow, and not both', async () => {
    const { versions, serving } = await shadowed();

    await expect(serving.reload({ shadow: 1, canary: 0.5 })).rejects.toThrow(
      'has canary and shadow, and a version has one role; leave one of them out',
    );
    expect(versions.open).toEqual(['1']);
  });

  it.each<[string, Partial<Parameters<LabelledVersions['serving']>[0]>]>([
    ['is not idempotent', { recovery: {} }],
    ['has sessions', { sessions: {} }],
  ])('[17.9] A serving that %s gets no shadow', async (_, options) => {
    const { versions, serving } = await shadowed(options);

    await expect(serving.reload({ shadow: 1 })).rejects.toThrow('gets no shadow');

    expect(versions.open).toEqual(['1']);
  });

  it('[17.9] A serving has one shadow at a time', async () => {
    const { serving } = await shadowed();
    await serving.reload({ shadow: 1 });

    await expect(serving.reload({ shadow: 1 })).rejects.toThrow('it has one already');
  });
});
