import {
  type CanActivate,
  HttpStatus,
  Inject,
  Injectable,
  type OnModuleInit,
  type Type,
} from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import {
  InvalidServingError,
  type Serving,
  type ServingDefinition,
  ServingService,
} from '../../index.js';
import { hasRawScores, type TaskKind, taskOf } from '../../encoding/task-kind.js';
import { checkOptions, isRecord, type Rules, whole } from '../../doors/options.js';
import { guardList, ServingRegistry } from '../../doors/servings.js';
import { closestName, formatValue } from '../../doors/text.js';
import { RequestError } from './http.js';

/**
 * Serving with its task, if no task of `nestjs-serving/tasks` defines it here: another node's, or
 * your own with the same inputs and replies.
 */
export interface OfferedTask {
  /** Serving, by name or definition. */
  readonly serving: string | ServingDefinition;
  /**
   * Task of its calls: `{ text, prompt?, dimensions? }` and `{ vector, tokens }`; `{ query,
   * documents, top? }` and a list of `{ index, score }`; `{ text, pair?, order? }` and a list of
   * `{ label, score }`; `{ messages, ... }` and `{ text, ... }` as `textGeneration`; or `{ audio,
   * language?, task? }` and `{ text, segments, ... }` as `speechToText`.
   */
  readonly task: TaskKind;
}

/** Options of `OpenAIModule.forRoot`, in addition to `path`. */
export interface OpenAIOptions {
  /** Models of the API by id: definitions that tasks made, or servings with their task. */
  readonly models: Readonly<Record<string, ServingDefinition | OfferedTask>>;
  /**
   * Guards of all routes, as for `@UseGuards`. They run before a body is read. Pass `[]` if global
   * guards or the network keep strangers away.
   */
  readonly guards: readonly (Type<CanActivate> | CanActivate)[];
  /**
   * Most texts of a request for embeddings, and documents of a request to rerank. A serving with
   * less room in its queue lowers it.
   *
   * @default 2048
   */
  readonly inputs?: number;
  /**
   * Maximum request size in bytes.
   *
   * @default 16777216
   */
  readonly bodyLimit?: number;
}

export const OWNER = 'OpenAIModule';

const PATHS: Readonly<Record<TaskKind, string>> = {
  'text-embedding': '/v1/embeddings',
  rerank: '/v1/rerank',
  'text-classification': '/tei/predict',
  'text-generation': '/v1/chat/completions',
  'speech-to-text': '/v1/audio/transcriptions',
};

const isKind = (value: unknown): value is TaskKind =>
  typeof value === 'string' && Object.hasOwn(PATHS, value);

export const rules: Rules = {
  models: {
    check: (value) => isRecord(value) && Object.keys(value).length > 0,
    allowed: 'an object of at least one definition of a task by id',
    isRequired: true,
  },
  guards: {
    ...guardList,
    allowed: `${guardList.allowed}; [] where global guards or the network keep strangers away`,
    isRequired: true,
  },
  inputs: whole(1, 2 ** 16),
  bodyLimit: whole(1, 2 ** 29 - 24), // The longest string.
};

const ofTask: Rules = {
  serving: {
    check: (value) => (typeof value === 'string' && value !== '') || isRecord(value),
    allowed: 'a name or a definition',
    isRequired: true,
  },
  task: {
    check: isKind,
    allowed: Object.keys(PATHS).map(formatValue).join(' or '),
    isRequired: true,
  },
};

export const OPENAI_OPTIONS = Symbol('OpenAI options');

/** Serving that clients call by a model's id. */
export interface OfferedModel {
  readonly id: string;
  readonly task: TaskKind;
  readonly serving: Serving;
  /** Most texts of a request. */
  readonly inputs: number;
  /** True for a reranker whose scores are the model's own numbers. */
  readonly hasRawScores: boolean;
}

export interface ModelDescription {
  readonly id: string;
  readonly object: 'model';
  /** Seconds since 1970. */
  readonly created: number;
  readonly owned_by: string;
}

@Injectable()
export class OfferedModels implements OnModuleInit {
  readonly bodyLimit: number;
  readonly guards: OpenAIOptions['guards'];
  private byId: ReadonlyMap<string, OfferedModel> = new Map();
  private readonly created = Math.floor(Date.now() / 1000);

  /** @throws InvalidServingError for unknown or invalid options */
  constructor(
    @Inject(OPENAI_OPTIONS) private readonly options: OpenAIOptions,
    @Inject(ModuleRef) private readonly moduleRef: ModuleRef,
  ) {
    checkOptions(OWNER, options, rules);
    this.guards = options.guards;
    this.bodyLimit = options.bodyLimit ?? 16 * 2 ** 20;
  }

  /** @internal Called by Nest: a model without serving or task fails the boot. */
  onModuleInit(): void {
    const models = Object.entries(this.options.models);
    this.byId = new Map(models.map(([id, given]) => [id, this.offered(id, given)]));
  }

  /** @throws RequestError for an unknown model, and for one with another task */
  find(id: unknown, task?: TaskKind): OfferedModel {
    if (typeof id !== 'string') {
      throw new RequestError(`"model" is ${formatValue(id)}, and must be a model's id`, 'model');
    }
    const model = this.byId.get(id);
    if (!model) {
      const known = [...this.byId.keys()].map(formatValue).join(', ');
      throw new RequestError(
        `There is no model ${formatValue(id)}; the models are ${known}`,
        'model',
        HttpStatus.NOT_FOUND,
        'model_not_found',
      );
    }
    if (task && task !== model.task) {
      throw new RequestError(
        `The model ${formatValue(id)} answers ${PATHS[model.task]}, and not ${PATHS[task]}`,
        'model',
      );
    }
    return model;
  }

  /**
   * Model of an API whose requests name none: the only one of the task.
   *
   * @throws RequestError without one, and with several unless the address names one
   */
  only(task: TaskKind, id: string | undefined): OfferedModel {
    if (id !== undefined) {
      return this.find(id, task);
    }
    const [model, ...others] = [...this.byId.values()].filter((each) => each.task === task);
    if (!model || others.length > 0) {
      const names = others.map((each) => formatValue(each.id)).join(', ');
      throw new RequestError(
        model
          ? `Several models answer this path: ${formatValue(model.id)}, ${names}; name one in the address: ?model=...`
          : 'No model of this server answers this path',
        'model',
        HttpStatus.NOT_FOUND,
        'model_not_found',
      );
    }
    return model;
  }

  list(): readonly ModelDescription[] {
    return [...this.byId.keys()].map((id) => this.describe(id));
  }

  /** @throws RequestError for an unknown model */
  describe(id: string): ModelDescription {
    const { id: found } = this.find(id);
    return { id: found, object: 'model', created: this.created, owned_by: 'nestjs-serving' };
  }

  private offered(id: string, given: ServingDefinition | OfferedTask): OfferedModel {
    const { serving, task } = offerOf(id, given);
    const registry = this.provided(ServingRegistry);
    const name = typeof serving === 'string' ? serving : serving.name;
    const own = registry.find(name);
    if (!own && !registry.router) {
      const names = [...registry.all.keys()];
      const meant = closestName(name, names);
      throw new InvalidServingError(
        `${OWNER}: the model ${formatValue(id)} is the serving ${formatValue(name)}, which does ` +
          `not exist; ${meant === undefined ? '' : `did you mean "${meant}"? `}registered are: ` +
          (names.toSorted().join(', ') || 'none'),
      );
    }
    const { inputs = 2048 } = this.options;
    // Each text to embed is a row; the serving counts the rows of documents.
    const room = task === 'text-embedding' ? own?.local?.profile.maxRowsPerCall : undefined;
    const handle = this.provided(ServingService).get(serving);
    return {
      id,
      task,
      serving: handle,
      inputs: Math.min(inputs, room ?? inputs),
      hasRawScores: typeof serving !== 'string' && hasRawScores(serving),
    };
  }

  /** Looked up, because ServingModule need not be global. */
  private provided<T>(type: new (...args: never[]) => T): T {
    try {
      return this.moduleRef.get<T>(type, { strict: false });
    } catch (cause) {
      throw new InvalidServingError(
        `${OWNER} needs the servings of the application; import ServingModule.forRoot next to it`,
        { cause },
      );
    }
  }
}

function offerOf(id: string, given: unknown): OfferedTask {
  const owner = `${OWNER}: models.${id}`;
  if (isRecord(given) && 'serving' in given) {
    checkOptions(owner, given, ofTask);
    return given as unknown as OfferedTask;
  }
  const task = isRecord(given) ? taskOf(given) : undefined;
  if (!task) {
    throw new InvalidServingError(
      `${owner} is ${isRecord(given) ? 'a definition of no task that these routes answer' : formatValue(given)}; ` +
        'give one that textEmbedding, rerank, textClassification, textGeneration or speechToText made (other ' +
        'tasks have no route), or a serving with the same inputs and replies and its ' +
        "task: { serving: 'name', task: 'text-embedding' }",
    );
  }
  return { serving: given as ServingDefinition, task };
}
