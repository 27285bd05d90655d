import {
  InvalidServingError,
  isServingError,
  type Serving,
  type ServingSignature,
  type TensorSignature,
  UnknownServingError,
} from '../../../index.js';
import { DEFAULT_VERSION } from '../../../doors/options.js';
import { healthOf, type LocalPart, type ServingProfile } from '../../../doors/servings.js';
import { closestName, formatValue } from '../../../doors/text.js';
import { datatypeOf } from '../../../encoding/json-tensor.js';
import {
  type DeclaredTensors,
  type Offer,
  isColumn,
  parsePort,
  type Port,
  type ResolvedProtocol,
  withName,
} from './options.js';
import {
  BadRequestException,
  NotImplementedException,
  ServiceUnavailableException,
} from '@nestjs/common';
import { EMPTY, merge, type Observable, Subject } from 'rxjs';

/**
 * Input forms: the tensors (`tensors`), a row from one element of each (`columns`), or a row per
 * JSON element (`json`).
 */
export interface ModelInputs {
  readonly form: 'tensors' | 'columns' | 'json';
  readonly ports: readonly Port[];
}

/**
 * Reply forms: by signature (`tensors`), as declared (`columns`), as JSON (`json`), or any tensors
 * (`found`).
 */
export interface ModelOutputs {
  readonly form: 'tensors' | 'columns' | 'json' | 'found';
  readonly ports: readonly Port[];
}

const aRowOfJson = (name: string): { readonly form: 'json'; readonly ports: readonly Port[] } => ({
  form: 'json',
  ports: [{ name, type: 'string', shape: [-1], batchAxis: 0 }],
});
const JSON_INPUT = aRowOfJson('input');
const JSON_OUTPUT = aRowOfJson('output');

export class OfferedModel {
  readonly name: string;
  isUnloaded = false;
  /** Counts unloads: a load doesn't undo a later one. */
  unloads = 0;
  /** The running load; never rejects. */
  private loading: Promise<void> = Promise.resolve();
  private nextLoad: Promise<void> | undefined;
  private readonly declaredInputs: readonly Port[] | undefined;
  private readonly declaredOutputs: readonly Port[] | undefined;
  private known:
    | {
        readonly signature: ServingSignature | undefined;
        readonly inputs: ModelInputs;
        readonly outputs: ModelOutputs;
      }
    | undefined;

  constructor(
    private readonly offer: Offer,
    /** Calls may run on other nodes in a cluster. */
    readonly serving: Serving,
    /** The application's handle. */
    readonly own: Serving = serving,
  ) {
    this.name = offer.model;
    this.declaredInputs = portsOf(offer.inputs);
    this.declaredOutputs = portsOf(offer.outputs);
  }

  /** The last one is the default. */
  get versions(): readonly string[] {
    return this.own.local?.versionLabels ?? [DEFAULT_VERSION];
  }

  /** Answers requests without a version, except a canary's share. */
  get activeVersion(): string {
    return this.versions.at(-1)!;
  }

  /** Undefined in a cluster, where another node may run the call. */
  get local(): LocalPart | undefined {
    return this.own === this.serving ? this.own.local : undefined;
  }

  get profile(): ServingProfile | undefined {
    return this.own.local?.profile;
  }

  /** Milliseconds for shutdown to answer all calls. */
  get shutdownLimit(): number {
    return this.own.local?.shutdownLimit ?? 0;
  }

  get isReady(): boolean {
    return !this.isUnloaded && healthOf(this.name, this.own).isReady;
  }

  /** Clients see it: no application details. */
  get reason(): string {
    const { isReady, state } = healthOf(this.name, this.own);
    if (this.isUnloaded) {
      return 'unloaded';
    }
    return isReady ? '' : state === 'ready' ? 'no partition works' : state;
  }

  get isDecoupled(): boolean {
    return this.offer.decoupled ?? this.profile?.isContinuous ?? false;
  }

  /** A running load may have read an older file, so waiting callers share a later one. */
  reload(): Promise<void> {
    this.nextLoad ??= this.loading.then(() => {
      this.nextLoad = undefined;
      const load = this.reloadFile();
      this.loading = load.catch(() => {});
      return load;
    });
    return this.nextLoad;
  }

  private async reloadFile(): Promise<void> {
    const runner = this.profile?.runner;
    if (runner === 'model' || runner === 'file') {
      await this.own.reload({ version: this.activeVersion });
    }
  }

  get hasSequences(): boolean {
    return this.profile?.stateIdle !== undefined;
  }

  get inputs(): ModelInputs {
    return this.shapes.inputs;
  }

  get outputs(): ModelOutputs {
    return this.shapes.outputs;
  }

  private get shapes() {
    const { signature } = this.own;
    if (!this.known || this.known.signature !== signature) {
      const inputs = this.inputsOf(signature);
      this.known = { signature, inputs, outputs: this.outputsOf(signature, inputs) };
    }
    return this.known;
  }

  private inputsOf(signature: ServingSignature | undefined): ModelInputs {
    const { declaredInputs: declared } = this;
    if (declared) {
      return { form: declared.every(isColumn) ? 'columns' : 'tensors', ports: declared };
    }
    return signature && !this.profile?.shapesInput
      ? { form: 'tensors', ports: signature.inputs.map((port) => portOf(port, 'input')) }
      : JSON_INPUT;
  }

  private outputsOf(signature: ServingSignature | undefined, inputs: ModelInputs): ModelOutputs {
    if (this.declaredOutputs) {
      return { form: 'columns', ports: this.declaredOutputs };
    }
    if (this.profile?.shapesOutput || inputs.form !== 'tensors') {
      return JSON_OUTPUT;
    }
    return signature?.outputs
      ? { form: 'tensors', ports: signature.outputs.map((port) => portOf(port, 'output')) }
      : { form: 'found', ports: [] };
  }
}

function portsOf(declared: DeclaredTensors | undefined): readonly Port[] | undefined {
  return declared && Object.entries(declared).map(([name, each]) => parsePort(name, each, name));
}

/** `otherwise` names a bare tensor. */
function portOf({ name, type, shape, batchAxis }: TensorSignature, otherwise: string): Port {
  return {
    name: name === '' ? otherwise : name,
    isBare: name === '',
    type,
    // A fixed-size batch runs in steps, so requests may have any number of rows.
    shape: shape.map((size, axis) => (typeof size === 'number' && axis !== batchAxis ? size : -1)),
    batchAxis,
  };
}

/** Error text such as `image: FP32[-1, 784]`. */
export function describePorts(ports: readonly Port[]): string {
  return ports
    .map(({ name, type, shape }) => `${name}: ${datatypeOf(type)}[${shape.join(', ')}]`)
    .join(', ');
}

const OWNER = 'InferenceProtocolModule';

export class OfferedModels {
  private readonly byName: ReadonlyMap<string, OfferedModel>;
  private readonly offered$ = new Subject<void>();

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

  /** Emits when a model's readiness may have changed. */
  get changes$(): Observable<unknown> {
    return merge(this.offered$, ...this.all.map(({ own }) => own.local?.changes$ ?? EMPTY));
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
   * @throws BadRequestException with the reason, which these clients may see
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
    const { unloads } = model;
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
    if (model.unloads === unloads) {
      model.isUnloaded = false;
      this.offered$.next();
    }
  }

  /** Refuses clients' calls; the serving continues. */
  unload(name: string): void {
    const model = this.find(name);
    model.isUnloaded = true;
    model.unloads++;
    this.offered$.next();
  }
}
