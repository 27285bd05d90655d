import type { ResolvedServing, Callbacks } from '../definition/resolved-serving.js';
import { OverloadedError, type SessionEndedError, withoutStack } from '../errors.js';
import { checkSessionOptions, resolveCallOptions } from '../execution/resolved-call-options.js';
import { OrderedSession } from '../sessions/ordered-session.js';
import type { SessionOptions } from '../sessions/serving-session.js';
import type { Pipeline } from './pipeline.js';

/** A partition with sessions, which has a pipeline of its own: no other can run their steps. */
interface Place {
  readonly pipeline: Pipeline;
  sessions: number;
}

/** The open sessions of a serving, spread evenly over its partitions. */
export class LocalSessions {
  private readonly open = new Map<OrderedSession, Place>();
  private readonly places: readonly Place[];
  private lastId = 0;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    pipelines: readonly Pipeline[],
    /** Called when a session has ended. */
    private readonly onEnd: () => void = () => {},
  ) {
    this.places = pipelines.map((pipeline) => ({ pipeline, sessions: 0 }));
  }

  /** Open sessions. */
  get size(): number {
    return this.open.size;
  }

  /**
   * Opens a session on the partition with the fewest, of those that work.
   *
   * @param onEnd called when it ends
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
    const place = this.places.reduce((best, each) => (isBetter(each, best) ? each : best));
    place.pipeline.refuseOnceClosed();
    const id = ++this.lastId;
    const session: OrderedSession = new OrderedSession(id, options, {
      idle,
      needsFirst,
      resolve: (input, own) => resolveCallOptions(this.callbacks, input, own, timeout),
      run: (input, own) => place.pipeline.run(input, own),
      refused: (error, own) => place.pipeline.refused(error, own),
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

  /** Ends all sessions, whose serving has closed. */
  close(): void {
    [...this.open.keys()].forEach((session) => void session.close());
  }

  private ended(session: OrderedSession, id: number): void {
    const place = this.open.get(session)!;
    this.open.delete(session);
    place.sessions--;
    place.pipeline.endSession(id);
    this.onEnd();
  }
}

function isBetter(one: Place, other: Place): boolean {
  const [isUp, isOtherUp] = [one, other].map(({ pipeline }) =>
    pipeline.partitions.some(({ state }) => state === 'up'),
  );
  return isUp === isOtherUp ? one.sessions < other.sessions : isUp === true;
}
