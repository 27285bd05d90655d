import type { CallOptions } from '../context/call-options.js';
import { DEFAULT_VERSION } from '../definition/option-rules.js';
import type { ServingSignature, TensorSignature } from '../definition/serving-signature.js';
import { datatypeOf } from '../json/json-tensor.js';
import { LocalServing } from '../serving/local-serving.js';
import { type ServingProfile, healthOf, type Serving } from '../serving/serving.js';
import { isColumn, parsePort, type Port } from './declared-port.js';
import type { DeclaredTensors, Offer } from './options.js';

/**
 * How the tensors of a request become the input of a call: given as they are, one element per row in
 * each of them, or each element as a row in JSON.
 */
export interface ModelInputs {
  readonly form: 'tensors' | 'columns' | 'json';
  readonly ports: readonly Port[];
}

/**
 * How a reply becomes tensors: it is those of a signature, the results of rows as declared, each
 * result as JSON, or whatever tensors it has.
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

/** A serving as a model of the protocol. */
export class OfferedModel {
  readonly name: string;
  /** Whether a client has unloaded it. */
  isUnloaded = false;
  /** The load that runs; never rejects. */
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
    /** The handle of its calls; in a cluster, they may run on other nodes. */
    readonly serving: Serving,
    /** The handle that the application registers. */
    readonly own: Serving = serving,
  ) {
    this.name = offer.model;
    this.declaredInputs = portsOf(offer.inputs);
    this.declaredOutputs = portsOf(offer.outputs);
  }

  /** The versions that a request may name; the last one answers a request that names none. */
  get versions(): readonly string[] {
    return this.own instanceof LocalServing ? this.own.versionLabels : [DEFAULT_VERSION];
  }

  /** The version that answers a request that names none, unless it falls into a canary's share. */
  get activeVersion(): string {
    return this.versions.at(-1)!;
  }

  /**
   * The version that a call runs on, if there are several. In a cluster, where another node may run
   * the call, undefined.
   */
  versionFor(input: unknown, options: CallOptions): string | undefined {
    const { own } = this;
    return own instanceof LocalServing && own === this.serving && this.versions.length > 1
      ? own.versionFor(input, options)
      : undefined;
  }

  /** Undefined for a handle without partitions of its own. */
  get profile(): ServingProfile | undefined {
    return this.own instanceof LocalServing ? this.own.profile : undefined;
  }

  /** Milliseconds after which the shutdown of the serving has answered every call. */
  get shutdownLimit(): number {
    return this.own instanceof LocalServing ? this.own.shutdownLimit : 0;
  }

  get isReady(): boolean {
    return !this.isUnloaded && healthOf(this.name, this.own).isReady;
  }

  /** The reason why it is not ready; empty where it is. It says nothing of the application. */
  get reason(): string {
    const { isReady, state } = healthOf(this.name, this.own);
    if (this.isUnloaded) {
      return 'unloaded';
    }
    return isReady ? '' : state === 'ready' ? 'no partition works' : state;
  }

  /** Whether a request may have several replies. */
  get isDecoupled(): boolean {
    return this.offer.decoupled ?? this.profile?.isSequence ?? false;
  }

  /**
   * Loads the file of the active version again, after a load that runs: that one may have read an
   * older file. Those that wait for it share the next load. Nothing for code of the application.
   */
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
    return this.profile?.sessionIdle !== undefined;
  }

  get inputs(): ModelInputs {
    return this.shapes.inputs;
  }

  get outputs(): ModelOutputs {
    return this.shapes.outputs;
  }

  /** Those of the present signature, which a model has from its start on. */
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

/** `name` is for a tensor that has none: the rows of a template may be a bare tensor. */
function portOf({ name, type, shape, batchAxis }: TensorSignature, otherwise: string): Port {
  return {
    name: name === '' ? otherwise : name,
    isBare: name === '',
    type,
    // A batch of a model with a fixed one runs in steps, so a request may have any number of rows.
    shape: shape.map((size, axis) => (typeof size === 'number' && axis !== batchAxis ? size : -1)),
    batchAxis,
  };
}

/** `image: FP32[-1, 784]`, for errors. */
export function describePorts(ports: readonly Port[]): string {
  return ports
    .map(({ name, type, shape }) => `${name}: ${datatypeOf(type)}[${shape.join(', ')}]`)
    .join(', ');
}
