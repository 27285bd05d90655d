import type { ResolvedServing, Callbacks } from '../definition/resolved-serving.js';
import { OverloadedError, type SessionEndedError, withoutStack } from '../errors.js';
import { checkSessionOptions, resolveCallOptions } from '../execution/resolved-call-options.js';
import type { CallGroup } from '../execution/lanes.js';
import { OrderedSession, type SessionOptions } from './ordered-session.js';
import type { Pipeline } from '../execution/pipeline.js';

/** A partition with its sessions' states. No other can run their steps. */
interface Place extends CallGroup {
  readonly partition: number;
  sessions: number;
}

/** A serving's open sessions, spread evenly over its partitions. */
export class LocalSessions {
  private readonly open = new Map<OrderedSession, Place>();
  private readonly loads: readonly Place[];
  private lastId = 0;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    private readonly pipeline: Pipeline,
    private readonly onEnd: () => void,
  ) {
    this.loads = pipeline.partitions.map((_, partition) => ({ partition, sessions: 0 }));
  }

  get size(): number {
    return this.open.size;
  }

  /**
   * Opens a session on the partition with the fewest, of those that work.
   *
   * @param needsFirst ends it if its first call fails
   * @throws OverloadedError when as many as `sessions.max` are open
   */
  openSession(
    options: SessionOptions,
    onEnd?: (reason: SessionEndedError) => void,
    needsFirst?: boolean,
  ): OrderedSession {
    const { name, sessions, timeout } = this.options;
    const { max, idle } = sessions!;
    checkSessionOptions(name, options);
    if (this.open.size >= max) {
      throw withoutStack(
        () =>
          new OverloadedError(
            `Serving "${name}" has ${max} open sessions and takes no more; close some, or raise ` +
              'sessions.max',
          ),
      );
    }
    const { pipeline } = this;
    pipeline.refuseOnceClosed();
    const place = this.emptiest();
    const id = ++this.lastId;
    const session: OrderedSession = new OrderedSession(id, options, {
      idle,
      group: place,
      needsFirst,
      resolve: (input, own) => resolveCallOptions(this.callbacks, input, own, timeout),
      run: (input, own) => pipeline.run(input, own),
      refused: (error, own) => pipeline.refused(error, own),
      ended: (reason) => {
        if (this.open.has(session)) {
          this.ended(session, id);
          onEnd?.(reason);
        }
      },
    });
    this.open.set(session, place);
    place.sessions++;
    return session;
  }

  close(): void {
    [...this.open.keys()].forEach((session) => void session.close());
  }

  private ended(session: OrderedSession, id: number): void {
    const place = this.open.get(session)!;
    this.open.delete(session);
    place.sessions--;
    this.pipeline.endSession(id, place.partition);
    this.onEnd();
  }

  private emptiest(): Place {
    const isUp = this.pipeline.partitions.map(({ state }) => state === 'up');
    const working = this.loads.filter(({ partition }) => isUp[partition]);
    return (working.length > 0 ? working : this.loads).reduce((best, each) =>
      each.sessions < best.sessions ? each : best,
    );
  }
}
