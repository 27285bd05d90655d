import { InvalidInputError } from '../errors.js';
import { formatValue } from '../format.js';
import { LocalServing } from '../serving/local-serving.js';
import type { ServingSession, SessionCallOptions } from '../sessions/serving-session.js';
import type { OfferedModel } from './offered-model.js';
import type { SequenceStep } from './parameters.js';

/** The options of a step: those of its call, of which tenant and version hold for the sequence. */
type StepOptions = SessionCallOptions & { readonly tenant?: string; readonly version?: string };

/**
 * The open sequences of clients: each is a session of its serving, which limits their number and the
 * time between two steps.
 */
export class Sequences {
  private readonly open = new Map<string, ServingSession>();

  /**
   * Runs one row as a step of its sequence.
   *
   * @throws InvalidInputError for a sequence that was not started
   */
  async run(
    model: OfferedModel,
    step: SequenceStep,
    input: unknown,
    { tenant, version, ...options }: StepOptions,
  ): Promise<unknown> {
    // No client enters a sequence of another tenant.
    const key = JSON.stringify([tenant ?? null, model.name, version ?? null, step.key]);
    const session = step.isFirst
      ? this.start(model, key, { tenant, version })
      : this.find(model, key, step);
    let isOver = step.isLast;
    try {
      return await session.run(input, options);
    } catch (error) {
      // A sequence that never had a first step has no state to go on from.
      isOver ||= step.isFirst;
      throw error;
    } finally {
      if (isOver) {
        this.end(key, session);
      }
    }
  }

  /** A sequence of the same id, if there is one, ends after the steps that it was given. */
  private start(
    model: OfferedModel,
    key: string,
    { tenant, version }: Partial<Pick<StepOptions, 'tenant' | 'version'>>,
  ): ServingSession {
    const before = this.open.get(key);
    if (before) {
      this.end(key, before);
    }
    const { own } = model;
    if (!(own instanceof LocalServing)) {
      throw new InvalidInputError(
        `The sequences of model "${model.name}" run on other nodes, and not through this one`,
      );
    }
    const session: ServingSession = own.openSession(
      { ...(tenant !== undefined && { tenant }), ...(version !== undefined && { version }) },
      () => this.forget(key, session),
    );
    this.open.set(key, session);
    return session;
  }

  private find(model: OfferedModel, key: string, { id }: SequenceStep): ServingSession {
    const session = this.open.get(key);
    if (!session) {
      throw new InvalidInputError(
        `Model "${model.name}" has no open sequence ${formatValue(id)}: it was not started with ` +
          'sequence_start, has ended, or had no request for too long',
      );
    }
    return session;
  }

  private end(key: string, session: ServingSession): void {
    this.forget(key, session);
    void session.close();
  }

  private forget(key: string, session: ServingSession): void {
    if (this.open.get(key) === session) {
      this.open.delete(key);
    }
  }
}
