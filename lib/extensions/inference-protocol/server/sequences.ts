import { InvalidInputError, type ServingSession, type SessionCallOptions } from '../../../index.js';
import { formatValue } from '../../../doors/text.js';
import type { OfferedModel } from './offered-models.js';
import type { SequenceStep } from './inference-request.js';

/** Tenant and version apply to the whole sequence. */
type StepOptions = SessionCallOptions & { readonly tenant?: string; readonly version?: string };

export interface StepReply {
  readonly value: unknown;
  readonly version: string | undefined;
}

interface Sequence {
  readonly session: ServingSession;
  readonly version: string | undefined;
}

/** Each is a session, which limits their number and idle time. */
export class Sequences {
  private readonly open = new Map<string, Sequence>();

  /**
   * @throws InvalidInputError if the sequence was not started or another version runs it
   * @throws SessionEndedError for a step after a failed first step
   */
  async run(
    model: OfferedModel,
    step: SequenceStep,
    input: unknown,
    { tenant, version, ...options }: StepOptions,
  ): Promise<StepReply> {
    // No client may enter another tenant's sequence.
    const key = JSON.stringify([tenant ?? null, model.name, step.key]);
    const sequence = step.isFirst
      ? this.start(model, key, { tenant, version })
      : this.find(model, key, step, version);
    let isOver = step.isLast;
    try {
      return { value: await sequence.session.run(input, options), version: sequence.version };
    } catch (error) {
      // A failed first step leaves no state.
      isOver ||= step.isFirst;
      throw error;
    } finally {
      if (isOver) {
        this.end(key, sequence);
      }
    }
  }

  /** An open sequence with this id ends after its steps. */
  private start(
    model: OfferedModel,
    key: string,
    { tenant, version: asked }: Partial<Pick<StepOptions, 'tenant' | 'version'>>,
  ): Sequence {
    const before = this.open.get(key);
    if (before) {
      this.end(key, before);
    }
    const { local } = model.own;
    if (!local) {
      throw new InvalidInputError(
        `The sequences of model "${model.name}" run on other nodes, and not through this one`,
      );
    }
    const ofTenant = tenant !== undefined && { tenant };
    const version = local.versionFor(undefined, { ...ofTenant, version: asked });
    const session = local.openSession(
      { ...ofTenant, version: version ?? asked },
      () => this.forget(key, sequence),
      true,
    );
    const sequence = { session, version };
    this.open.set(key, sequence);
    return sequence;
  }

  private find(
    { name }: OfferedModel,
    key: string,
    { id }: SequenceStep,
    version: string | undefined,
  ): Sequence {
    const sequence = this.open.get(key);
    if (!sequence) {
      throw new InvalidInputError(
        `Model "${name}" has no open sequence ${formatValue(id)}: it was not started with ` +
          'sequence_start, has ended, or had no request for too long',
      );
    }
    if (version !== undefined && version !== sequence.version) {
      throw new InvalidInputError(
        `The sequence ${formatValue(id)} of model "${name}" runs on version ` +
          `${formatValue(sequence.version)}, and the request names ${formatValue(version)}; name the ` +
          'same one, or none',
      );
    }
    return sequence;
  }

  private end(key: string, sequence: Sequence): void {
    this.forget(key, sequence);
    void sequence.session.close();
  }

  private forget(key: string, sequence: Sequence): void {
    if (this.open.get(key) === sequence) {
      this.open.delete(key);
    }
  }
}
