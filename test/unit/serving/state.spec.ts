import { describe, expect, it } from '@jest/globals';
import { createServing, type ServingHandler } from 'nestjs-serving';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const echo = () => (rows: unknown[]) => rows;

describe('The state of a serving', () => {
  useVirtualTime();

  it('[9.2] The state goes from stopped through starting, ready and closing to closed', async () => {
    const held = new HeldFunction();
    let load!: () => void;
    const loaded = new Promise<void>((resolve) => (load = resolve));
    const serving = createServing({
      name: 'held',
      model: { useFactory: () => loaded.then(held.useFactory) },
    });
    expect(serving.state).toBe('stopped');

    const started = serving.start();
    await turn();
    expect(serving.state).toBe('starting');
    load();
    await started;
    expect(serving.state).toBe('ready');

    const reply = serving.batchedRun('a');
    await turn();
    const closed = serving.close();
    expect(serving.state).toBe('closing');
    await turn();
    expect(serving.state).toBe('closing');
    held.next().finish(['A']);
    await Promise.all([reply, closed]);
    expect(serving.state).toBe('closed');
  });

  it('[9.2] [2.4] A serving is not ready before its warm-up has run', async () => {
    const held = new HeldFunction();
    const serving = createServing({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 1,
      warmUp: ['a'],
    });

    const started = serving.start();
    await turn();
    expect([serving.state, held.rows]).toEqual(['starting', [['a']]]);
    held.next().finish(['A']);
    await started;

    expect(serving.state).toBe('ready');
    await serving.close();
  });

  it('[9.2] [9.1] A serving whose start failed is stopped and can be started again', async () => {
    let attempts = 0;
    const useFactory = () => (attempts++ === 0 ? Promise.reject(new Error('no memory')) : echo());
    const serving = createServing({ name: 'late', model: { useFactory } });

    const starts = [serving.start(), serving.start()];
    await Promise.all(
      starts.map((start) =>
        expect(start).rejects.toThrow('Serving "late" could not start: no memory'),
      ),
    );
    expect([serving.state, attempts]).toEqual(['stopped', 1]);

    await serving.start();
    expect([serving.state, await serving.batchedRun('a')]).toEqual(['ready', 'a']);
    await serving.close();
  });

  it('[9.2] [1.2] A class whose init failed is stopped and initialised again by the next start', async () => {
    let attempts = 0;
    class Late implements ServingHandler {
      init(): Promise<void> {
        return attempts++ === 0 ? Promise.reject(new Error('no weights')) : Promise.resolve();
      }

      handleBatch(): { output: string[] } {
        return { output: ['A'] };
      }
    }
    const serving = createServing({ name: 'late', model: { useClass: Late } });

    await expect(serving.start()).rejects.toThrow('no weights');
    expect(serving.state).toBe('stopped');
    await serving.start();

    expect(await serving.batchedRun('a')).toBe('A');
    await serving.close();
  });

  it('[9.2] A serving that only runs inline is stopped', async () => {
    const serving = createServing({ name: 'echo', model: { useFactory: echo } });

    await serving.run('a');

    expect(serving.state).toBe('stopped');
    await serving.close();
    expect(serving.state).toBe('closed');
  });

  it("[9.2] [9.3] The state is closing from the begin of the application's shutdown, while calls are still accepted", async () => {
    const serving = createServing({
      name: 'echo',
      model: { useFactory: echo },
      batchTimeout: 10_000,
    });
    await serving.start();

    serving.beforeApplicationShutdown();

    expect([serving.state, await serving.batchedRun('a')]).toEqual(['closing', 'a']);
    await serving.onApplicationShutdown();
    expect(serving.state).toBe('closed');
  });
});
