import { afterEach, describe, expect, it } from '@jest/globals';
import {
  context,
  type HrTime,
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  trace,
} from '@opentelemetry/api';
import type { ReadableSpan } from '@opentelemetry/sdk-trace-base';
import {
  Batch,
  CallCancelledError,
  type LocalServing,
  type ServingDefinition,
  type Tensor,
} from 'nestjs-serving';
import { observeWithOpenTelemetry } from 'nestjs-serving/opentelemetry';
import type { Subscription } from 'rxjs';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { useContexts, useTelemetry } from '../../fixtures/serving/telemetry.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const echo: ServingDefinition<string> = {
  name: 'echo',
  batchSize: 2,
  model: { useFactory: () => (rows: string[]) => rows },
};

const names = (spans: readonly ReadableSpan[]): string[] => spans.map(({ name }) => name);
const idOf = (span: ReadableSpan): string => span.spanContext().spanId;
const linksOf = ({ links }: ReadableSpan): string[] => links.map((link) => link.context.spanId);
const nanoseconds = ([seconds, rest]: HrTime): bigint =>
  BigInt(seconds) * 1_000_000_000n + BigInt(rest);

/** Nanoseconds since 1970. */
const now = (): bigint => BigInt(Date.now()) * 1_000_000n;
/** How far the clock of the system may be set while a test runs, in nanoseconds. */
const CLOCK_STEP = 1_000_000_000n;

describe('spans', () => {
  const telemetry = useTelemetry();
  const start = useServings();
  const subscriptions: Subscription[] = [];
  useContexts();

  afterEach(() => subscriptions.splice(0).forEach((subscription) => subscription.unsubscribe()));

  function observe(serving: LocalServing): Subscription {
    const { tracerProvider, meterProvider } = telemetry();
    const subscription = observeWithOpenTelemetry(serving, { tracerProvider, meterProvider });
    subscriptions.push(subscription);
    return subscription;
  }

  async function started(definition: ServingDefinition): Promise<LocalServing> {
    const serving = await start(definition);
    observe(serving);
    return serving;
  }

  /** Runs the work inside a span of that name. */
  function within<T>(name: string, call: () => Promise<T>): Promise<T> {
    const span = telemetry().tracerProvider.getTracer('caller').startSpan(name, {}, ROOT_CONTEXT);
    return context.with(trace.setSpan(ROOT_CONTEXT, span), call).finally(() => span.end());
  }

  const only = (name: string): ReadableSpan => {
    const spans = telemetry().named(name);
    expect(spans).toHaveLength(1);
    return spans[0]!;
  };

  it("[12.1] The span of a call is a child of its caller's span and the parent of its stages", async () => {
    const serving = await started(echo);
    await within('request', () => serving.batchedRun(Batch.stack(['a', 'b'])));
    const call = only('batchedRun echo');
    expect(names(telemetry().childrenOf(only('request')))).toEqual(['batchedRun echo']);
    expect(names(telemetry().childrenOf(call))).toEqual([
      'preprocess echo',
      'queue echo',
      'execute echo',
      'postprocess echo',
    ]);
    expect(call.kind).toBe(SpanKind.INTERNAL);
    expect(call.status).toEqual({ code: SpanStatusCode.UNSET });
    expect(call.instrumentationScope.name).toBe('nestjs-serving');
    expect(call.attributes).toEqual({
      'serving.name': 'echo',
      'serving.call.mode': 'batched',
      'serving.call.rows': 2,
    });
  });

  it('[12.1] The stages follow one another without a gap from start to end of the call', async () => {
    const serving = await started(echo);
    const before = now();
    await serving.batchedRun('a');
    const after = now();
    const call = only('batchedRun echo');
    const stages = telemetry().childrenOf(call);
    const starts = stages.map(({ startTime }) => nanoseconds(startTime));
    const ends = stages.map(({ endTime }) => nanoseconds(endTime));
    expect([...starts, nanoseconds(call.endTime)]).toEqual([nanoseconds(call.startTime), ...ends]);
    expect(starts[0]).toBeGreaterThanOrEqual(before - CLOCK_STEP);
    expect(ends.at(-1)).toBeLessThanOrEqual(after + CLOCK_STEP);
  });

  it('[12.1] A batch has a trace of its own with links to its calls, whose executions link back to it', async () => {
    const serving = await started(echo);
    await Promise.all(['one', 'two'].map((name) => within(name, () => serving.batchedRun('a'))));
    const batch = only('batch echo');
    const calls = telemetry().named('batchedRun echo');
    const traces = [batch, ...calls].map((span) => span.spanContext().traceId);
    expect(batch.parentSpanContext).toBeUndefined();
    expect(new Set(traces).size).toBe(3);
    expect(linksOf(batch)).toEqual(calls.map(idOf));
    expect(telemetry().named('execute echo').map(linksOf)).toEqual([[idOf(batch)], [idOf(batch)]]);
    expect(telemetry().named('queue echo').flatMap(linksOf)).toEqual([]);
  });

  it('[12.1] A call that joined another is marked and linked to the batch that runs for both', async () => {
    const serving = await started({ ...echo, deduplication: { singleFlight: true } });
    await Promise.all([serving.batchedRun('a'), serving.batchedRun('a')]);
    const calls = telemetry().named('batchedRun echo');
    const batch = only('batch echo');
    expect(linksOf(batch).toSorted()).toEqual(calls.map(idOf).toSorted());
    // prettier-ignore
    expect(telemetry().named('execute echo').map(linksOf)).toEqual([[idOf(batch)], [idOf(batch)]]);
    expect(
      calls.map(({ attributes }) => [
        attributes['serving.call.rows'],
        attributes['serving.call.answered_by'],
      ]),
    ).toEqual([
      [1, undefined],
      [0, 'single-flight'],
    ]);
  });

  it('[12.1] A call that runs in several batches has a link to each', async () => {
    const serving = await started(echo);
    await Promise.all([serving.batchedRun(Batch.stack(['a', 'b', 'c'])), serving.batchedRun('d')]);
    const batches = telemetry().named('batch echo');
    const [long, short] = telemetry()
      .named('batchedRun echo')
      .toSorted(
        (a, b) =>
          Number(b.attributes['serving.call.rows']) - Number(a.attributes['serving.call.rows']),
      );
    expect(batches.map(linksOf)).toEqual([[idOf(long!)], [idOf(long!), idOf(short!)]]);
    const executions = [long!, short!].map((call) =>
      telemetry()
        .childrenOf(call)
        .find(({ name }) => name === 'execute echo')!,
    );
    expect(executions.map(linksOf)).toEqual([batches.map(idOf), [idOf(batches[1]!)]]);
  });

  it('[12.2] The span of a batch has all of its figures', async () => {
    const serving = await started({
      name: 'echo',
      batchSize: [4],
      queue: { separateOrigins: true },
      warmUp: [floats([1, 1], [0])],
      model: { useFactory: () => (tensor: Tensor) => tensor },
    });
    const times: number[] = [];
    serving
      .eventsOf('batch:end')
      .subscribe(({ wait, runTime }) => times.push(wait / 1000, runTime / 1000));
    await Promise.all([
      serving.batchedRun(floats([2, 1], [1, 2])),
      serving.batchedRun(floats([1, 1], [3])),
    ]);
    expect(only('batch echo').attributes).toEqual({
      'serving.name': 'echo',
      'serving.batch.id': 1,
      'serving.batch.key': 'default',
      'serving.batch.origin': 'in-process',
      'serving.batch.rows': 3,
      'serving.batch.capacity': 4,
      'serving.batch.fill': 0.75,
      'serving.batch.close_reason': 'idle',
      'serving.batch.padding': 1,
      'serving.batch.wait': times[0],
      'serving.batch.run_time': times[1],
      'serving.partition.id': 0,
      'serving.queue.depth': 0,
    });
  });

  it('[12.1] The spans of a failed batch and of its calls have the error', async () => {
    const serving = await started({
      ...echo,
      model: {
        useFactory: () => () => {
          throw new TypeError('no such word');
        },
      },
    });
    await Promise.allSettled([serving.batchedRun('a'), serving.batchedRun('b')]);
    const message = 'Serving "echo": a batch of 2 rows failed: no such word';
    for (const span of [only('batch echo'), ...telemetry().named('batchedRun echo')]) {
      expect(span.status).toEqual({ code: SpanStatusCode.ERROR, message });
      expect(span.attributes).toMatchObject({ 'error.type': 'SERVING_BATCH_FAILED' });
      expect(span.events).toMatchObject([
        { name: 'exception', attributes: { 'exception.message': message } },
      ]);
    }
    for (const call of telemetry().named('batchedRun echo')) {
      const stages = telemetry().childrenOf(call);
      expect(names(stages)).toEqual(['preprocess echo', 'queue echo', 'execute echo']);
      expect(stages.map(({ status }) => status.code)).toEqual([0, 0, SpanStatusCode.ERROR]);
      expect(call.events[0]!.time).toEqual(call.endTime);
    }
  });

  it.each([
    ['the code of an error of this package', 'too many', ['SERVING_TOO_LARGE', 'preprocess echo']],
    ['the name of any other error', 'no text', ['TypeError', 'preprocess echo']],
    ['the fallback of OpenTelemetry for other values', 'a word', ['_OTHER', 'preprocess echo']],
  ])(
    '[12.1] A call that fails before its batch has as error.type %s',
    async (_, text, [type, stage]) => {
      const serving = await started({
        ...echo,
        queue: { maxRows: 2 },
        preprocess(input) {
          if (input === 'no text') {
            throw new TypeError('cannot read that');
          }
          if (input === 'a word') {
            // oxlint-disable-next-line no-throw-literal
            throw input;
          }
          return { batch: Batch.stack(['a', 'b', 'c']) };
        },
      });
      await serving.batchedRun(text).catch(() => {});
      const call = only('batchedRun echo');
      const last = telemetry().childrenOf(call).at(-1)!;
      expect(call.attributes['error.type']).toBe(type);
      expect([last.attributes['error.type'], last.name]).toEqual([type, stage]);
      expect(call.status.code).toBe(SpanStatusCode.ERROR);
    },
  );

  it('[12.1] Inline runs and streams have spans', async () => {
    const serving = await started({
      ...echo,
      model: {
        useFactory: () =>
          async function* (rows: string[]) {
            yield rows.map((row) => `${row}1`);
            yield rows.map((row) => `${row}2`);
          },
      },
    });
    await within('one', () => serving.run('a'));
    const outputs = await within('two', async () => {
      const seen: unknown[] = [];
      for await (const event of serving.stream('b')) {
        seen.push((event as { output: unknown }).output);
      }
      return seen;
    });
    expect(outputs).toEqual(['b1', 'b2']);
    expect(names(telemetry().childrenOf(only('one')))).toEqual(['run echo']);
    expect(names(telemetry().childrenOf(only('two')))).toEqual(['stream echo']);
    const stages = ['preprocess echo', 'queue echo', 'execute echo'];
    expect(names(telemetry().childrenOf(only('stream echo')))).toEqual(stages);
    expect(names(telemetry().childrenOf(only('run echo')))).toEqual([
      ...stages,
      'postprocess echo',
    ]);
    expect(telemetry().named('batch echo').map(linksOf)).toEqual([
      [idOf(only('run echo'))],
      [idOf(only('stream echo'))],
    ]);
  });

  it('[12.1] The span of a stream ends when its consumer leaves', async () => {
    const serving = await started({
      ...echo,
      model: {
        useFactory: () =>
          async function* (rows: string[]) {
            for (;;) {
              yield rows;
            }
          },
      },
    });
    for await (const event of serving.stream('a')) {
      expect(event).toMatchObject({ output: 'a' });
      break;
    }
    expect(only('stream echo').status.code).toBe(SpanStatusCode.UNSET);
  });

  it('[12.1] [7.3] The span of a cancelled call is not marked as failed', async () => {
    const serving = await started({ ...echo, batchTimeout: 10_000 });
    const leaving = new AbortController();
    const call = serving.batchedRun('a', leaving);
    leaving.abort(
      new CallCancelledError('The client has closed its connection before it was answered'),
    );

    await expect(call).rejects.toThrow(CallCancelledError);

    const span = only('batchedRun echo');
    expect(span.attributes).toEqual({
      'serving.name': 'echo',
      'serving.call.mode': 'batched',
      'serving.call.rows': 1,
      'serving.call.cancelled': true,
    });
    expect([span, only('queue echo')].map(({ status, events }) => [status.code, events])).toEqual([
      [SpanStatusCode.UNSET, []],
      [SpanStatusCode.UNSET, []],
    ]);
  });

  it('[12.1] A call that is not sampled has no spans', async () => {
    const serving = await start(echo);
    const unsampled = { traceId: '1'.repeat(32), spanId: '2'.repeat(16), traceFlags: 0 };
    observe(serving);
    await Promise.all([
      context.with(trace.setSpanContext(ROOT_CONTEXT, unsampled), () => serving.batchedRun('a')),
      serving.batchedRun('b'),
    ]);
    expect(names(telemetry().spans).toSorted()).toEqual([
      'batch echo',
      'batchedRun echo',
      'execute echo',
      'postprocess echo',
      'preprocess echo',
      'queue echo',
    ]);
    expect(linksOf(only('batch echo'))).toEqual([idOf(only('batchedRun echo'))]);
  });

  it('[12.1] Open spans end with the observation', async () => {
    const held = new HeldFunction();
    const serving = await start({ ...echo, model: { useFactory: held.useFactory } });
    const subscription = observe(serving);
    const call = serving.batchedRun('a');
    while (held.batches.length === 0) {
      await new Promise(setImmediate);
    }
    subscription.unsubscribe();
    expect(names(telemetry().spans)).toEqual(['batch echo', 'batchedRun echo']);
    held.next().finish(['a']);
    expect(await call).toBe('a');
    expect(telemetry().spans).toHaveLength(2);
  });
});
