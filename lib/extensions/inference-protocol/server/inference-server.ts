import {
  NotImplementedException,
  type OnApplicationShutdown,
  type OnModuleDestroy,
  type OnModuleInit,
} from '@nestjs/common';
import type { ModuleRef } from '@nestjs/core';
import { Subscription } from 'rxjs';
import { InvalidServingError, ServingService } from '../../../index.js';
import { versionOf, ServingRegistry } from '../../../internal.js';
import type { Port } from './declared-port.js';
import { Inference } from './inference.js';
import type {
  InferenceCaller,
  InferenceReply,
  InferenceRequest,
  StreamedReply,
} from './inference-request.js';
import { configOf, metadataOf, type ModelConfig, type ModelMetadata } from './metadata.js';
import type { OfferedModel } from './offered-model.js';
import { OfferedModels } from './offered-models.js';
import type { ResolvedProtocol } from './options.js';
import { type ModelStatistics, StatisticsOfModel } from './statistics.js';

/** With the protocol's names. */
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
  private readonly version = versionOf();

  constructor(
    readonly options: ResolvedProtocol,
    private readonly moduleRef: ModuleRef,
  ) {}

  /** @internal Called by Nest. */
  onModuleInit(): void {
    const { all } = this.provided(ServingRegistry);
    const service = this.provided(ServingService);
    this.models = new OfferedModels(this.options, all, (name) => service.get(name));
    this.inference = new Inference(this.models);
    for (const model of this.models.all) {
      const counts = new StatisticsOfModel();
      this.counts.set(model, counts);
      this.observed.add(counts.observe(model));
    }
  }

  /** @internal Called by Nest, before anything ends. */
  onModuleDestroy(): void {
    this.isClosing = true;
  }

  /** @internal Called by Nest. */
  onApplicationShutdown(): void {
    this.observed.unsubscribe();
  }

  metadata(): ServerMetadata {
    const extensions = this.options.repository ? [...EXTENSIONS, ...REPOSITORY] : EXTENSIONS;
    return { name: 'nestjs-serving', version: this.version, extensions };
  }

  get isReady(): boolean {
    return this.models.loaded.every(({ isReady }) => isReady);
  }

  get shutdownLimit(): number {
    return Math.max(0, ...this.models.all.map(({ shutdownLimit }) => shutdownLimit));
  }

  /** @throws UnknownServingError for a model or version not offered */
  isModelReady(name: string, version?: string): boolean {
    return this.models.find(name, version).isReady;
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

  /** Of one model, or all loaded ones. */
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
   * If reloading fails, the present model continues.
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

  /** @throws NotImplementedException unless the option `repository` is set */
  checkRepository(): void {
    if (!this.options.repository) {
      throw new NotImplementedException(
        'Clients cannot load or unload models here; the option "repository" allows it',
      );
    }
  }

  /** Not injected: ServingModule need not be global. */
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
