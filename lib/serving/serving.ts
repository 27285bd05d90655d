import type { Observable } from 'rxjs';
import type { ServingEvent } from './serving-event.js';

/**
 * A named model as its callers see it: type, injection token and contract in one.
 *
 * `Input` is what a caller passes, `Output` what it gets back.
 */
export abstract class Serving<Input = unknown, Output = unknown> {
  abstract readonly name: string;

  /** What happens inside, one event per batch; hot. */
  abstract readonly events$: Observable<ServingEvent>;

  /**
   * Runs the input alone and at once, sharing with no other caller.
   *
   * @throws ServingError what the batch function, the input or the output is at fault for
   */
  abstract run(input: Input): Promise<Output>;

  /**
   * Runs the rows of the input in batches with those of concurrent callers; resolves with the output for just these rows.
   *
   * @throws OverloadedError when the queue has no room
   * @throws ServingClosedError before the start and after the end
   * @throws InvalidInputError when the rows do not fit the serving
   * @throws BatchFailedError when the batch that held one of the rows failed
   */
  abstract batchedRun(input: Input): Promise<Output>;
}
