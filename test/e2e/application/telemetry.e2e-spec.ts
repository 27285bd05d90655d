import { afterEach, describe, expect, it } from '@jest/globals';
import {
  type CallHandler,
  Controller,
  ConflictException,
  type DynamicModule,
  type ExecutionContext,
  Get,
  type ModuleMetadata,
  type NestInterceptor,
  Param,
  ParseIntPipe,
  Post,
  Sse,
} from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  context,
  metrics,
  ROOT_CONTEXT,
  SpanStatusCode,
  trace,
  type Tracer,
} from '@opentelemetry/api';
import type { ReadableSpan } from '@opentelemetry/sdk-trace-base';
import { Batch, Batched, ServingModule, ServingService } from 'nestjs-serving';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
import { ServingOpenTelemetryModule } from 'nestjs-serving/opentelemetry';
import { finalize, map, Observable } from 'rxjs';
import { forkChild } from '../../fixtures/partitions/fork-child.js';
import {
  describeOnPlatforms,
  type Listen,
  type Site,
} from '../../fixtures/partitions/platforms.js';
import { type Telemetry, useContexts, useTelemetry } from '../../fixtures/serving/telemetry.js';

/** Returns every row, in steps when streamed. A row 'bad' fails its batch. */
const echo: FunctionServingDefinition<string> = {
  name: 'echo',
  batchSize: 8,
  queue: { maxRows: 100 },
  model: {
    useFactory: () => (rows: string[]) => {
      if (rows.includes('bad')) {
        throw new Error('a bad row');
      }
      return rows;
    },
  },
};

const steps: FunctionServingDefinition<string> = {
  name: 'steps',
  model: {
    useFactory: () =>
      async function* (rows: string[]) {
        yield rows.map((row) => `${row}1`);
        yield rows.map((row) => `${row}2`);
      },
  },
};

@Controller()
class Words {
  constructor(private readonly servings: ServingService) {}

  @Post('echo/:word')
  async echo(@Param('word') word: string) {
    return { word: await this.servings.batchedRun(echo, word) };
  }

  @Post('many/:rows')
  async many(@Param('rows', ParseIntPipe) rows: number) {
    return {
      words: await this.servings.batchedRun(
        'echo',
        Batch.stack(Array.from({ length: rows }, () => 'row')),
      ),
    };
  }

  @Post('shout/:word')
  @Batched({ batchSize: 4 })
  shout(@Param('word') words: string[]) {
    return words.map((word) =>
      word === 'hush' ? new ConflictException('no shouting') : { word: `${word}!` },
    );
  }

  @Sse('steps/:word')
  steps(@Param('word') word: string): Observable<{ data: unknown }> {
    return this.servings.stream(steps, word).pipe(map((event) => ({ data: event.output })));
  }

  @Get('nothing')
  nothing() {
    return {};
  }
}

/** Gives every request a span that is active in its handler, as HTTP instrumentations do. */
class Tracing implements NestInterceptor {
  constructor(private readonly tracer: Tracer) {}

  intercept(execution: ExecutionContext, next: CallHandler): Observable<unknown> {
    const { url } = execution.switchToHttp().getRequest<{ url: string }>();
    return new Observable((subscriber) => {
      const span = this.tracer.startSpan(
        'request',
        { attributes: { 'url.path': url } },
        ROOT_CONTEXT,
      );
      const handle = () => next.handle().pipe(finalize(() => span.end()));
      return context.with(trace.setSpan(ROOT_CONTEXT, span), () => handle().subscribe(subscriber));
    });
  }
}

const providersOf = ({ tracerProvider, meterProvider }: Telemetry) => ({
  tracerProvider,
  meterProvider,
});

const moduleFor = (telemetry: Telemetry): DynamicModule =>
  ServingOpenTelemetryModule.forRoot(providersOf(telemetry));

const words = (telemetry: DynamicModule | typeof ServingOpenTelemetryModule): ModuleMetadata => ({
  imports: [ServingModule.forRoot({ servings: [echo, steps] }), telemetry],
  controllers: [Words],
});

const siteWith = (listen: Listen, telemetry: Telemetry): Promise<Site> =>
  listen(words(moduleFor(telemetry)), {
    configure: (app) =>
      app.useGlobalInterceptors(new Tracing(telemetry.tracerProvider.getTracer('requests'))),
  });

const names = (spans: readonly ReadableSpan[]): string[] => spans.map(({ name }) => name);
const linksOf = ({ links }: ReadableSpan): string[] =>
  links.map((link) => link.context.spanId).toSorted();
const idsOf = (spans: readonly ReadableSpan[]): string[] =>
  spans.map((span) => span.spanContext().spanId).toSorted();

describeOnPlatforms('telemetry', (listen) => {
  const telemetry = useTelemetry();
  useContexts();

  it('[12.1] The call of a request is a child of its span and has a child for each stage', async () => {
    const site = await siteWith(listen, telemetry());
    expect(await site.post('/echo/hello', {})).toMatchObject({
      status: 201,
      body: { word: 'hello' },
    });
    const [request] = telemetry().named('request');
    const calls = telemetry().childrenOf(request!);
    expect(names(calls)).toEqual(['batchedRun echo']);
    const stages = ['preprocess echo', 'queue echo', 'execute echo', 'postprocess echo'];
    expect(names(telemetry().childrenOf(calls[0]!))).toEqual(stages);
    expect(telemetry().named('batch echo').map(linksOf)).toEqual([idsOf(calls)]);
  });

  it('[12.1] Concurrent requests have separate spans and share those of their batches', async () => {
    const site = await siteWith(listen, telemetry());
    const sizes = Array.from({ length: 24 }, (_, i) => (i % 12) + 1);
    await Promise.all(sizes.map((rows) => site.post(`/many/${rows}`, {})));
    const requests = telemetry().named('request');
    const batches = telemetry().named('batch echo');
    expect(requests).toHaveLength(sizes.length);
    for (const request of requests) {
      const [call, ...others] = telemetry().childrenOf(request);
      expect(others).toEqual([]);
      expect(request.attributes['url.path']).toBe(
        `/many/${String(call!.attributes['serving.call.rows'])}`,
      );
      const execution = telemetry()
        .childrenOf(call!)
        .find(({ name }) => name === 'execute echo')!;
      const [id] = idsOf([call!]);
      expect(linksOf(execution)).toEqual(
        idsOf(batches.filter((batch) => linksOf(batch).includes(id!))),
      );
    }
    const rows = batches.map(({ attributes }) => Number(attributes['serving.batch.rows']));
    expect(rows.reduce((sum, each) => sum + each)).toBe(sizes.reduce((sum, each) => sum + each));
    expect(batches.every(({ parentSpanContext }) => parentSpanContext === undefined)).toBe(true);
    expect(batches.some(({ links }) => links.length > 1)).toBe(true);
  });

  it('[12.1] Calls of a @Batched() method have spans', async () => {
    const site = await siteWith(listen, telemetry());
    const replies = await Promise.all(
      ['a', 'hush', 'c'].map((word) => site.post(`/shout/${word}`, {})),
    );
    expect(replies.map(({ status }) => status)).toEqual([201, 409, 201]);
    const calls = telemetry()
      .named('request')
      .flatMap((request) => telemetry().childrenOf(request));
    expect(names(calls)).toEqual(Array.from({ length: 3 }, () => 'batchedRun Words.shout'));
    expect(calls.map(({ attributes }) => attributes['error.type']).filter(Boolean)).toEqual([
      'ConflictException',
    ]);
    const batches = telemetry().named('batch Words.shout');
    expect(batches.flatMap(linksOf).toSorted()).toEqual(idsOf(calls));
    expect(batches.every(({ status }) => status.code === SpanStatusCode.UNSET)).toBe(true);
  });

  it('[12.1] A streamed call is a child of the request that reads it', async () => {
    const site = await siteWith(listen, telemetry());
    const { body } = await site.get('/steps/word');
    expect(body).toContain('word1');
    expect(body).toContain('word2');
    const [request] = telemetry().named('request');
    const [call] = telemetry().childrenOf(request!);
    expect(names([call!, ...telemetry().childrenOf(call!)])).toEqual([
      'stream steps',
      'preprocess steps',
      'queue steps',
      'execute steps',
    ]);
    expect(telemetry().named('batch steps').map(linksOf)).toEqual([idsOf([call!])]);
  });

  it('[12.1] An exception is recorded with its code for the call and for the batch', async () => {
    const site = await siteWith(listen, telemetry());
    expect(await site.post('/echo/bad', {})).toMatchObject({ status: 500 });
    for (const name of ['batchedRun echo', 'batch echo']) {
      const [span] = telemetry().named(name);
      expect(span).toMatchObject({
        status: { code: SpanStatusCode.ERROR },
        attributes: { 'error.type': 'SERVING_BATCH_FAILED' },
        events: [
          {
            name: 'exception',
            attributes: { 'exception.message': expect.stringContaining('a bad row') },
          },
        ],
      });
    }
  });

  it('[12.3] Refused requests are counted by reason, and queues and partitions by serving', async () => {
    const site = await siteWith(listen, telemetry());
    expect(await site.post('/many/101', {})).toMatchObject({ status: 413 });
    expect(await site.post('/echo/a', {})).toMatchObject({ status: 201 });
    const measured = await telemetry().measured();
    expect(measured.get('serving.call.rejections')!.points).toEqual([
      { attributes: { 'serving.name': 'echo', 'error.type': 'SERVING_TOO_LARGE' }, value: 1 },
    ]);
    const up = measured.get('serving.partition.count')!.points.filter(({ value }) => value === 1);
    expect(up.map(({ attributes }) => attributes)).toEqual([
      { 'serving.name': 'echo', 'serving.partition.state': 'up' },
      { 'serving.name': 'steps', 'serving.partition.state': 'up' },
      { 'serving.name': 'Words.shout', 'serving.partition.state': 'up' },
    ]);
    const depths = measured.get('serving.queue.depth')!.points;
    expect(
      new Map(depths.map(({ attributes, value }) => [attributes['serving.name'], value])),
    ).toEqual(
      new Map([
        ['echo', 0],
        ['steps', 0],
        ['Words.shout', 0],
      ]),
    );
  });
});

describeOnPlatforms('telemetry of two applications in one process', (listen) => {
  const telemetry = [useTelemetry(), useTelemetry()];
  useContexts();

  it('[9.4] [12.1] Each application has the spans and metrics of its own servings alone', async () => {
    const [one, two] = await Promise.all(telemetry.map((each) => siteWith(listen, each())));
    await Promise.all([
      one!.post('/echo/a', {}),
      two!.post('/echo/a', {}),
      two!.post('/echo/b', {}),
      one!.post('/shout/a', {}),
    ]);
    const calls = telemetry.map((each) =>
      names(each().spans)
        .filter((name) => name.startsWith('batchedRun'))
        .toSorted(),
    );
    expect(calls).toEqual([
      ['batchedRun Words.shout', 'batchedRun echo'],
      ['batchedRun echo', 'batchedRun echo'],
    ]);
    const counts = telemetry.map(
      async (each) => (await each().measured()).get('serving.call.duration')!.points,
    );
    expect((await Promise.all(counts)).map((points) => points.length)).toEqual([2, 1]);
  });
});

describe('ServingOpenTelemetryModule', () => {
  const telemetry = useTelemetry();

  afterEach(() => {
    trace.disable();
    metrics.disable();
  });

  it('[12.1] [12.3] The module without options uses the global providers', async () => {
    trace.setGlobalTracerProvider(telemetry().tracerProvider);
    metrics.setGlobalMeterProvider(telemetry().meterProvider);
    const app = await Test.createTestingModule(words(ServingOpenTelemetryModule)).compile();
    await app.init();
    await app.get(ServingService).batchedRun('echo', 'a');
    await app.close();
    expect(telemetry().named('batchedRun echo')).toHaveLength(1);
    expect((await telemetry().measured()).get('serving.call.duration')!.points).toHaveLength(1);
  });

  it('[12.1] The module accepts its options from a factory', async () => {
    const module = ServingOpenTelemetryModule.forRootAsync({
      useFactory: () => providersOf(telemetry()),
    });
    const app = await Test.createTestingModule(words(module)).compile();
    await app.init();
    await app.get(ServingService).batchedRun('echo', 'a');
    await app.close();
    expect(telemetry().named('batchedRun echo')).toHaveLength(1);
  });

  it('[12.1] The module observes servings that are not global', async () => {
    const imports = [
      ServingModule.forRoot({ servings: [echo], isGlobal: false }),
      moduleFor(telemetry()),
    ];
    const app = await Test.createTestingModule({ imports }).compile();
    await app.init();
    await app.get(ServingService, { strict: false }).batchedRun('echo', 'a');
    await app.close();
    expect(telemetry().named('batchedRun echo')).toHaveLength(1);
  });

  it('[10.5] Without a ServingModule the application does not boot', async () => {
    const app = await Test.createTestingModule({ imports: [moduleFor(telemetry())] }).compile();
    await expect(app.init()).rejects.toThrow('import ServingModule.forRoot next to it');
  });

  it.each(['before', 'after'])(
    '[12.1] The module imported %s the servings reports the calls that shutdown waits for, and then ends',
    async (order) => {
      const servings = ServingModule.forRoot({ servings: [{ ...echo, batchTimeout: 1_000_000 }] });
      const imports =
        order === 'before'
          ? [moduleFor(telemetry()), servings]
          : [servings, moduleFor(telemetry())];
      const app = await Test.createTestingModule({ imports }).compile();
      await app.init();
      const last = app.get(ServingService).batchedRun('echo', 'a');
      await app.close();
      expect(await last).toBe('a');
      const [call] = telemetry().named('batchedRun echo');
      expect(names(telemetry().childrenOf(call!)).at(-1)).toBe('postprocess echo');
      expect(telemetry().named('batch echo')).toMatchObject([
        { attributes: { 'serving.batch.close_reason': 'drain' } },
      ]);
      expect((await telemetry().measured()).has('serving.queue.depth')).toBe(false);
    },
  );
});

it('[12.2] An error thrown by a listener is an uncaught error of the process and fails no call', async () => {
  const { code, messages } = await forkChild('throwing-listeners');
  const types = ['batch:end', 'batch:start', 'call:end', 'call:end', 'call:start', 'call:start'];
  const thrown = ['channel', 'observable'].flatMap((from) =>
    types.map((type) => `${from} ${type}`),
  );
  const [replies, uncaught] = messages as [string[], string[]];
  expect({ code, replies, uncaught: uncaught.toSorted() }).toEqual({
    code: 0,
    replies: ['a', 'b'],
    uncaught: thrown,
  });
});
