import { diag, type MeterProvider, metrics, trace, type TracerProvider } from '@opentelemetry/api';
import { finalize, merge, type Observable, type Subscription } from 'rxjs';
import type { ServingHealth } from '../serving/serving.js';
import type { ServingEvent } from '../events/serving-event.js';
import type { EventOf } from '../events/event-hub.js';
import { SCOPE } from './attributes.js';
import { Measurements } from './measurements.js';
import { Spans } from './spans.js';

/** A `Serving`, or the `ServingService` for all servings of an application. */
export interface ObservedServings {
  /** The events of one type. */
  eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>>;
  /** The health of the serving, or of each serving. */
  health(): ServingHealth | readonly ServingHealth[];
}

/** Options of the observation. */
export interface ServingOpenTelemetryOptions {
  /**
   * Makes the spans. The global provider may be registered later.
   *
   * @default the global provider
   */
  readonly tracerProvider?: TracerProvider;
  /**
   * Makes the metrics. The global provider must exist when the observation begins.
   *
   * @default the global provider
   */
  readonly meterProvider?: MeterProvider;
}

/**
 * Makes OpenTelemetry spans and metrics of the events of servings. The observation ends with the
 * servings or with the subscription; open spans are then ended.
 *
 * An error of a tracer or meter goes to OpenTelemetry's `diag`, and never to a call.
 */
export function observeWithOpenTelemetry(
  source: ObservedServings,
  options: ServingOpenTelemetryOptions = {},
): Subscription {
  const { tracerProvider = trace.getTracerProvider(), meterProvider = metrics.getMeterProvider() } =
    options;
  const spans = new Spans(tracerProvider.getTracer(SCOPE));
  const measurements = new Measurements(meterProvider.getMeter(SCOPE), () =>
    [source.health()].flat(),
  );
  const observers = [spans, measurements];
  return merge(
    source.eventsOf('call:start'),
    source.eventsOf('call:end'),
    source.eventsOf('batch:start'),
    source.eventsOf('batch:end'),
  )
    .pipe(finalize(() => observers.forEach((each) => guarded(() => each.close()))))
    .subscribe((event) => observers.forEach((each) => guarded(() => each.observe(event))));
}

function guarded(work: () => void): void {
  try {
    work();
  } catch (error) {
    diag.error(`${SCOPE}: an event could not be recorded`, error);
  }
}
