import {
  Inject,
  Injectable,
  Logger,
  type OnApplicationBootstrap,
  type OnApplicationShutdown,
  type OnModuleInit,
} from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import {
  InvalidInputError,
  InvalidServingError,
  type Serving,
  type ServingHealth,
  ServingService,
  UnknownServingError,
} from '../../index.js';
import { checkOptions, isRecord, type Rule, type Rules } from '../../doors/options.js';
import {
  BatchedMethods,
  type ClusterNode,
  ServingRegistry,
  type ServingStatus,
} from '../../doors/servings.js';
import { formatValue, messageOf } from '../../doors/text.js';
import { resolveBoard, type ResolvedBoard, type ServingBoardOptions } from './options.js';
import { PageFiles } from './page-files.js';
import { Recorder } from './recorder.js';

export const BOARD_OPTIONS = Symbol('options of the serving board');
export const BOARD_PATH = Symbol('path of the serving board');

@Injectable()
export class ServingBoard implements OnModuleInit, OnApplicationBootstrap, OnApplicationShutdown {
  readonly options: ResolvedBoard;
  files!: PageFiles;
  private readonly logger = new Logger('ServingBoard');
  /** Undefined if the application ends before it has begun. */
  private recorder: Recorder | undefined;
  private view!: View;

  constructor(
    @Inject(BOARD_OPTIONS) options: ServingBoardOptions,
    @Inject(BOARD_PATH) private readonly path: string,
    private readonly moduleRef: ModuleRef,
  ) {
    this.options = resolveBoard(options);
  }

  /** @internal Called by Nest. */
  async onModuleInit(): Promise<void> {
    const { seconds, changes } = this.options;
    this.files = await PageFiles.read(this.path.split('/').at(-1)!);
    const servings = this.servings();
    const registry = this.provided(ServingRegistry);
    const nodes = () => registry.router?.nodes();
    const recorder = new Recorder(seconds, this.provided(ServingService), servings);
    const allowsChanges = changes !== undefined;
    this.recorder = recorder;
    this.view = new View({ recorder, servings, nodes, allowsChanges, seconds });
  }

  /** @internal Called by Nest, when all servings are loaded. */
  onApplicationBootstrap(): void {
    this.recorder?.begin();
  }

  /** @internal Called by Nest. */
  onApplicationShutdown(): void {
    this.recorder?.close();
  }

  poll(query: ViewQuery): string {
    this.recorder?.viewed();
    return this.view.json(query);
  }

  /** @throws ServingError if the change can't be made */
  async change(body: unknown): Promise<void> {
    try {
      this.logger.log(await makeChange(body, this.servings()()));
    } catch (error) {
      this.logger.warn(`A change was refused: ${messageOf(error)}`);
      throw error;
    } finally {
      this.view.changed();
    }
  }

  /** Excludes servings that run only on other nodes. */
  private servings(): () => Iterable<readonly [string, Serving]> {
    const registry = this.provided(ServingRegistry);
    const methods = this.provided(BatchedMethods);
    return function* () {
      const { router } = registry;
      for (const [name, serving] of registry.all) {
        // A test's replacement may have no counters.
        if (!router?.isRemote(serving) && typeof serving.counters === 'function') {
          yield [name, serving];
        }
      }
      yield* methods.servings;
    };
  }

  private provided<Provider>(type: abstract new (...args: never[]) => Provider): Provider {
    try {
      // ServingModule need not be global.
      return this.moduleRef.get(type, { strict: false });
    } catch (cause) {
      throw new InvalidServingError(
        'ServingBoardModule shows the servings of ServingModule, which the application does not ' +
          'import; add ServingModule.forRoot({ servings: [...] }) to the imports of its root module',
        { cause },
      );
    }
  }
}

interface Change {
  readonly serving: string;
  readonly change: keyof typeof changes;
  /** Defaults to all keys. */
  readonly key?: string;
  readonly value?: number;
  /** Label of the new version, after `reload`. */
  readonly version?: string;
}

const changes = {
  pause: (serving: Serving) => serving.pause(),
  drain: (serving: Serving) => serving.drain(),
  resume: (serving: Serving) => serving.resume(),
  batchSize: (serving: Serving, { value, key }: Change) =>
    serving.setBatchSize(required('value', value), key),
  batchTimeout: (serving: Serving, { value, key }: Change) =>
    serving.setBatchTimeout(required('value', value), key),
  reload: async (serving: Serving, { version }: Change) => {
    await serving.reload({ ...(version !== undefined && { version }) });
  },
  promote: (serving: Serving, { version }: Change) =>
    serving.version(required('version', version)).promote(),
  rollback: (serving: Serving, { version }: Change) =>
    serving.version(required('version', version)).rollback(),
};

const text: Rule = {
  check: (value) => typeof value === 'string' && value !== '',
  allowed: 'a string that is not empty',
};
const rules: Rules = {
  serving: { ...text, isRequired: true },
  change: {
    check: (value) => typeof value === 'string' && Object.hasOwn(changes, value),
    allowed: Object.keys(changes).join(', '),
    isRequired: true,
  },
  key: { ...text, check: (value) => typeof value === 'string' },
  value: { check: (value) => typeof value === 'number', allowed: 'a number' },
  version: text,
};

/**
 * Describes the change, for the log.
 *
 * @throws InvalidInputError for an invalid body, UnknownServingError, and the serving's errors
 */
export async function makeChange(
  body: unknown,
  servings: Iterable<readonly [string, Serving]>,
): Promise<string> {
  const change = changeOf(body);
  const [, serving] = [...servings].find(([name]) => name === change.serving) ?? [];
  if (!serving) {
    throw new UnknownServingError(`There is no serving ${formatValue(change.serving)}`);
  }
  await changes[change.change](serving, change);
  const { serving: name, change: what, ...rest } = change;
  return `Serving "${name}": ${what} ${JSON.stringify(rest)}`;
}

function changeOf(body: unknown): Change {
  if (!isRecord(body)) {
    throw new InvalidInputError(
      `The body of a change is ${formatValue(body)}; send JSON: { "serving": "...", "change": "pause" }`,
    );
  }
  try {
    checkOptions('The change', body, rules);
  } catch (cause) {
    throw new InvalidInputError((cause as Error).message, { cause });
  }
  return body as unknown as Change;
}

function required<Value>(name: string, value: Value | undefined): Value {
  if (value === undefined) {
    throw new InvalidInputError(`The change has no "${name}"`);
  }
  return value;
}

/** Seconds in the list's means. */
const RECENT = 5;

export interface ListedServing extends Omit<ServingHealth, 'serving' | 'partitions'> {
  readonly name: string;
  readonly held?: Serving['held'];
  readonly partitions: { readonly up: number; readonly all: number };
  /** Ended calls per second, including failed ones. */
  readonly calls: number;
  readonly failed: number;
  readonly rows: number;
  readonly rowsPerBatch: number;
}

type ListedNode = Pick<ClusterNode, 'id' | 'state' | 'isSelf'> & Omit<ServingStatus, 'signature'>;

export interface ViewQuery {
  readonly serving: string | undefined;
  /** The page's last second. */
  readonly since: number;
  /** The page's last batch. */
  readonly batch: number;
}

export interface ViewOptions {
  readonly recorder: Recorder;
  readonly servings: () => Iterable<readonly [string, Serving]>;
  readonly nodes: () => readonly ClusterNode[] | undefined;
  readonly allowsChanges: boolean;
  readonly seconds: number;
}

/** Shares the list, made once a second, among viewers. */
export class View {
  private list: { readonly second: number; readonly text: string } | undefined;

  constructor(private readonly options: ViewOptions) {}

  json({ serving, since, batch }: ViewQuery): string {
    const { allowsChanges, recorder, seconds } = this.options;
    const { second, watchedSince } = recorder;
    const rest = {
      second,
      now: Date.now(),
      seconds,
      watchedSince,
      changes: allowsChanges,
      detail: this.detail(serving, since, batch),
    };
    return `{"servings":${this.listText()},${JSON.stringify(rest).slice(1)}`;
  }

  changed(): void {
    this.list = undefined;
  }

  private listText(): string {
    const { recorder, servings } = this.options;
    const { second } = recorder;
    if (this.list?.second !== second) {
      const all = [...servings()].map(([name, serving]) => this.listed(name, serving));
      this.list = { second, text: JSON.stringify(all) };
    }
    return this.list.text;
  }

  private listed(name: string, serving: Serving): ListedServing {
    const { serving: _, partitions, ...health } = serving.health();
    const history = this.options.recorder.historyOf(name);
    const mean = (figure: 'answered' | 'failed' | 'rows' | 'batches'): number =>
      history?.mean(figure, RECENT) ?? 0;
    const [failed, rows, batches] = [mean('failed'), mean('rows'), mean('batches')];
    return {
      name,
      ...health,
      held: serving.held,
      partitions: {
        up: partitions.filter(({ state }) => state === 'up').length,
        all: partitions.length,
      },
      calls: mean('answered') + failed,
      failed,
      rows,
      rowsPerBatch: batches === 0 ? 0 : rows / batches,
    };
  }

  private detail(name: string | undefined, since: number, batch: number): object | undefined {
    const { nodes, recorder, servings } = this.options;
    const serving = [...servings()].find(([each]) => each === name)?.[1];
    const history = name === undefined ? undefined : recorder.historyOf(name);
    if (name === undefined || !serving || !history) {
      return undefined;
    }
    return {
      name,
      counters: serving.counters(),
      keys: serving.keys(),
      targets: serving.targets(),
      partitions: serving.partitions(),
      versions: serving.versions(),
      nodes: nodes()?.flatMap((node) => listedNode(node, name)),
      from: history.firstAfter(since),
      figures: history.since(since),
      batches: recorder.batchesOf(name, batch),
    };
  }
}

function listedNode({ id, state, isSelf, servings }: ClusterNode, name: string): ListedNode[] {
  const status = servings.find((each) => each.name === name);
  if (!status) {
    return [];
  }
  const { signature: _, ...load } = status;
  return [{ id, state, isSelf, ...load }];
}
