import { afterEach, describe, expect, it } from '@jest/globals';
import { Controller, Get, type INestApplication, Param } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { type CallEndEvent, RequestSignal, ServingModule, ServingService } from 'nestjs-serving';
import { BatchScript, overrideServing } from 'nestjs-serving/testing';
import { RawClient } from '../../fixtures/cluster/raw-client.js';
import { until } from '../../fixtures/async/streams.js';

const summary = {
  name: 'summary',
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.slice(0, 10)) },
};

// #region leaving
@Controller('summaries')
export class SummaryController {
  constructor(private readonly servings: ServingService) {}

  @Get(':text')
  read(@Param('text') text: string, @RequestSignal() signal: AbortSignal): Promise<string> {
    // Ends when the client disconnects: the row leaves the queue.
    return this.servings.batchedRun('summary', text, { signal });
  }

  @Get(':text/kept')
  keep(@Param('text') text: string): Promise<string> {
    // This call also runs when the client disconnects.
    return this.servings.batchedRun('summary', text);
  }
}
// #endregion

describe('The manual on requests', () => {
  let app: INestApplication | undefined;

  afterEach(() => app?.close());

  it("[7.3] The manual's requests end with their clients where they have the request's signal", async () => {
    const script = BatchScript.of(summary);
    const imports = [ServingModule.forRoot({ servings: [summary] })];
    const builder = Test.createTestingModule({ imports, controllers: [SummaryController] });
    const testing = await overrideServing(builder, summary).useScript(script).compile();
    app = testing.createNestApplication({ logger: false });
    await app.listen(0, '127.0.0.1');
    const service = app.get(ServingService);
    const ends: CallEndEvent[] = [];
    service.eventsOf('call:end').subscribe((event) => ends.push(event));
    const url = await app.getUrl();
    const first = fetch(`${url}/summaries/first`);
    const running = await script.next();
    const [leaving, gone] = [await RawClient.connect(url), await RawClient.connect(url)];
    leaving.get('/summaries/left');
    gone.get('/summaries/left/kept');
    await until(() => service.get('summary').queued === 2);

    leaving.leave();
    gone.leave();
    await until(() => ends.length === 1);
    expect(ends).toMatchObject([{ stage: 'waiting', error: { code: 'SERVING_CANCELLED' } }]);
    running.finish(['first']);
    const next = await script.next();
    expect(next.rows).toEqual(['left']);
    next.finish(['left']);
    await until(() => ends.length === 3);

    expect(ends.slice(1).map(({ error }) => error)).toEqual([undefined, undefined]);
    expect(await (await first).text()).toBe('first');
  });
});
