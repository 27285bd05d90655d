import { diag, type MeterProvider, metrics, trace, type TracerProvider } from '@opentelemetry/api';
import { finalize, merge, type Observable, type Subscription } from 'rxjs';
import {
  InvalidServingError,
  type ServingEvent,
  type ServingHealth,
  ServingService,
} from '../../index.js';
import type { EventOf } from '../../doors/calls.js';
import {
  checkedModule,
  checkOptions,
  isRecord,
  refuseSecond,
  type Rule,
  type Rules,
} from '../../doors/options.js';
import { SCOPE } from './attributes.js';
import { Measurements } from './measurements.js';
import { Spans } from './spans.js';
import {
  ConfigurableModuleBuilder,
  Inject,
  Injectable,
  Module,
  type OnModuleInit,
  Optional,
} from '@nestjs/common';
import { ModuleRef, ModulesContainer } from '@nestjs/core';

/** A `Serving`, or the `ServingService` for all servings of an application. */
export interface ObservedServings {
  /** Events of one type. */
  eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>>;
  /** The health of the serving, or of each. */
  health(): ServingHealth | readonly ServingHealth[];
}

/** Options of {@link observeWithOpenTelemetry}. */
export interface ServingOpenTelemetryOptions {
  /**
   * Creates the spans. The global provider may be registered later.
   *
   * @default the global provider
   */
  readonly tracerProvider?: TracerProvider;
  /**
   * Creates the metrics. The global provider must exist when the observation begins.
   *
   * @default the global provider
   */
  readonly meterProvider?: MeterProvider;
}

/**
 * Creates spans and metrics from servings' events, until the servings or the subscription end. Open
 * spans end then, too. Errors of tracers and meters go to OpenTelemetry's `diag`, never to a call.
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
    source.eventsOf('sequence:step'),
  )
    .pipe(finalize(() => observers.forEach((each) => guarded(() => each.close()))))
    .subscribe((event) => observers.forEach((each) => guarded(() => each.observe(event))));
}

const OWNER = 'ServingOpenTelemetryModule';

const providerWith = (method: string): Rule => ({
  check: (value) => isRecord(value) && typeof value[method] === 'function',
  allowed: `a provider with ${method}()`,
});

const rules: Rules = {
  tracerProvider: providerWith('getTracer'),
  meterProvider: providerWith('getMeter'),
};

function guarded(work: () => void): void {
  try {
    work();
  } catch (error) {
    diag.error(`${SCOPE}: an event could not be recorded`, error);
  }
}

const { ConfigurableModuleClass, MODULE_OPTIONS_TOKEN: SERVING_OPENTELEMETRY_OPTIONS } =
  new ConfigurableModuleBuilder<ServingOpenTelemetryOptions>({
    moduleName: 'ServingOpenTelemetry',
  })
    .setClassMethodName('forRoot')
    .build();

/** Observes until the last batch at shutdown. */
@Injectable()
class ServingObserver implements OnModuleInit {
  constructor(
    private readonly moduleRef: ModuleRef,
    @Optional()
    @Inject(SERVING_OPENTELEMETRY_OPTIONS)
    private readonly options?: ServingOpenTelemetryOptions,
  ) {}

  onModuleInit(): void {
    checkOptions(OWNER, this.options ?? {}, rules);
    observeWithOpenTelemetry(servingsOf(this.moduleRef), this.options);
  }
}

/** @throws InvalidServingError without a ServingModule, which need not be global */
function servingsOf(moduleRef: ModuleRef): ServingService {
  try {
    return moduleRef.get(ServingService, { strict: false });
  } catch (cause) {
    throw new InvalidServingError(
      `${OWNER} observes the servings of the application; import ServingModule.forRoot next to it`,
      { cause },
    );
  }
}

/**
 * Spans and metrics of all servings and `@Batched()` methods. Import it once, directly or with
 * `forRoot`.
 */
@Module({ providers: [ServingObserver] })
export class ServingOpenTelemetryModule extends checkedModule(
  ConfigurableModuleClass,
  OWNER,
  rules,
) {
  constructor(modules: ModulesContainer) {
    super();
    refuseSecond(modules, ServingOpenTelemetryModule, OWNER);
  }
}
