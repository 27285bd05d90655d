import {
  NotImplementedException,
  type OnApplicationShutdown,
  type OnModuleDestroy,
  type OnModuleInit,
} from '@nestjs/common';
import type { ModuleRef } from '@nestjs/core';
import { merge, type Observable, Subject, Subscription } from 'rxjs';
import { InvalidServingError, ServingService } from '../../../index.js';
import { ServingRegistry, versionOf } from '../../../doors/servings.js';
import { type OfferedModel, OfferedModels } from './offered-models.js';
import type { Port, ResolvedProtocol } from './options.js';
import { Inference } from './inference.js';
import type {
  InferenceCaller,
  InferenceReply,
  InferenceRequest,
  StreamedReply,
} from './inference-request.js';
import { type ModelStatistics, StatisticsOfModel } from './statistics.js';
import { datatypeOf } from '../../../encoding/json-tensor.js';

export interface ServerMetadata {
  readonly name: string;
  readonly version: string;
  readonly extensions: readonly string[];
}

export interface IndexEntry {
  readonly name: string;
  readonly version: string;
  readonly state: 'READY' | 'LOADING' | 'UNLOADING' | 'UNAVAILABLE';
  readonly reason: string;
}

const EXTENSIONS = [
  'binary_tensor_data',
  'model_configuration',
  'parameters',
  'schedule_policy',
  'sequence',
  'sequence(string_id)',
  'statistics',
];
const REPOSITORY = ['model_repository', 'model_repository(unload_dependents)'];

export class InferenceServer implements OnModuleInit, OnModuleDestroy, OnApplicationShutdown {
  isClosing = false;
  private models!: OfferedModels;
  private inference!: Inference;
  private readonly counts = new Map<OfferedModel, StatisticsOfModel>();
  private readonly observed = new Subscription();
  private readonly closing$ = new Subject<void>();
  private readonly version = versionOf();

  constructor(
    readonly options: ResolvedProtocol,
    private readonly moduleRef: ModuleRef,
  ) {}

  /** @internal */
  onModuleInit(): void {
    const { all } = this.provided(ServingRegistry);
    const service = this.provided(ServingService);
    this.models = new OfferedModels(this.options, all, (name) => service.get(name));
    this.inference = new Inference(this.models, this.options.jsonLimit);
    for (const model of this.models.all) {
      const counts = new StatisticsOfModel();
      this.counts.set(model, counts);
      this.observed.add(counts.observe(model));
    }
  }

  /** @internal Called before anything ends. */
  onModuleDestroy(): void {
    this.isClosing = true;
    this.closing$.next();
  }

  /** @internal */
  onApplicationShutdown(): void {
    this.observed.unsubscribe();
  }

  metadata(): ServerMetadata {
    const extensions = this.options.repository ? [...EXTENSIONS, ...REPOSITORY] : EXTENSIONS;
    return { name: 'nestjs-serving', version: this.version, extensions };
  }

  /** Emits when a model's readiness may have changed. */
  get changes$(): Observable<unknown> {
    return merge(this.closing$, this.models.changes$);
  }

  get isReady(): boolean {
    return !this.isClosing && this.models.loaded.every(({ isReady }) => isReady);
  }

  get shutdownLimit(): number {
    return Math.max(0, ...this.models.all.map(({ shutdownLimit }) => shutdownLimit));
  }

  /** @throws UnknownServingError */
  isModelReady(name: string, version?: string): boolean {
    return this.models.find(name, version).isReady && !this.isClosing;
  }

  isDecoupled(name: string, version?: string): boolean {
    return this.models.find(name, version).isDecoupled;
  }

  inputsOf(name: string, version?: string): readonly Port[] {
    return this.models.toRun(name, version).inputs.ports;
  }

  modelMetadata(name: string, version?: string): ModelMetadata {
    return metadataOf(this.models.toRun(name, version));
  }

  modelConfig(name: string, version?: string): ModelConfig {
    return configOf(this.models.toRun(name, version));
  }

  statistics(name = '', version?: string): readonly ModelStatistics[] {
    const models = name === '' ? this.models.loaded : [this.models.toRun(name, version)];
    return models.flatMap((model) => this.counts.get(model)!.of(model, version));
  }

  infer(request: InferenceRequest, caller: InferenceCaller): Promise<InferenceReply> {
    return this.inference.infer(request, caller);
  }

  stream(request: InferenceRequest, caller: InferenceCaller): AsyncGenerator<StreamedReply, void> {
    return this.inference.stream(request, caller);
  }

  index(onlyReady = false): readonly IndexEntry[] {
    return this.models.all.flatMap((model) => {
      const { name, versions, isReady, reason } = model;
      const state = isReady ? 'READY' : 'UNAVAILABLE';
      return isReady || !onlyReady
        ? versions.map((version): IndexEntry => ({ name, version, state, reason }))
        : [];
    });
  }

  /**
   * The present model continues if reloading fails.
   *
   * @param parameters the client's parameter names
   */
  async load(name: string, parameters: Iterable<string> = []): Promise<void> {
    this.checkRepository();
    await this.models.load(name, parameters);
  }

  unload(name: string): void {
    this.checkRepository();
    this.models.unload(name);
  }

  /** @throws NotImplementedException without the option `repository` */
  checkRepository(): void {
    if (!this.options.repository) {
      throw new NotImplementedException(
        'Clients cannot load or unload models here; the option "repository" allows it',
      );
    }
  }

  /** ServingModule need not be global. */
  private provided<T>(type: new (...args: never[]) => T): T {
    try {
      return this.moduleRef.get<T>(type, { strict: false });
    } catch (cause) {
      throw new InvalidServingError(
        'InferenceProtocolModule needs the servings of the application; import ' +
          'ServingModule.forRoot next to it',
        { cause },
      );
    }
  }
}

export interface TensorMetadata {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly number[];
}

/** Named as in the protocol. */
export interface ModelMetadata {
  readonly name: string;
  readonly versions: readonly string[];
  readonly platform: string;
  readonly inputs: readonly TensorMetadata[];
  readonly outputs: readonly TensorMetadata[];
}

export function metadataOf(model: OfferedModel): ModelMetadata {
  const { name, versions, inputs, outputs } = model;
  return {
    name,
    versions,
    platform: platformOf(model).platform,
    inputs: inputs.ports.map(tensorMetadata),
    outputs: outputs.ports.map(tensorMetadata),
  };
}

function tensorMetadata({ name, type, shape }: Port): TensorMetadata {
  return { name, datatype: datatypeOf(type), shape };
}

export interface TensorConfig {
  readonly name: string;
  readonly data_type: string;
  /** Omits the row axis if `max_batch_size` is above 0. */
  readonly dims: readonly number[];
}

/** Fields of Triton's ModelConfig that clients read. */
export interface ModelConfig {
  readonly name: string;
  readonly platform: string;
  readonly backend: string;
  /** 0 unless every tensor has the row axis first and another axis. */
  readonly max_batch_size: number;
  readonly input: readonly TensorConfig[];
  readonly output: readonly TensorConfig[];
  readonly dynamic_batching?: {
    readonly preferred_batch_size: readonly number[];
    readonly max_queue_delay_microseconds: number;
  };
  readonly sequence_batching?: { readonly max_sequence_idle_microseconds: number };
  readonly model_transaction_policy: { readonly decoupled: boolean };
}

export function configOf(model: OfferedModel): ModelConfig {
  const { name, inputs, outputs, profile, isDecoupled } = model;
  const ports = [...inputs.ports, ...outputs.ports];
  // Clients drop the row axis and need another one.
  const hasRows = ports.every(({ batchAxis, shape }) => batchAxis === 0 && shape.length > 1);
  const config = ({ name: port, type, shape }: Port): TensorConfig => ({
    name: port,
    data_type: dataTypeOf(datatypeOf(type)),
    dims: hasRows ? shape.slice(1) : shape,
  });
  return {
    name,
    ...platformOf(model),
    max_batch_size: hasRows ? (profile?.batchSize ?? 1) : 0,
    input: inputs.ports.map(config),
    output: outputs.ports.map(config),
    ...(profile?.stateIdle === undefined
      ? {
          dynamic_batching: {
            preferred_batch_size: [],
            max_queue_delay_microseconds: Math.round((profile?.batchTimeout ?? 0) * 1000),
          },
        }
      : {
          sequence_batching: {
            max_sequence_idle_microseconds: Math.round(profile.stateIdle * 1000),
          },
        }),
    model_transaction_policy: { decoupled: isDecoupled },
  };
}

/** Triton's names. */
function platformOf({ profile }: OfferedModel) {
  return profile?.runner === 'model'
    ? { platform: 'onnxruntime_onnx', backend: 'onnxruntime' }
    : { platform: 'nestjs_serving', backend: 'nestjs_serving' };
}

/** 4-bit types have no name in the configuration. */
function dataTypeOf(datatype: string): string {
  if (datatype === 'BYTES') {
    return 'TYPE_STRING';
  }
  return datatype.endsWith('INT4') ? 'TYPE_INVALID' : `TYPE_${datatype}`;
}
