import { Injectable } from '@nestjs/common';
import { defer, EMPTY, merge, type Observable } from 'rxjs';
import { BatchedMethods } from './batched/batched-methods.js';
import { ServingRegistry } from './serving-registry.js';
import type { Serving } from './serving/serving.js';
import type { ServingOptions } from './serving/serving-definition.js';
import type { ServingEvent } from './serving/serving-event.js';

/** A serving by name, or by its definition, which also gives its types. */
export type ServingReference<Input, Output> = string | ServingOptions<Input, Output>;

/** Calls servings by name. */
@Injectable()
export class ServingService {
  /** What happens inside all servings and `@Batched()` methods of the application; hot. */
  readonly events$: Observable<ServingEvent> = defer(() =>
    merge(this.methods.events$, ...[...this.registry.all.values()].map((serving) => serving.events$ ?? EMPTY)),
  );

  constructor(
    private readonly registry: ServingRegistry,
    private readonly methods: BatchedMethods,
  ) {}

  /**
   * The handle of a serving.
   *
   * @throws UnknownServingError when there is none of that name
   */
  get<Input = unknown, Output = unknown>(serving: ServingReference<Input, Output>): Serving<Input, Output> {
    return this.registry.get(typeof serving === 'string' ? serving : serving.name) as Serving<Input, Output>;
  }

  /** Runs the rows of the input in batches with those of concurrent callers. See {@link Serving.batchedRun}. */
  async batchedRun<Input = unknown, Output = unknown>(serving: ServingReference<Input, Output>, input: Input): Promise<Output> {
    return this.get(serving).batchedRun(input);
  }

  /** Runs the input alone and at once. See {@link Serving.run}. */
  async run<Input = unknown, Output = unknown>(serving: ServingReference<Input, Output>, input: Input): Promise<Output> {
    return this.get(serving).run(input);
  }
}
