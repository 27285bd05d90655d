import { OverloadedError, type SessionEndedError, withoutStack } from '../../core/errors.js';
import type {
  OpenStates,
  SessionOptions,
  VersionOfStates,
} from '../../core/execution/kept-states.js';
import { resolveCallOptions } from '../../core/execution/resolved-call-options.js';
import type { CallGroup } from '../../core/execution/lanes.js';
import { checkSessionOptions, OrderedSession, type SessionHost } from './ordered-session.js';
import type { SessionsOptions } from './sessions.js';

interface Place extends CallGroup {
  readonly partition: number;
  sessions: number;
}

/** Spread evenly over the partitions. */
export class LocalSessions implements OpenStates {
  private readonly open = new Map<OrderedSession, Place>();
  private readonly places: readonly Place[];
  private readonly waits: SessionHost['waits'];
  private lastId = 0;

  constructor(
    private readonly limits: Required<SessionsOptions>,
    private readonly version: VersionOfStates,
  ) {
    this.waits = { count: 0, most: version.options.queue.maxRows };
    this.places = version.pipeline.partitions.map((_, partition) => ({ partition, sessions: 0 }));
  }

  get size(): number {
    return this.open.size;
  }

  /**
   * Picks the working partition with the fewest sessions.
   *
   * @throws OverloadedError when as many as `sessions.max` are open
   */
  openSession(
    options: SessionOptions,
    onEnd?: (reason: SessionEndedError) => void,
    needsFirst?: boolean,
  ): OrderedSession {
    const { max, idle } = this.limits;
    const { pipeline, callbacks } = this.version;
    const { name, timeout } = this.version.options;
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
    pipeline.refuseOnceClosed();
    const place = this.emptiest();
    const id = ++this.lastId;
    const session: OrderedSession = new OrderedSession(id, options, {
      serving: name,
      idle,
      group: place,
      waits: this.waits,
      needsFirst,
      resolve: (input, own) => resolveCallOptions(callbacks, input, own, timeout),
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
    const { pipeline, onEnd } = this.version;
    pipeline.forget(id, place.partition);
    onEnd();
  }

  private emptiest(): Place {
    const isUp = this.version.pipeline.partitions.map(({ state }) => state === 'up');
    const working = this.places.filter(({ partition }) => isUp[partition]);
    return (working.length > 0 ? working : this.places).reduce((best, each) =>
      each.sessions < best.sessions ? each : best,
    );
  }
}
