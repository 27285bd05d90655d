import { afterEach, describe, expect, it } from '@jest/globals';
import type { ServingDefinition } from 'nestjs-serving';
import { diag, type DiagLogger, DiagLogLevel, metrics, trace } from '@opentelemetry/api';
import { BasicTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { observeWithOpenTelemetry } from 'nestjs-serving/opentelemetry';
import { useTelemetry } from '../../fixtures/serving/telemetry.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const none = (): void => {};
const echo: ServingDefinition<string> = {
  name: 'echo',
  model: { useFactory: () => (rows: string[]) => rows },
};

describe('observation', () => {
  const telemetry = useTelemetry();
  const start = useServings();

  afterEach(() => {
    diag.disable();
    trace.disable();
    metrics.disable();
  });

  it('[12.1] [12.3] The global providers are used when no others are named', async () => {
    trace.setGlobalTracerProvider(telemetry().tracerProvider);
    metrics.setGlobalMeterProvider(telemetry().meterProvider);
    const serving = await start(echo);
    observeWithOpenTelemetry(serving);
    await serving.batchedRun('a');
    expect(telemetry().named('batchedRun echo')).toHaveLength(1);
    expect([...(await telemetry().measured()).keys()]).toContain('serving.call.duration');
  });

  it('[12.1] A global tracer that is registered later is used', async () => {
    const serving = await start(echo);
    observeWithOpenTelemetry(serving);
    trace.setGlobalTracerProvider(telemetry().tracerProvider);
    await serving.batchedRun('a');
    expect(telemetry().named('batchedRun echo')).toHaveLength(1);
  });

  it('[12.1] Observation ends with the serving', async () => {
    const serving = await start(echo);
    const subscription = observeWithOpenTelemetry(serving, telemetry());
    const last = serving.batchedRun('a');
    await serving.close();
    expect(await last).toBe('a');
    expect(telemetry().named('batchedRun echo')).toHaveLength(1);
    expect(subscription.closed).toBe(true);
    expect((await telemetry().measured()).has('serving.queue.depth')).toBe(false);
  });

  it('[12.1] Observation that has ended costs nothing', async () => {
    const serving = await start(echo);
    observeWithOpenTelemetry(serving, telemetry()).unsubscribe();
    await serving.batchedRun('a');
    const calls: number[] = [];
    serving.eventsOf('call:start').subscribe(({ call }) => calls.push(call));
    await serving.batchedRun('b');
    expect(calls).toEqual([1]);
  });

  it.each(['onStart', 'onEnd'] as const)(
    '[12.1] A span processor that throws in %s breaks no call and no metric',
    async (hook) => {
      const errors = recordErrors();
      const broken = {
        onStart() {},
        onEnd() {},
        [hook]() {
          throw new Error('no room for spans');
        },
        forceFlush: () => Promise.resolve(),
        shutdown: () => Promise.resolve(),
      };
      const serving = await start(echo);
      const tracerProvider = new BasicTracerProvider({ spanProcessors: [broken] });
      observeWithOpenTelemetry(serving, {
        tracerProvider,
        meterProvider: telemetry().meterProvider,
      });
      expect(await Promise.all([serving.batchedRun('a'), serving.batchedRun('b')])).toEqual([
        'a',
        'b',
      ]);
      expect(errors.length).toBeGreaterThan(0);
      expect(errors[0]).toEqual([
        'nestjs-serving: an event could not be recorded',
        new Error('no room for spans'),
      ]);
      const { points } = (await telemetry().measured()).get('serving.call.duration')!;
      expect(points).toMatchObject([{ value: { count: 2 } }]);
    },
  );

  it('[12.1] An exporter that fails breaks no call', async () => {
    const errors = recordErrors();
    const exporter = {
      export: () => {
        throw new Error('the collector is away');
      },
      shutdown: () => Promise.resolve(),
    };
    const serving = await start(echo);
    const tracerProvider = new BasicTracerProvider({
      spanProcessors: [new SimpleSpanProcessor(exporter)],
    });
    observeWithOpenTelemetry(serving, { tracerProvider, meterProvider: telemetry().meterProvider });
    expect(await serving.batchedRun('a')).toBe('a');
    await tracerProvider.forceFlush().catch(() => {});
    expect(JSON.stringify(errors)).toContain('the collector is away');
  });
});

/** The errors that OpenTelemetry reports from now on. */
function recordErrors(): unknown[][] {
  const errors: unknown[][] = [];
  const logger: DiagLogger = {
    error: (...args) => errors.push(args),
    warn: none,
    info: none,
    debug: none,
    verbose: none,
  };
  diag.setLogger(logger, { logLevel: DiagLogLevel.ERROR, suppressOverrideMessage: true });
  return errors;
}
