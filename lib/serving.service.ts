import { Injectable, type OnModuleInit } from '@nestjs/common';
import { EMPTY, merge, Subject } from 'rxjs';
import { BatchedMethods } from './batched/batched-methods.js';
import { ServingRegistry } from './serving-registry.js';
import type { Serving } from './serving/serving.js';
import type { ServingOptions } from './serving/serving-definition.js';
import type { ServingEvent } from './serving/serving-event.js';

/** A serving by name, or by its definition, which also gives its types. */
export type ServingReference<Input, Output> = string | ServingOptions<Input, Output>;

/** Calls servings by name. */
@Injectable()
export class ServingService implements OnModuleInit {
  private readonly subject = new Subject<ServingEvent>();

  /** What happens inside all servings and `@Batched()` methods of the application; hot, and ends with them. */
  readonly events$ = this.subject.asObservable();

  constructor(
    private readonly registry: ServingRegistry,
    private readonly methods: BatchedMethods,
  ) {}

  onModuleInit(): void {
    const servings = [...this.registry.all.values()];
    // A handle that a test puts in place of a serving may be without events.
    merge(this.methods.events$, ...servings.map((serving) => serving.events$ ?? EMPTY)).subscribe(this.subject);
  }

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
