import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { isAbsolute, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { DEFAULT_KEY } from '../batch/batch.js';
import { InvalidServingError } from '../errors.js';
import type { PartitionOptions } from '../partitions/partition.js';
import { partitionPerDevice } from '../partitions/devices.js';
import { show } from '../show.js';
import { batching, batchingOf, checkOptions, delay, type Rule, type Rules, whole } from './option-rules.js';
import type { ServingDefinition } from './serving-definition.js';

/** A definition with every default filled in: what the rest of the code reads. */
export interface ResolvedServing {
  readonly name: string;
  readonly batchSize: number;
  /** The size of the pieces that `run` cuts its input into. */
  readonly runSize: number;
  readonly batchTimeout: number;
  readonly maxQueue: number;
  /** The options of each partition. */
  readonly partitions: readonly PartitionOptions[];
  readonly batchKeys: readonly string[];
  readonly drain: boolean;
  readonly shutdown: number;
}

const aFunction: Rule = { check: (value) => typeof value === 'function', allowed: 'a function' };
const anObject: Rule = { check: isRecord, allowed: 'an object' };
const pathOr = (allowed: string, other: Rule['check']): Rule => ({
  check: (value) => (typeof value === 'string' && value !== '') || value instanceof URL || other(value),
  allowed,
});
const axes: Rule = {
  check: (value) => isRecord(value) && Object.values(value).every((port) => isRecord(port) && 'batchAxis' in port),
  allowed: 'an object of { batchAxis: number | null } by name',
};

const common: Rules = {
  ...batching,
  name: { check: (value) => typeof value === 'string' && value !== '', allowed: 'a string that is not empty' },
  partitions: {
    check: (value) =>
      value === true || (Array.isArray(value) ? value.length > 0 && value.every(isRecord) : whole(1, 1024).check(value)),
    allowed: 'a number from 1 to 1024, true, or a list of options, one per partition',
  },
  batchKeys: {
    check: (value) => isStrings(value) && value.length > 0 && new Set(value).size === value.length,
    allowed: 'a list of different strings',
  },
  drain: { check: (value) => typeof value === 'boolean', allowed: 'true or false' },
  shutdown: delay,
  preprocess: aFunction,
  postprocess: aFunction,
};

const kinds: Readonly<Record<string, Rules>> = {
  model: {
    model: pathOr('a path, a file: URL, or the bytes of an ONNX file', (value) => ArrayBuffer.isView(value)),
    session: anObject,
    inputs: axes,
    outputs: axes,
  },
  useFactory: { useFactory: aFunction },
  useFile: { useFile: pathOr('an absolute path or file: URL of a module', () => false) },
  useClass: { useClass: aFunction },
  useExisting: { useExisting: { check: (value) => value !== undefined && value !== null, allowed: 'an injection token' } },
};

/**
 * Checks a definition and fills in its defaults.
 *
 * @throws InvalidServingError naming the serving, the option, its value, and what is allowed
 */
export function resolveDefinition(definition: ServingDefinition): ResolvedServing {
  const kind = kindOf(definition);
  checkOptions(
    `Serving ${show(definition.name)} with "${kind}"`,
    { ...definition, name: definition.name },
    { ...common, ...kinds[kind] },
  );
  const { name, batchKeys = [DEFAULT_KEY], drain = true, shutdown = 30_000 } = definition;
  return Object.freeze({
    name,
    ...batchingOf(definition),
    runSize: definition.batchSize ?? Infinity,
    batchKeys: [...batchKeys],
    drain,
    shutdown,
    partitions: partitionsOf(definition),
  });
}

/** The path of the model, or its bytes. */
export function modelOf(name: string, model: string | URL | Uint8Array): string | Uint8Array {
  return ArrayBuffer.isView(model) ? model : existing(name, model);
}

/** The file as the `file:` URL that `import` wants. */
export function moduleOf(name: string, file: string | URL): string {
  return pathToFileURL(existing(name, file)).href;
}

function existing(name: string, file: string | URL): string {
  const path = file instanceof URL || file.startsWith('file:') ? fileURLToPath(file) : resolve(file);
  if (!existsSync(path)) {
    const hint = isAbsolute(String(file)) || file instanceof URL ? '' : ` (a relative path counts from ${process.cwd()})`;
    throw new InvalidServingError(`Serving "${name}": there is no file ${path}${hint}`);
  }
  return path;
}

function kindOf(definition: ServingDefinition): string {
  const options = new Map<string, unknown>(Object.entries(definition));
  const given = Object.keys(kinds).filter((kind) => options.get(kind) !== undefined);
  if (given.length !== 1) {
    throw new InvalidServingError(
      `Serving ${show(definition.name)} has ${given.length === 0 ? 'nothing to run its batches' : given.join(' and ')}; ` +
        `give exactly one of ${Object.keys(kinds).join(', ')}`,
    );
  }
  return given[0]!;
}

function partitionsOf(definition: ServingDefinition): PartitionOptions[] {
  const { partitions = 1 } = definition;
  const shared = 'session' in definition ? { ...definition.session } : {};
  const own = ownOptions(partitions, shared);
  if (!('model' in definition)) {
    return own;
  }
  // All cores but one, which the event loop needs, shared out evenly.
  const intraOpNumThreads = Math.max(1, Math.floor((availableParallelism() - 1) / own.length));
  return own.map((options) => ({ intraOpNumThreads, ...shared, ...options }));
}

function ownOptions(partitions: NonNullable<ServingDefinition['partitions']>, session: PartitionOptions): PartitionOptions[] {
  if (partitions === true) {
    return partitionPerDevice(session);
  }
  return typeof partitions === 'number'
    ? Array.from({ length: partitions }, () => ({}))
    : partitions.map((options) => ({ ...options }));
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isStrings(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((entry) => typeof entry === 'string' && entry !== '');
}
