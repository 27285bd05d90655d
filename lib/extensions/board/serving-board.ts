import {
  Inject,
  Injectable,
  Logger,
  type OnApplicationBootstrap,
  type OnApplicationShutdown,
  type OnModuleInit,
} from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import { InvalidServingError, type Serving, ServingService } from '../../index.js';
import { BatchedMethods, messageOf, ServingRegistry } from '../../internal.js';
import { makeChange } from './changes.js';
import { type ResolvedBoard, type ServingBoardOptions, resolveBoard } from './options.js';
import { PageFiles } from './page-files.js';
import { Recorder } from './recorder.js';
import { View, type ViewQuery } from './view.js';

export const BOARD_OPTIONS = Symbol('options of the serving board');
export const BOARD_PATH = Symbol('path of the serving board');

/** The board's views and actions, for Express and Fastify. */
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

  /** @throws ServingError when the change cannot be made */
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
      // Not strict, because ServingModule need not be global.
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
