import { createHash } from 'node:crypto';
import { availableParallelism } from 'node:os';
import {
  InvalidInputError,
  InvalidServingError,
  type ModelRepository,
  type ModelRunner,
  type PartitionOptions,
  type RemoteModel,
  type RemoteFiles,
  ServingLoadError,
  type ServingOptions,
  type ServingSignature,
} from '../../index.js';
import { type AcceptedAxes, type Fetching, openForThreads } from '../../doors/models.js';
import {
  checkOptions,
  groupOf,
  isRecord,
  oneOf,
  type Rules,
  runtimeRules,
} from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import {
  hashing,
  type ModelFiles,
  needConfig,
  onnxFile,
  type OnnxFile,
  placeOfPath,
  type Repository,
  repositoryOf,
} from './repository.js';

/**
 * Model with its other files, and where it runs. Without `intraOpNumThreads`, a single partition's
 * session uses all cores but one, and both of two.
 */
export interface TaskModelOptions extends Pick<
  ModelRunner,
  'session' | 'isolation' | 'blockingLimit' | 'checkRows'
> {
  /**
   * Files of the model in the Hugging Face Hub's layout: a folder, a repository of the Hub
   * (`hf:org/repo` or `hf:org/repo@revision`, all files at one commit), or the files themselves.
   */
  readonly from: string | URL | ModelFiles;
  /**
   * ONNX file in it.
   *
   * @default 'onnx/model.onnx', or else 'model.onnx'
   */
  readonly file?: string;
}

/** Folder, repository of the Hub, or these with options. */
export type TaskModel = string | URL | TaskModelOptions;

/** @throws InvalidInputError for an option that a call of the task does not have */
export function refuseUnknown(owner: string, given: object, known: readonly string[]): void {
  const unknown = Object.entries(given).find(
    ([name, value]) => value !== undefined && !known.includes(name),
  );
  if (unknown) {
    throw new InvalidInputError(
      `${owner} was given the unknown option ${formatValue(unknown[0])}; known are ${known.join(', ')}`,
    );
  }
}

type OwnOptions = 'preprocess' | 'postprocess' | 'postprocessStream';

/** Options of a task and of any serving. */
export interface TaskOptions<Input, Output> extends Omit<
  ServingOptions<Input, Output>,
  OwnOptions
> {
  /** Model with the other files that the task reads. */
  readonly model: TaskModel;
}

const ofRepository: Rules = {
  from: {
    check: (value) => (typeof value === 'string' && value !== '') || isRecord(value),
    allowed: 'a folder, hf:org/repo, or an object of files',
    isRequired: true,
  },
  file: { check: (value) => typeof value === 'string' && value !== '', allowed: 'a path' },
};

const ofModel: Rules = {
  ...ofRepository,
  session: groupOf(runtimeRules),
  isolation: oneOf('thread', 'process', 'native', 'none'),
  blockingLimit: { check: (value) => typeof value === 'number', allowed: 'milliseconds' },
  checkRows: oneOf(true, false),
};

type SessionOptions = ModelRunner['session'];

function isCpu(provider: unknown): boolean {
  return (isRecord(provider) ? provider['name'] : provider) === 'cpu';
}

/** Rules of models whose steps hand on a cache, and need their own thread or process. */
export const ofSteps: Rules = {
  isolation: oneOf('thread', 'process'),
  blockingLimit: { check: () => false, allowed: 'nothing here' },
  checkRows: { check: () => false, allowed: 'nothing here' },
  session: groupOf({
    ...runtimeRules,
    executionProviders: {
      check: (value) => Array.isArray(value) && value.every(isCpu),
      allowed:
        'no provider but the CPU: elsewhere the runtime would copy the cache between two tokens; ' +
        'use a server made for that, such as vLLM',
    },
  }),
};

export interface LoadingFiles {
  readonly repository: Repository;
  /** Content of config.json. */
  readonly config: Record<string, unknown>;
  readonly fetching: Fetching;
}

interface Movable<Fetched> {
  readonly name: string;
  fetch(fetching: Fetching): Promise<Fetched>;
  moved(model: unknown): Movable<Fetched>;
}

export interface FetchedModel<Facts, File = string | Uint8Array> {
  readonly file: File;
  readonly facts: Facts;
  /** Hash of the files read. */
  readonly content: string;
  /** Name of the repository. */
  readonly name: string;
}

/**
 * Parts of a task's model that all versions share. Facts, read from other files, belong to one
 * version.
 */
export abstract class ModelOfTask<Input, Output, Facts> {
  readonly owner: string;
  readonly place: TaskModelOptions;
  /** Options of any serving. */
  readonly others: Omit<ServingOptions<Input, Output>, OwnOptions>;

  /**
   * @param own rules of the task's options
   * @param ownOfModel rules of its model options
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
  }

  /** Reads files other than the ONNX file. */
  protected abstract read(files: LoadingFiles): Promise<Facts>;

  /** @throws InvalidServingError at the start if the model is of another task */
  protected abstract accept(signature: ServingSignature, facts: Facts): AcceptedAxes | undefined;

  get runner() {
    const { isolation, blockingLimit, checkRows } = this.place;
    const file: RemoteModel<Facts> = this.movable(async (fetching, place) => {
      const { facts, ...fetched } = await this.fetch(fetching, place);
      return { ...fetched, facts, accept: (signature) => this.accept(signature, facts) };
    });
    return {
      file,
      session: { ...this.threads, ...this.place.session },
      ...(isolation && { isolation }),
      ...(blockingLimit !== undefined && { blockingLimit }),
      ...(checkRows !== undefined && { checkRows }),
    };
  }

  /** Files for threads and processes that run the model step by step. */
  forSteps(
    optionsOf: (fetched: FetchedModel<Facts, OnnxFile>) => PartitionOptions,
  ): RemoteFiles<Facts> {
    return this.movable(async (fetching, place) => {
      const found = await this.fetch(fetching, place);
      const { facts, content } = found;
      const file = await onnxFile(found.file);
      const models = [file, ...this.otherModels(facts)];
      return {
        facts,
        content: [content, ...models.map(({ sha256 }) => sha256)].join(' '),
        options: optionsOf({ ...found, file }),
        share: (partitions) => this.sharedByThreads(models, partitions),
      };
    });
  }

  /**
   * Opens the models' sessions once for all threads, unless their options differ. Each thread checks
   * that the files are unchanged.
   */
  private async sharedByThreads(
    models: readonly OnnxFile[],
    partitions: readonly PartitionOptions[],
  ): ReturnType<typeof openForThreads> {
    if (partitions.some((own) => Object.keys(own).length > 0)) {
      return undefined;
    }
    return openForThreads(models, { ...this.sessionOfSteps });
  }

  protected otherModels(_facts: Facts): readonly OnnxFile[] {
    return [];
  }

  /** Fetches from the definition's place, or from a reload's. */
  protected movable<Fetched>(
    fetch: (fetching: Fetching, place: TaskModelOptions) => Promise<Fetched>,
    place = this.place,
  ): Movable<Fetched> {
    return {
      // Refuses an unknown place.
      name: repositoryOf(this.owner, place.from).name,
      fetch: (fetching) => fetch(fetching, place),
      moved: (model) => this.movable(fetch, { ...place, ...placeOf(this.owner, model) }),
    };
  }

  protected async fetch(fetching: Fetching, place: TaskModelOptions): Promise<FetchedModel<Facts>> {
    // A later load may find other files.
    const hash = createHash('sha256');
    const repository = hashing(repositoryOf(this.owner, place.from), hash);
    const config = await needConfig(repository, 'config.json', fetching);
    const facts = await this.read({ repository, config, fetching });
    const file = await this.fetchOne(
      repository,
      this.candidatesIn(place),
      fetching,
      this.fileOption,
    );
    return { file, facts, content: hash.digest('hex'), name: repository.name };
  }

  /**
   * A lone partition gets both cores of a small machine: the event loop needs little of one, and a
   * call alone is 1.7 times as fast.
   */
  private get threads(): { readonly intraOpNumThreads?: number } {
    const { partitions = 1 } = this.others;
    const isAlone = partitions === 1 && this.place.isolation !== 'none';
    const cores = availableParallelism();
    return isAlone ? { intraOpNumThreads: Math.max(Math.min(cores, 2), cores - 1) } : {};
  }

  /** Leaves a core to the event loop, since steps take theirs all the time. */
  get sessionOfSteps(): NonNullable<SessionOptions> {
    const { partitions = 1 } = this.others;
    const count = Array.isArray(partitions) ? partitions.length : Number(partitions);
    const intraOpNumThreads = Math.max(1, Math.floor((availableParallelism() - 1) / count));
    return { intraOpNumThreads, ...this.place.session };
  }

  get isolationOfSteps(): 'thread' | 'process' | undefined {
    return this.place.isolation as 'thread' | 'process' | undefined;
  }

  get isOnCpu(): boolean {
    return this.place.session?.executionProviders?.every(isCpu) ?? true;
  }

  /** Option that names the ONNX file. */
  protected readonly fileOption: string = 'file';

  protected candidatesIn({ file }: TaskModelOptions): readonly string[] {
    return file === undefined ? MODEL_FILES : [file];
  }

  /** @throws ServingLoadError without any of these files */
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

/**
 * Repository of a reload, for the tokenizer, labels and all else, and its ONNX file, if named.
 *
 * @throws InvalidServingError for a file without its repository
 */
function placeOf(owner: string, model: unknown): ModelRepository {
  if (isRepository(model)) {
    const { from, file } = model;
    checkOptions(`The reload of ${owner}`, { from, file }, ofRepository, 'model.');
    return { from, ...(file !== undefined && { file }) };
  }
  const given = isRecord(model) && 'file' in model ? model['file'] : model;
  if (typeof given === 'string' || given instanceof URL) {
    return placeOfPath(owner, given);
  }
  throw new InvalidServingError(
    `${owner} was given an ONNX file alone, and its tokenizer, labels and limits belong to the ` +
      "file; give the repository of both: reload({ model: { from: 'folder', file: 'model.onnx' } })",
  );
}

function isRepository(model: unknown): model is ModelRepository {
  return isRecord(model) && model['from'] !== undefined;
}
