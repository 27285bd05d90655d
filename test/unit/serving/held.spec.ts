import { describe, expect, it } from '@jest/globals';
import {
  InvalidServingError,
  type LocalServing,
  ServingClosedError,
  ServingUnavailableError,
  UnknownVersionError,
} from 'nestjs-serving';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { LabelledVersions } from '../../fixtures/serving/labelled-versions.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

describe('A serving that is held by hand', () => {
  const start = useServings();
  useVirtualTime();
  const begin = async (
    options: Partial<Parameters<LabelledVersions['serving']>[0]> = {},
  ): Promise<{ versions: LabelledVersions; serving: LocalServing<unknown, string> }> => {
    const versions = new LabelledVersions();
    const serving = versions.serving({ name: 'net', ...options });
    await start(serving);
    return { versions, serving };
  };

  it('[20.7] While it is paused rows wait, and they run once it is resumed', async () => {
    const { versions, serving } = await begin();
    serving.pause();
    const calls = ['a', 'b'].map((row) => serving.batchedRun(row));
    await later(60_000);

    expect(serving.held).toBe('paused');
    expect(serving.queued).toBe(2);
    expect(versions.batches).toEqual([]);
    expect(serving.health()).toMatchObject({
      isReady: true,
      reason: 'it was paused by hand',
    });
    serving.resume();
    expect(await Promise.all(calls)).toEqual(['1:a', '1:b']);
    expect(versions.batches).toEqual([['1:a', '1:b']]);
    expect(serving.held).toBeUndefined();
    expect(serving.health().reason).toBeUndefined();
  });

  it('[20.7] A batch that runs when it is paused ends, and no other begins', async () => {
    const { versions, serving } = await begin({ batchSize: 1 });
    versions.hold('batch 1');
    const first = serving.batchedRun('a');
    await turn();
    serving.pause();
    const second = serving.batchedRun('b');
    versions.release('batch 1');

    expect(await first).toBe('1:a');
    await later(1000);
    expect(versions.batches).toHaveLength(1);
    serving.resume();
    expect(await second).toBe('1:b');
  });

  it('[20.7] The limit of the queue, timeouts and signals hold while it is paused', async () => {
    const { serving } = await begin({ batchSize: 2, queue: { maxRows: 2 } });
    serving.pause();
    const left = new AbortController();
    const late = failureOf(serving.batchedRun('a', { timeout: 50 }));
    const gone = failureOf(serving.batchedRun('b', { signal: left.signal }));
    await turn();

    expect(await failureOf(serving.batchedRun('c'))).toMatchObject({ code: 'SERVING_OVERLOADED' });
    left.abort(new Error('left'));
    await later(50);
    expect(await gone).toMatchObject({ message: 'left' });
    expect(await late).toMatchObject({ code: 'SERVING_DEADLINE_EXCEEDED' });
    expect(serving.queued).toBe(0);
  });

  it('[20.7] Calls of run() wait, too, also those that load their session while it is paused', async () => {
    const { serving } = await begin();
    serving.pause();
    const call = serving.run('a');
    await later(1000);
    expect(serving.queued).toBe(1);

    serving.resume();
    expect(await call).toBe('1:a');
  });

  it('[20.7] A version that is loaded while it is paused takes no batch before it is resumed', async () => {
    const { versions, serving } = await begin();
    serving.pause();
    await serving.reload();
    const call = serving.batchedRun('a');
    await later(1000);
    expect(versions.batches).toEqual([]);

    serving.resume();
    expect(await call).toBe('2:a');
  });

  it('[20.7] Shutdown answers the rows that wait since a pause', async () => {
    const { serving } = await begin();
    serving.pause();
    const call = serving.batchedRun('a');
    await turn();

    const closed = serving.close();
    expect(await call).toBe('1:a');
    await closed;
    expect(() => serving.pause()).toThrow(ServingClosedError);
    expect(() => serving.resume()).toThrow(ServingClosedError);
  });

  it('[20.8] While it is drained new calls fail and it is not ready; rows that it has finish', async () => {
    const { versions, serving } = await begin({ batchSize: 1 });
    versions.hold('batch 1');
    const before = ['a', 'b'].map((row) => serving.batchedRun(row));
    await turn();
    serving.drain();

    const refused = [
      await failureOf(serving.batchedRun('c')),
      await failureOf(serving.run('c')),
      await failureOf(serving.batchedRun('c', { version: '1' })),
      await failureOf(serving.stream('c')[Symbol.asyncIterator]().next()),
    ];
    for (const error of refused) {
      expect(error).toBeInstanceOf(ServingUnavailableError);
      expect(error).toMatchObject({
        message: expect.stringContaining('Serving "net" was drained by hand'),
      });
    }
    expect(serving.health()).toMatchObject({
      state: 'ready',
      isReady: false,
      isLive: true,
      reason: 'it was drained by hand',
    });
    expect(serving.counters().failed).toEqual({ SERVING_UNAVAILABLE: 4 });
    versions.release('batch 1');
    expect(await Promise.all(before)).toEqual(['1:a', '1:b']);

    serving.resume();
    expect(serving.health().isReady).toBe(true);
    expect(await serving.batchedRun('d')).toBe('1:d');
  });

  it('[20.8] Draining ends a pause, and pausing ends a drain', async () => {
    const { serving } = await begin();
    serving.pause();
    const call = serving.batchedRun('a');
    await turn();
    serving.drain();
    expect(await call).toBe('1:a');
    expect(serving.held).toBe('drained');

    serving.pause();
    const next = serving.batchedRun('b');
    serving.resume();
    expect(await next).toBe('1:b');
  });

  it('[20.9] A version is promoted and rolled back by its label', async () => {
    const { serving } = await begin();
    await serving.reload({ canary: 0 });
    const roles = () => serving.versions().map(({ version, role }) => `${version} ${role}`);

    await expect(serving.version('1').rollback()).rejects.toThrow(InvalidServingError);
    expect(() => serving.version('9')).toThrow(UnknownVersionError);
    await serving.version('2').promote();
    expect(roles()).toContain('2 active');
    expect(await serving.batchedRun('a')).toBe('2:a');
  });

  it('[20.9] The batching of keys is shown as it was last set', async () => {
    const { serving } = await begin({ batchSize: 8 });
    serving.setBatchSize(5);
    serving.setBatchTimeout(20, 'default');

    expect(serving.keys()).toEqual([{ key: 'default', batchSize: 5, batchTimeout: 20 }]);
  });
});
