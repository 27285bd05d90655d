import { availableParallelism } from 'node:os';
import {
  InvalidServingError,
  type ModelRunner,
  type RemoteModel,
  ServingLoadError,
  type ServingOptions,
} from '../../index.js';
import {
  checkOptions,
  type Fetching,
  formatValue,
  isRecord,
  type Rule,
  type Rules,
} from '../../internal.js';
import { type ModelFiles, needConfig, type Repository, repositoryOf } from './repository.js';

/**
 * A model with the files beside it, and where it runs. Without `intraOpNumThreads` the session of a
 * single partition uses all cores but one, and both of two.
 */
export interface TaskModelOptions extends Pick<
  ModelRunner,
  'session' | 'isolation' | 'blockingLimit'
> {
  /**
   * The model's files in the layout of the Hugging Face Hub: a folder, a repository of the Hub
   * (`hf:org/repo` or `hf:org/repo@revision`, all files at one commit), or the files themselves.
   */
  readonly from: string | URL | ModelFiles;
  /**
   * The ONNX file in it.
   *
   * @default 'onnx/model.onnx', or else 'model.onnx'
   */
  readonly file?: string;
}

/** A folder, a repository of the Hub, or these with options. */
export type TaskModel = string | URL | TaskModelOptions;

/** The options that a task sets itself. */
type OwnOptions = 'preprocess' | 'postprocess' | 'postprocessStream';

/** The options of a task, beside those of any serving. */
export interface TaskOptions<Input, Output> extends Omit<
  ServingOptions<Input, Output>,
  OwnOptions
> {
  /** The model, and the files that the task reads beside it. */
  readonly model: TaskModel;
}

/** One of these values. */
export const oneOf = (...values: readonly unknown[]): Rule => ({
  check: (value) => values.includes(value),
  allowed: values.map(formatValue).join(' or '),
});

const ofModel: Rules = {
  from: {
    check: (value) => (typeof value === 'string' && value !== '') || isRecord(value),
    allowed: 'a folder, hf:org/repo, or an object of files',
    isRequired: true,
  },
  file: { check: (value) => typeof value === 'string' && value !== '', allowed: 'a path' },
  session: { check: isRecord, allowed: 'an object' },
  isolation: oneOf('thread', 'process', 'none'),
  blockingLimit: { check: (value) => typeof value === 'number', allowed: 'milliseconds' },
};

type SessionOptions = ModelRunner['session'];

function isOnCpu({ executionProviders = [] }: SessionOptions = {}): boolean {
  // A wrong type is refused later.
  return [executionProviders]
    .flat()
    .every((each) => (typeof each === 'string' ? each : each.name) === 'cpu');
}

/** For models whose steps hand on a cache. They have a thread or a process to themselves. */
export const ofSteps: Rules = {
  isolation: oneOf('thread', 'process'),
  blockingLimit: { check: () => false, allowed: 'nothing here' },
  session: {
    check: (value) => isRecord(value) && isOnCpu(value),
    allowed:
      'an object with no provider but the CPU: elsewhere the runtime would copy the cache ' +
      'between two tokens; use a server made for that, such as vLLM',
  },
};

/** The files of a model that is being fetched. */
export interface LoadingFiles {
  readonly repository: Repository;
  /** Of config.json. */
  readonly config: Record<string, unknown>;
  readonly fetching: Fetching;
}

/** A model that a serving fetches when it starts, with the files that its task reads beside it. */
export abstract class FetchedModel<Input, Output, Loaded> implements RemoteModel {
  readonly name: string;
  readonly owner: string;
  readonly place: TaskModelOptions;
  /** The options of any serving. */
  readonly others: Omit<ServingOptions<Input, Output>, OwnOptions>;
  private loaded: Loaded | undefined;

  /**
   * @param own rules of the task's own options
   * @param ownOfModel the same for those of its model
   */
  constructor(
    task: string,
    options: TaskOptions<Input, Output>,
    own: Rules,
    ownOfModel: Rules = {},
  ) {
    const { name, model } = options;
    this.owner = `Serving ${formatValue(name)} with ${task}`;
    this.place = typeof model === 'string' || model instanceof URL ? { from: model } : model;
    const isOwn = ([each]: readonly [string, unknown]): boolean => Object.hasOwn(own, each);
    const given = Object.entries(options);
    checkOptions(this.owner, Object.fromEntries(given.filter(isOwn)), own);
    this.others = Object.fromEntries(given.filter((entry) => !isOwn(entry))) as never;
    checkOptions(this.owner, this.place, { ...ofModel, ...ownOfModel }, 'model.');
    this.name = repositoryOf(this.owner, this.place.from).name;
  }

  /** Reads the files that the task needs beside the ONNX file. */
  protected abstract read(files: LoadingFiles): Promise<Loaded>;

  /** Fetches the ONNX file and reads what the task needs beside it. */
  async fetch(fetching: Fetching): Promise<string | Uint8Array> {
    // A later start may find other files.
    const repository = repositoryOf(this.owner, this.place.from);
    const config = await needConfig(repository, 'config.json', fetching);
    this.loaded = await this.read({ repository, config, fetching });
    return this.fetchOne(repository, this.candidates, fetching, this.fileOption);
  }

  /** How the serving runs the model. */
  get runner(): ModelRunner {
    const { isolation, blockingLimit } = this.place;
    return {
      file: this,
      session: { ...this.threads, ...this.place.session },
      ...(isolation && { isolation }),
      ...(blockingLimit !== undefined && { blockingLimit }),
    };
  }

  /**
   * A lone partition gets both cores of a small machine: the event loop needs little of one beside
   * such a model, and a call alone is answered 1.7 times as fast.
   */
  private get threads(): { readonly intraOpNumThreads?: number } {
    const { partitions = 1 } = this.others;
    const isAlone = partitions === 1 && this.place.isolation !== 'none';
    const cores = availableParallelism();
    return isAlone ? { intraOpNumThreads: Math.max(Math.min(cores, 2), cores - 1) } : {};
  }

  /** Without the core that the event loop needs, for models whose steps take theirs all the time. */
  get threadsOfSteps(): number {
    const { partitions = 1 } = this.others;
    const count = Array.isArray(partitions) ? partitions.length : Number(partitions);
    return Math.max(1, Math.floor((availableParallelism() - 1) / count));
  }

  /** Of a model with the rules `ofSteps`. */
  get isolationOfSteps(): 'thread' | 'process' | undefined {
    return this.place.isolation as 'thread' | 'process' | undefined;
  }

  get isOnCpu(): boolean {
    return isOnCpu(this.place.session);
  }

  protected get ready(): Loaded {
    if (!this.loaded) {
      throw new InvalidServingError(`${this.owner} has not loaded its model`);
    }
    return this.loaded;
  }

  /** The option that names the ONNX file. */
  protected readonly fileOption: string = 'file';

  /** The paths at which the ONNX file may be. */
  protected get candidates(): readonly string[] {
    return this.place.file === undefined ? MODEL_FILES : [this.place.file];
  }

  /** @throws ServingLoadError if the repository has none of these files */
  protected async fetchOne(
    repository: Repository,
    candidates: readonly string[],
    fetching: Fetching,
    option: string,
  ): Promise<string | Uint8Array> {
    for (const path of candidates) {
      const found = await repository.fetch(path, fetching);
      if (found !== undefined) {
        return found;
      }
    }
    throw new ServingLoadError(
      `${repository.name} has no ${candidates.join(' and no ')}; name its ONNX file: model: ` +
        `{ from: ..., ${option}: 'path/to/model.onnx' }`,
    );
  }
}

const MODEL_FILES = ['onnx/model.onnx', 'model.onnx'];
