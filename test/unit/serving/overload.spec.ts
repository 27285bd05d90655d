import { describe, expect, it } from '@jest/globals';
import { Batch, DeadlineTooShortError, OverloadedError, type ServingOptions } from 'nestjs-serving';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { type Scripted, useScripts } from '../../fixtures/serving/use-scripts.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const rowsOf = (count: number, name = 'row'): Batch =>
  Batch.stack(Array.from({ length: count }, (_, i) => `${name} ${i}`));
const echo = <T>(rows: T): T => rows;

describe('A serving under load', () => {
  useVirtualTime();
  const startServing = useScripts();
  const start = (options: Partial<ServingOptions<string | Batch>>): Promise<Scripted> =>
    startServing({ name: 'loaded', batchSize: 4, ...options });

  /** A serving whose one partition runs a batch. */
  async function busy(
    options: Partial<ServingOptions<string | Batch>> = {},
    started = start(options),
  ): Promise<Scripted> {
    const { serving, script } = await started;
    void serving.batchedRun('first');
    await script.next();
    return { serving, script };
  }

  /** As `busy`, after eight full batches of 100 ms each. */
  async function trained(options: Partial<ServingOptions<string | Batch>> = {}): Promise<Scripted> {
    const { serving, script } = await start(options);
    for (let i = 0; i < 8; i++) {
      void serving.batchedRun(rowsOf(4));
      const batch = await script.next();
      await later(100);
      batch.finish(echo);
      await turn();
    }
    return busy(options, Promise.resolve({ serving, script }));
  }

  it('[7.1] A call that cannot be answered in time is refused on arrival with the reason and the time to retry', async () => {
    const { serving, script } = await trained();
    const waiting = serving.batchedRun(rowsOf(8));

    const refused = serving.batchedRun('late', { timeout: 450 });

    await expect(refused).rejects.toBeInstanceOf(DeadlineTooShortError);
    await expect(refused).rejects.toMatchObject({
      code: 'SERVING_DEADLINE_TOO_SHORT',
      statusCode: 503,
      retryAfter: 1,
      message: expect.stringMatching(
        /^Serving "loaded" would need about \d+ ms to answer and the call has 4\d\d ms; call again later, or with a longer timeout$/,
      ),
    });
    expect(serving.queued).toBe(8);
    const inTime = serving.batchedRun('in time', { timeout: 550 });
    script.release(echo);
    expect(await inTime).toBe('in time');
    await waiting;
  });

  it('[7.1] A call that is late in the queue is accepted when its priority or tenant moves it ahead', async () => {
    const { serving, script } = await trained();
    const waiting = serving.batchedRun(rowsOf(8));

    const urgent = serving.batchedRun('urgent', { timeout: 350, priority: 1 });
    const other = serving.batchedRun('other', { timeout: 450, tenant: 'other' });

    script.release(echo);
    expect(await Promise.all([urgent, other])).toEqual(['urgent', 'other']);
    await waiting;
  });

  it('[7.1] Calls with short deadlines are accepted while batch times are unknown', async () => {
    const { serving, script } = await busy();
    const waiting = serving.batchedRun(rowsOf(400));

    const reply = serving.batchedRun('hopeful', { timeout: 1 });

    script.release(echo);
    expect(await reply).toBe('hopeful');
    await waiting;
  });

  it('[7.1] An idle serving accepts calls with deadlines shorter than the learned batch time', async () => {
    const { serving, script } = await trained();
    script.batches[0]!.finish(echo);
    await turn();

    const reply = serving.batchedRun('quick', { timeout: 1 });
    await turn();
    script.batches[0]!.finish(echo);

    expect(await reply).toBe('quick');
  });

  it('[7.1] A stream that cannot be answered in time is refused too', async () => {
    const { serving, script } = await trained();
    const waiting = serving.batchedRun(rowsOf(8));

    await expect(iterated(serving.stream('late', { timeout: 350 }))).rejects.toBeInstanceOf(
      DeadlineTooShortError,
    );

    script.release(echo);
    await waiting;
  });

  it('[7.1] The time to retry follows from the measured drain rate', async () => {
    const { serving, script } = await trained({ queue: { maxRows: 100 } });
    const waiting = serving.batchedRun(rowsOf(100));

    await expect(serving.batchedRun(rowsOf(90))).rejects.toMatchObject({
      code: 'SERVING_OVERLOADED',
      retryAfter: 3,
    });

    script.release(echo);
    await waiting;
  });

  it('[7.4] Rows of higher priority run first, also those of a stream', async () => {
    const { serving, script } = await busy();
    const calls = [
      serving.batchedRun(rowsOf(4, 'low'), { priority: -1 }),
      serving.batchedRun(rowsOf(3, 'any')),
      iterated(serving.stream(rowsOf(2, 'high'), { priority: 5 })),
    ];
    await turn();

    script.batches[0]!.finish(echo);
    await turn();

    expect(script.rows).toEqual([['high 0', 'high 1', 'any 0', 'any 1']]);
    script.release(echo);
    const [low, any, high] = await Promise.all(calls);
    expect([low, any]).toEqual([
      ['low 0', 'low 1', 'low 2', 'low 3'],
      ['any 0', 'any 1', 'any 2'],
    ]);
    expect(outputsOf(high as never)).toEqual([['high 0', 'high 1']]);
  });

  it('[7.4] Waiting makes up for priority at the rate of the ageing time', async () => {
    const { serving, script } = await busy({ queue: { priorityAgeing: 50 }, batchSize: 1 });
    const order: string[] = [];
    const ask = (row: string, priority?: number): Promise<unknown> =>
      serving.batchedRun(row, { priority }).then((reply) => order.push(reply as string));
    const calls = [ask('old')];
    await later(49);
    calls.push(ask('new', 1));
    await later(2);
    calls.push(ask('newer', 1));

    script.release(echo);
    await Promise.all(calls);

    expect(order).toEqual(['new', 'old', 'newer']);
  });

  it('[7.4] Tenants, named by calls or by a function of the serving, share by weight', async () => {
    const { serving, script } = await busy({
      batchSize: 6,
      queue: {
        tenant: (input) => (typeof input === 'string' ? input[0] : undefined),
        tenantWeights: { b: 2 },
      },
    });
    const calls = Array.from({ length: 12 }, (_, i) => [
      serving.batchedRun(rowsOf(1, 'named'), { tenant: 'named' }),
      serving.batchedRun(`a ${i}`),
      serving.batchedRun(`b ${i}`),
      serving.batchedRun(rowsOf(1, 'nobody')),
    ]).flat();

    const shares: Record<string, number> = {};
    for (let batch = 0; batch < 5; batch++) {
      script.batches[0]!.finish(echo);
      await turn();
      for (const row of script.rows[0]!) {
        const [tenant] = row.split(' ') as [string];
        shares[tenant] = (shares[tenant] ?? 0) + 1;
      }
    }

    expect(shares).toEqual({ named: 6, a: 6, b: 12, nobody: 6 });
    script.release(echo);
    await Promise.all(calls);
  });

  it('[7.4] [7.1] Room in the queue is kept for other tenants and for calls with normal priority', async () => {
    const { serving, script } = await busy({ queue: { maxRows: 8 } });
    const calls = Array.from({ length: 4 }, () => serving.batchedRun('a', { tenant: 'greedy' }));

    await expect(serving.batchedRun('a', { tenant: 'greedy' })).rejects.toThrow(
      'rows of tenant "greedy" in its queue',
    );
    await expect(serving.batchedRun('a', { priority: -1 })).rejects.toThrow(OverloadedError);
    calls.push(serving.batchedRun('a', { tenant: 'modest' }), serving.batchedRun(rowsOf(3)));
    await expect(serving.batchedRun('a')).rejects.toThrow('has 8 of at most 8 rows');

    script.release(echo);
    await Promise.all(calls);
  });

  it.each([{ tenant: 'a' }, { priority: -1 }])(
    '[7.4] [8.1] A stream with %j does not block itself in a queue little larger than a batch',
    async (options) => {
      const { serving, script } = await busy({ queue: { maxRows: 8 } });
      script.release(echo);

      const events = await iterated(serving.stream(rowsOf(100), options));

      expect(outputsOf(events).flat()).toHaveLength(100);
    },
  );

  it.each([
    { priorityAgeing: -1 },
    { tenantWeights: { a: 0 } },
    { tenantWeights: { a: Infinity } },
    { tenantWeights: { a: NaN } },
    { tenantWeights: [1] },
    { tenant: 'a' },
    { cost: 5 },
    { separateOrigins: 'yes' },
  ])('[1.9] Invalid options of the queue are refused: %j', async (queue) => {
    await expect(busy({ queue } as Partial<ServingOptions<string>>)).rejects.toThrow(
      `option "queue.${Object.keys(queue)[0]}" is`,
    );
  });

  it('[M9] A refusal has no stack trace, which would cost more than the rest of the call', async () => {
    const { serving } = await busy({ queue: { maxRows: 4 } });
    const waiting = serving.batchedRun(rowsOf(4));

    const error = await serving
      .batchedRun('one more')
      .catch((refusal: unknown) => refusal as Error);

    expect(error).toBeInstanceOf(OverloadedError);
    expect((error as Error).stack).not.toMatch(/\n\s+at /);
    expect(Error.stackTraceLimit).toBeGreaterThan(0);
    waiting.catch(() => {});
  });

  it('[12.2] A refused call reports the stage that it reached', async () => {
    const { serving, script } = await trained();
    const ends: unknown[] = [];
    serving
      .eventsOf('call:end')
      .subscribe(({ stage, error }) => ends.push([stage, (error as Error | undefined)?.name]));
    const waiting = serving.batchedRun(rowsOf(8));

    await serving.batchedRun('late', { timeout: 350 }).catch(() => {});

    expect(ends).toEqual([['waiting', 'DeadlineTooShortError']]);
    script.release(echo);
    await waiting;
  });
});
