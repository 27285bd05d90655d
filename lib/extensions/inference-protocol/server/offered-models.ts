import {
  BadRequestException,
  NotImplementedException,
  ServiceUnavailableException,
} from '@nestjs/common';
import {
  InvalidServingError,
  isServingError,
  UnknownServingError,
  type Serving,
} from '../../../index.js';
import { closestName, formatValue } from '../../../internal.js';
import { OfferedModel } from './offered-model.js';
import { type ResolvedProtocol, withName } from './options.js';

const OWNER = 'InferenceProtocolModule';

export class OfferedModels {
  private readonly byName: ReadonlyMap<string, OfferedModel>;

  /** @throws InvalidServingError for an unknown serving */
  constructor(
    { offers }: Pick<ResolvedProtocol, 'offers'>,
    all: ReadonlyMap<string, Serving>,
    handleOf: (name: string) => Serving,
  ) {
    const names = [...all.keys()];
    const own = offers ?? names.map((serving) => withName({ serving }, OWNER));
    this.byName = new Map(
      own.map((offer) => {
        const { serving, model } = offer;
        if (!all.has(serving)) {
          const meant = closestName(serving, names);
          throw new InvalidServingError(
            `${OWNER}: there is no serving ${formatValue(serving)}; ` +
              (meant === undefined ? '' : `did you mean "${meant}"? `) +
              `registered are: ${names.toSorted().join(', ') || 'none'}`,
          );
        }
        return [model, new OfferedModel(offer, handleOf(serving), all.get(serving))];
      }),
    );
  }

  get all(): readonly OfferedModel[] {
    return [...this.byName.values()];
  }

  get loaded(): readonly OfferedModel[] {
    return this.all.filter(({ isUnloaded }) => !isUnloaded);
  }

  /** @throws UnknownServingError for a name or version not offered */
  find(name: string, version = ''): OfferedModel {
    const model = this.byName.get(name);
    if (!model) {
      const known = [...this.byName.keys()].toSorted().join(', ') || 'none';
      throw new UnknownServingError(
        `There is no model ${formatValue(name)}; offered are: ${known}`,
      );
    }
    if (version !== '' && !model.versions.includes(version)) {
      throw new UnknownServingError(
        `Model "${name}" has no version ${formatValue(version)}; it has ${model.versions.join(', ')}`,
      );
    }
    return model;
  }

  /**
   * Like {@link find}, for running a request.
   *
   * @throws ServiceUnavailableException for an unloaded model
   */
  toRun(name: string, version?: string): OfferedModel {
    const model = this.find(name, version);
    if (model.isUnloaded) {
      throw new ServiceUnavailableException(
        `Model "${name}" was unloaded; a client of the repository can load it`,
      );
    }
    return model;
  }

  /**
   * Reloads the model's file and offers the model again.
   *
   * @throws BadRequestException with the reason for a failed load, which these clients may see
   */
  async load(name: string, parameters: Iterable<string>): Promise<void> {
    const model = this.find(name);
    const [parameter] = parameters;
    if (parameter !== undefined) {
      throw new NotImplementedException(
        `Loading model "${name}" with the parameter ${formatValue(parameter)} is not supported: ` +
          'its definition is in the application',
      );
    }
    try {
      await model.reload();
    } catch (cause) {
      if (isServingError(cause)) {
        throw new BadRequestException(`Loading model "${name}" failed: ${cause.message}`, {
          cause,
        });
      }
      throw cause;
    }
    model.isUnloaded = false;
  }

  /** Refuses clients' calls; the serving continues. */
  unload(name: string): void {
    this.find(name).isUnloaded = true;
  }
}
