import { InvalidServingError } from '../../errors.js';
import { openFactory, type RunnerFactory } from '../engine.js';
import type { FunctionPartition } from '../function.partition.js';
import { STEPPED } from '../partition.js';
import type { SequencePartition } from '../sequence/sequence.partition.js';
import { packOutput, unpackRows } from './transfer.js';
import type {
  BatchEnd,
  FileTask,
  Loaded,
  RowsRequest,
  Listen,
  WorkerSession,
} from './worker-protocol.js';

/** Batch functions of a module file, in a worker. */
export class FileSession implements WorkerSession {
  readonly loaded: Loaded = {};
  readonly isConcurrent: boolean;

  private constructor(private readonly functions: FunctionPartition | SequencePartition) {
    this.isConcurrent = 'places' in functions;
  }

  static async open({ file, partition, options, keys, sequence }: FileTask): Promise<FileSession> {
    const factory = await importFactory(file);
    return new FileSession(await openFactory(factory, partition, options, keys, sequence));
  }

  async run({ rows, info }: RowsRequest, listen: Listen): Promise<[BatchEnd, ArrayBuffer[]?]> {
    const plainRows = 'list' in rows;
    const listener = listen(info.hooks, plainRows);
    const result = await this.functions.runRows(unpackRows(rows), info, listener);
    if (result === STEPPED) {
      return [{ stepped: true }];
    }
    const [output, transfer] = packOutput(result.output, plainRows);
    return [{ output, metadata: result.metadata }, transfer];
  }

  endSessions(ids: readonly number[]): void {
    if ('endSessions' in this.functions) {
      this.functions.endSessions(ids);
    }
  }
}

async function importFactory(file: string): Promise<RunnerFactory> {
  const exports = (await import(/* webpackIgnore: true */ file)) as { default?: unknown };
  // In a file that TypeScript compiled to CommonJS, the default export is one level deeper.
  const factory = isTranspiled(exports.default) ? exports.default.default : exports.default;
  if (typeof factory !== 'function') {
    throw new InvalidServingError(
      `${file} must have a default export: a function that returns the batch function; it has ` +
        typeof factory,
    );
  }
  return factory as RunnerFactory;
}

function isTranspiled(value: unknown): value is { readonly default?: unknown } {
  return typeof value === 'object' && value !== null && '__esModule' in value;
}
