import type { Observable } from 'rxjs';
import type { PartitionStatus } from '../partitions/partition.js';
import type { ServingStream } from '../streaming/serving-stream.js';
import type { CallOptions, StreamOptions } from '../context/call-options.js';
import type { ServingCounters } from '../events/counters.js';
import type { ServingEvent } from '../events/serving-event.js';
import type { EventOf } from '../events/event-hub.js';
import type { StreamEvent } from '../definition/reply.js';
import { type ServingOptions } from '../definition/serving-definition.js';

/** `ready` from the time when every partition is loaded and warm, until shutdown begins. */
export type ServingState = 'stopped' | 'starting' | 'ready' | 'closing' | 'closed';

/**
 * A named model as its callers see it: type, injection token and contract in one.
 *
 * `Input` is what a caller passes, `Output` what it gets back.
 */
export abstract class Serving<Input = unknown, Output = unknown> {
  abstract readonly name: string;

  abstract readonly state: ServingState;

  /** Why it is not ready, in words, where its state does not tell. */
  get reason(): string | undefined {
    return undefined;
  }

  /**
   * What happens inside: calls and batches, when they start and when they end, and partitions that
   * go and come back; hot.
   */
  abstract readonly events$: Observable<ServingEvent>;

  /**
   * The events of one type; costs less than all of them, since nothing is made that nobody
   * observes.
   */
  abstract eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>>;

  /**
   * How many rows wait in its queue, by its name; nothing for a handle that has no queue of its
   * own.
   */
  queueDepths(): ReadonlyMap<string, number> {
    return new Map();
  }

  /** What it has done so far; nothing for a handle that counts nothing. */
  counters(): ServingCounters | undefined {
    return undefined;
  }

  /**
   * How its partitions are, those that run batches of several callers; nothing for a handle that
   * has none of its own.
   */
  partitions(): readonly PartitionStatus[] {
    return [];
  }

  /** As {@link partitions}, by its name. */
  partitionsByName(): ReadonlyMap<string, readonly PartitionStatus[]> {
    const partitions = this.partitions();
    return new Map(partitions.length > 0 ? [[this.name, partitions]] : []);
  }

  /**
   * Runs the input alone and at once, sharing with no other caller.
   *
   * @throws ServingError what the batch function, the input or the output is at fault for
   */
  abstract run(input: Input, options?: CallOptions): Promise<Output>;

  /**
   * Runs the rows of the input in batches with those of concurrent callers; resolves with the
   * output for just these rows.
   *
   * @throws OverloadedError when the queue has no room
   * @throws ServingClosedError before the start and after the end
   * @throws InvalidInputError when the rows do not fit the serving
   * @throws UnknownKeyError when the serving does not have the key of the rows
   * @throws BatchFailedError when the batch that held one of the rows failed
   */
  abstract batchedRun(input: Input, options?: CallOptions): Promise<Output>;

  /**
   * As {@link batchedRun} (or {@link run}, with `inline`), but gives the output of each batch, or
   * of each step of a generator, as it comes, in the order of the call's rows; with `hooks` also
   * what the batch function says in between.
   *
   * The call starts when somebody subscribes or iterates, and each who does makes a call of his
   * own.
   *
   * @throws SlowConsumerError when more than 1024 steps or hooks wait to be read; else as
   * `batchedRun`, to the consumer
   */
  abstract stream<Hook extends string = never>(
    input: Input,
    options?: StreamOptions<Hook>,
  ): ServingStream<StreamEvent<Output, Hook>>;

  /**
   * Changes how many rows run together at most, from the next window on; of one key, or of all.
   *
   * @throws InvalidServingError for a size that cannot be
   */
  abstract setBatchSize(rows: number, key?: string): void;

  /**
   * Changes how many milliseconds a window that is not full waits, from the next window on; of one
   * key, or of all.
   *
   * @throws InvalidServingError for a time that cannot be
   */
  abstract setBatchTimeout(milliseconds: number, key?: string): void;
}

/** The handle of a definition: `ServingOf<typeof embedder>`. */
export type ServingOf<Definition> =
  Definition extends ServingOptions<infer Input, infer Output, infer _Result, infer _Info>
    ? Serving<Input, Output>
    : never;
