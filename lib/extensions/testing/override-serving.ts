import { ApplicationConfig, DiscoveryService } from '@nestjs/core';
import {
  InvalidServingError,
  getServingToken,
  createServing,
  type LocalServing,
} from '../../index.js';
import { type FunctionServingDefinition } from '../../doors/options.js';
import { getHandlerToken, ServingRegistry } from '../../doors/servings.js';
import type { BatchScript, RowsOf, TypedBatchFunction } from './batch-script.js';
import { modelStandIn, type Replaced, requireMember, servingStandIn } from './stand-in.js';

/**
 * Replaces a serving of the application under test, wherever it is registered, without loading its
 * model, file or class.
 *
 * A definition provides types and options (batch size, timeout, keys); a name, default options.
 * Without such a serving, the application does not start.
 *
 * @throws InvalidServingError without a name or a definition
 */
export function overrideServing<
  Builder extends TestingBuilder,
  Input = unknown,
  Output = unknown,
  Result = unknown,
>(
  builder: Builder,
  serving: string | Replaced<Input, Output, Result>,
): ServingOverride<Builder, Input, Output, Result> {
  if (typeof serving === 'string') {
    return new ServingOverride(builder, modelStandIn({ name: serving }));
  }
  requireMember(serving, 'name', 'overrideServing', 'the name of a serving, or its definition');
  const definition = serving as Replaced;
  return new ServingOverride(builder, servingStandIn(definition), modelStandIn(definition));
}

/** Chooses the replacement. `useFunction` and `useScript` return the builder. */
export class ServingOverride<Builder extends TestingBuilder, Input, Output, Result> {
  constructor(
    private readonly builder: Builder,
    private readonly standIn: FunctionServingDefinition,
    private readonly withCallbacks?: FunctionServingDefinition,
  ) {}

  /**
   * Keeps the definition's `preprocess`, `postprocess` and `postprocessStream`: the replacement
   * maps the model's rows to its output.
   *
   * @throws InvalidServingError for a serving given by name
   */
  keepCallbacks(): ServingOverride<Builder, unknown, Result, Result> {
    const { withCallbacks } = this;
    if (!withCallbacks) {
      throw new InvalidServingError(
        `overrideServing knows no callbacks of "${this.standIn.name}", which it was given by ` +
          'name; give it the definition',
      );
    }
    return new ServingOverride(this.builder, withCallbacks, withCallbacks);
  }

  /**
   * Runs each batch with a function from the callers' inputs to their replies, which may be Errors.
   */
  // Without a definition, the function itself types the rows.
  // oxlint-disable-next-line typescript/no-unnecessary-type-parameters
  useFunction<Rows = RowsOf<Input>>(
    run: TypedBatchFunction<unknown extends Input ? Rows : RowsOf<Input>, Output>,
  ): Builder {
    const model = { ...this.standIn.model, useFactory: () => run };
    return this.use(() => createServing({ ...this.standIn, model }));
  }

  /**
   * Lets the script hold each batch until the test ends it.
   *
   * @throws InvalidServingError for another value than a script
   */
  useScript(
    script: unknown extends Input ? AnyScript : BatchScript<Input, Output> | BatchScript,
  ): Builder {
    requireMember(script, 'createServing', 'useScript', 'a BatchScript');
    return this.use(() => script.createServing(this.standIn));
  }

  private use(create: () => LocalServing): Builder {
    const { builder, standIn } = this;
    builder.overrideProvider(getServingToken(standIn)).useFactory({ factory: create });
    builder.overrideProvider(getHandlerToken(standIn.name)).useValue({});
    expectServing(builder, standIn.name);
    return builder;
  }
}

type AnyScript = Pick<BatchScript, 'createServing'>;

/** Parts of the `Test.createTestingModule` builder that we use. */
export interface TestingBuilder {
  overrideProvider(token: unknown): {
    useFactory(options: {
      factory: (...dependencies: never[]) => unknown;
      inject?: unknown[];
    }): unknown;
    useValue(value: unknown): unknown;
  };
}

const expected = new WeakMap<TestingBuilder, Set<string>>();

/** Prevents that a typo in the name replaces nothing. */
function expectServing(builder: TestingBuilder, name: string): void {
  const names = expected.get(builder) ?? new Set();
  expected.set(builder, names.add(name));
  builder.overrideProvider(ServingRegistry).useFactory({
    factory: (discovery: DiscoveryService, application: ApplicationConfig) =>
      new ExpectingRegistry(discovery, application, names),
    inject: [DiscoveryService, ApplicationConfig],
  });
}

class ExpectingRegistry extends ServingRegistry {
  constructor(
    discovery: DiscoveryService,
    application: ApplicationConfig,
    private readonly names: ReadonlySet<string>,
  ) {
    super(discovery, application);
  }

  override onModuleInit(): void {
    super.onModuleInit();
    this.names.forEach((name) => this.get(name));
  }
}
