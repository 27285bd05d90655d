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

  it('[7.1] refuses on arrival a call that it could not answer in time, with the reason and when to call again', async () => {
    const { serving, script } = await trained();
    const waiting = serving.batchedRun(rowsOf(8));

    const refused = serving.batchedRun('late', { timeout: 450 });

    await expect(refused).rejects.toBeInstanceOf(DeadlineTooShortError);
    await expect(refused).rejects.toMatchObject({
      code: 'SERVING_DEADLINE_TOO_SHORT',
      statusCode: 503,
      retryAfter: 1,
      message: expect.stringMatching(
        /^Serving "loaded" would need about 50\d ms to answer and the call has 4\d\d ms; call again later, or with a longer timeout$/,
      ),
    });
    expect(serving.queueDepths().get('loaded')).toBe(8);
    const inTime = serving.batchedRun('in time', { timeout: 550 });
    script.release(echo);
    expect(await inTime).toBe('in time');
    await waiting;
  });

  it('[7.1] refuses none that it can serve first', async () => {
    const { serving, script } = await trained();
    const waiting = serving.batchedRun(rowsOf(8));

    const urgent = serving.batchedRun('urgent', { timeout: 350, priority: 1 });
    const other = serving.batchedRun('other', { timeout: 450, tenant: 'other' });

    script.release(echo);
    expect(await Promise.all([urgent, other])).toEqual(['urgent', 'other']);
    await waiting;
  });

  it('[7.1] fails open before it knows how long its batches take', async () => {
    const { serving, script } = await busy();
    const waiting = serving.batchedRun(rowsOf(400));

    const reply = serving.batchedRun('hopeful', { timeout: 1 });

    script.release(echo);
    expect(await reply).toBe('hopeful');
    await waiting;
  });

  it('[7.1] refuses none when it is idle, though all that it knows speaks against it', async () => {
    const { serving, script } = await trained();
    script.batches[0]!.finish(echo);
    await turn();

    const reply = serving.batchedRun('quick', { timeout: 1 });
    await turn();
    script.batches[0]!.finish(echo);

    expect(await reply).toBe('quick');
  });

  it('[7.1] refuses streams as well, whose every batch must be answered in time', async () => {
    const { serving, script } = await trained();
    const waiting = serving.batchedRun(rowsOf(8));

    await expect(iterated(serving.stream('late', { timeout: 350 }))).rejects.toBeInstanceOf(
      DeadlineTooShortError,
    );

    script.release(echo);
    await waiting;
  });

  it('[7.1] says of its drain rate when a call may find room', async () => {
    const { serving, script } = await trained({ maxQueue: 100 });
    const waiting = serving.batchedRun(rowsOf(100));

    await expect(serving.batchedRun(rowsOf(90))).rejects.toMatchObject({
      code: 'SERVING_OVERLOADED',
      retryAfter: 3,
    });

    script.release(echo);
    await waiting;
  });

  it('[7.4] runs rows of higher priority first, which may be of a stream', async () => {
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

  it('[7.4] lets waiting make up for priority as `priorityAgeing` says', async () => {
    const { serving, script } = await busy({ priorityAgeing: 50, batchSize: 1 });
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

  it('[7.4] shares itself among tenants, of whom the calls or a function of the serving tell, by weight', async () => {
    const { serving, script } = await busy({
      batchSize: 6,
      tenant: (input) => (typeof input === 'string' ? input[0] : undefined),
      tenantWeights: { b: 2 },
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

  it('[7.4] [7.1] keeps room for others from tenants and from calls of low priority', async () => {
    const { serving, script } = await busy({ maxQueue: 8 });
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
    '[7.4] [8.1] lets a stream of %j not be in its own way, also in a queue that is not much larger than a batch',
    async (options) => {
      const { serving, script } = await busy({ maxQueue: 8 });
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
    { idempotent: 'yes' },
  ])('[1.9] refuses options that cannot be: %j', async (options) => {
    await expect(busy(options as Partial<ServingOptions<string>>)).rejects.toThrow(
      `option "${Object.keys(options)[0]}" is`,
    );
  });

  it('[M9] refuses without a stack trace, which would cost more than the rest of the call', async () => {
    const { serving } = await busy({ maxQueue: 4 });
    const waiting = serving.batchedRun(rowsOf(4));

    const error = await serving
      .batchedRun('one more')
      .catch((refusal: unknown) => refusal as Error);

    expect(error).toBeInstanceOf(OverloadedError);
    expect((error as Error).stack).not.toMatch(/\n\s+at /);
    expect(Error.stackTraceLimit).toBeGreaterThan(0);
    waiting.catch(() => {});
  });

  it('[12.2] tells how far a refused call came', async () => {
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
