import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { BatchScript, recordBatches, settle, VirtualTime } from 'nestjs-serving/testing';

describe('VirtualTime', () => {
  let time: VirtualTime;

  beforeEach(async () => {
    time = await VirtualTime.install();
  });

  afterEach(() => time.restore());

  it('Time passes for a window only when the test advances it', async () => {
    const script = new BatchScript<string>();
    const serving = script.createServing({ name: 'waiting', batchTimeout: 50 });
    await serving.start();

    const replies = Promise.all(['a', 'b'].map((row) => serving.batchedRun(row)));
    await time.advance(49);
    expect(script.batches).toEqual([]);
    await time.advance(1);
    script.release((rows) => rows);

    expect(await replies).toEqual(['a', 'b']);
    await serving.close();
    expect(time.timers).toBe(0);
  });

  it('Batches, clocks and dates measure virtual time', async () => {
    const script = new BatchScript<string>();
    const serving = script.createServing({ name: 'measured', batchTimeout: 50 });
    await serving.start();
    const batches = recordBatches(serving);
    const began = [Date.now(), performance.now()] as const;

    const reply = serving.batchedRun('a');
    await time.advance(70);
    script.release((rows) => rows);
    await reply;
    await settle();

    expect(batches).toEqual([
      expect.objectContaining({
        serving: 'measured',
        rows: 1,
        reason: 'timeout',
        wait: 50,
        runTime: 20,
      }),
    ]);
    expect([Date.now() - began[0], performance.now() - began[1]]).toEqual([70, 70]);
    await serving.close();
  });

  it('advanceToNext() goes from timer to timer', async () => {
    const rung: string[] = [];
    setTimeout(() => rung.push('late'), 1000);
    setTimeout(() => {
      rung.push('early');
      setTimeout(() => rung.push('last'), 1000);
    }, 10);
    setTimeout(() => rung.push('as early'), 10);

    await time.advanceToNext();
    expect(rung).toEqual(['early', 'as early']);
    await time.runAll();

    expect(rung).toEqual(['early', 'as early', 'late', 'last']);
    expect(time.timers).toBe(0);
  });

  it('runAll() ends with an error where an interval is pending', async () => {
    const interval = setInterval(() => {}, 10);

    await expect(time.runAll()).rejects.toThrow(
      'Timers are pending after 10000 have fired; clear intervals first, or use advance',
    );
    clearInterval(interval);
    await time.runAll();
  });

  it.each([NaN, -5, Infinity, undefined])('advance() refuses %s', async (milliseconds) => {
    await expect(time.advance(milliseconds!)).rejects.toThrow(
      `Virtual time cannot advance by ${milliseconds}; give milliseconds, from 0 on`,
    );
  });

  it('Virtual time begins at the real date', async () => {
    time.restore();
    const real = Date.now();
    time = await VirtualTime.install();

    expect(Date.now()).toBeGreaterThanOrEqual(real);
  });

  it('Virtual time ends with the scope of its variable, as with restore()', async () => {
    const faked = setTimeout;
    time[Symbol.dispose]();

    expect(setTimeout).not.toBe(faked);
    await new Promise((resolve) => setTimeout(resolve, 1));
  });
});

it('settle() works with the fake timers of Jest as with VirtualTime', async () => {
  jest.useFakeTimers({ doNotFake: ['setImmediate', 'nextTick', 'queueMicrotask'] });
  const script = new BatchScript<string>();
  const serving = script.createServing({ name: 'waiting', batchTimeout: 50 });
  await serving.start();

  const reply = serving.batchedRun('a');
  await settle();
  await jest.advanceTimersByTimeAsync(49);
  await settle();
  expect(script.batches).toEqual([]);
  await jest.advanceTimersByTimeAsync(1);
  await settle();
  script.release((rows) => rows);

  expect(await reply).toBe('a');
  await serving.close();
  jest.useRealTimers();
});
