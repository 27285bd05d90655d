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
  ServingService,
  UnknownServingError,
} from '../../index.js';
import {
  BatchedMethods,
  checkOptions,
  formatValue,
  isRecord,
  messageOf,
  type Rule,
  type Rules,
  ServingRegistry,
} from '../../internal.js';
import { resolveBoard, type ResolvedBoard, type ServingBoardOptions } from './options.js';
import { PageFiles } from './page-files.js';
import { Recorder } from './recorder.js';
import { View, type ViewQuery } from './view.js';

export const BOARD_OPTIONS = Symbol('options of the serving board');
export const BOARD_PATH = Symbol('path of the serving board');

@Injectable()
export class ServingBoard implements OnModuleInit, OnApplicationBootstrap, OnApplicationShutdown {
  readonly options: ResolvedBoard;
  files!: PageFiles;
  private readonly logger = new Logger('ServingBoard');
  private recorder!: Recorder;
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
    this.recorder.begin();
  }

  /** @internal Called by Nest. */
  onApplicationShutdown(): void {
    this.recorder.close();
  }

  poll(query: ViewQuery): string {
    this.recorder.viewed();
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

  /** Without servings that run only on other nodes. */
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
  /** All keys by default. */
  readonly key?: string;
  /** A batch size or timeout. */
  readonly value?: number;
  /** For `reload`, the new version's label. */
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
