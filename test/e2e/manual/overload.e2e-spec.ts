import type { INestApplication } from '@nestjs/common';
// #region imports
import { Body, Controller, Headers, Post } from '@nestjs/common';
import { defineServing, ServingService } from 'nestjs-serving';
// #endregion
import { afterEach, describe, expect, it } from '@jest/globals';
import { Test } from '@nestjs/testing';
import {
  createServing,
  DeadlineExceededError,
  OverloadedError,
  ServingModule,
} from 'nestjs-serving';
import { BatchScript, recordBatches } from 'nestjs-serving/testing';

// #region definition
export const embedder = defineServing({
  name: 'embedder',
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.length) },
  timeout: 1000, // Milliseconds, for calls without a timeout of their own.
  queue: {
    maxRows: 2000, // Beyond it a call fails at once with SERVING_OVERLOADED.
    tenantWeights: { gold: 3 }, // All other tenants have weight 1.
  },
  // A batch may run twice: again when its partition is lost, in halves when it fails.
  recovery: { idempotent: true },
});
// #endregion

// #region call
@Controller('embed')
export class EmbedController {
  constructor(private readonly servings: ServingService) {}

  @Post()
  embed(@Body() { text }: { text: string }, @Headers('x-plan') plan: string) {
    return this.servings.batchedRun(embedder, text, {
      timeout: 200, // Milliseconds. A call that cannot make it is refused on arrival.
      priority: 1, // Before calls of priority 0, unless those have waited a second longer.
      tenant: plan, // Tenants share the serving fairly, whatever their number of calls.
    });
  }

  @Post('all')
  embedAll(@Body() { texts }: { texts: string[] }) {
    return Promise.all(
      texts.map((text) =>
        this.servings.batchedRun(embedder, text, { priority: -1, timeout: 60_000 }),
      ),
    );
  }
}
// #endregion

describe('The manual on overload', () => {
  let app: INestApplication | undefined;
  afterEach(() => app?.close());

  it("[7.2] [7.4] The manual's calls have a timeout, a priority and a tenant", async () => {
    const module = {
      imports: [ServingModule.forRoot({ servings: [embedder] })],
      controllers: [EmbedController],
    };
    app = (await Test.createTestingModule(module).compile()).createNestApplication();
    await app.listen(0);
    const post = async (path: string, body: object): Promise<unknown> => {
      const headers = { 'content-type': 'application/json', 'x-plan': 'gold' };
      const response = await fetch(`${await app!.getUrl()}${path}`, {
        method: 'POST',
        headers,
        body: JSON.stringify(body),
      });
      return response.json();
    };

    expect(await post('/embed', { text: 'abc' })).toBe(3);
    expect(await post('/embed/all', { texts: ['a', 'bc'] })).toEqual([1, 2]);
  });

  it('[7.1] [7.2] [7.4] Full queues, passed deadlines and urgent calls behave as the manual describes', async () => {
    const script = new BatchScript<string, number>();
    const serving = script.createServing({ ...embedder, batchSize: 2, queue: { maxRows: 4 } });
    await serving.start();
    const batches = recordBatches(serving);
    const first = serving.batchedRun('first');
    const running = await script.next();

    const late = serving.batchedRun('late', { timeout: 0 });
    const low = ['a', 'b', 'c'].map((text) => serving.batchedRun(text));
    const urgent = serving.batchedRun('urgent', { priority: 1 });

    await expect(late).rejects.toThrow(DeadlineExceededError);
    const refused = serving.batchedRun('d');
    await expect(refused).rejects.toThrow(OverloadedError);
    // No batch has ended yet, so the time to retry is a spread of 1 to 3 seconds.
    await expect(refused).rejects.toMatchObject({ retryAfter: expect.any(Number) });
    running.finish([5]);
    expect((await script.next()).rows).toEqual(['urgent', 'a']);
    script.release((texts) => texts.map(({ length }) => length));
    expect(await Promise.all([first, urgent, ...low])).toEqual([5, 6, 1, 1, 1]);
    expect(batches).toHaveLength(3);
    await serving.close();
  });

  it("[6.4] The manual's faulty row fails alone", async () => {
    // #region isolate
    const serving = createServing({
      name: 'ratios',
      recovery: { idempotent: true },
      // Throws for 0n, and so fails its batch.
      model: {
        useFactory: () => (divisors: bigint[]) => divisors.map((divisor) => 100n / divisor),
      },
    });
    await serving.start();
    const replies = await Promise.allSettled(
      [1n, 0n, 4n].map((divisor) => serving.batchedRun(divisor)),
    );
    // 100n, a BatchFailedError, 25n
    // #endregion
    expect(replies).toMatchObject([
      { value: 100n },
      { reason: { code: 'SERVING_BATCH_FAILED' } },
      { value: 25n },
    ]);
    await serving.close();
  });
});
