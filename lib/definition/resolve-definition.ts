import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { isAbsolute, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { DEFAULT_KEY } from '../batch/batch.js';
import type { QueueOrder } from '../batching/priority-queue.js';
import { InvalidServingError } from '../errors.js';
import type { ModelPort } from '../partitions/onnx/model-signature.js';
import { LONGEST_BACKOFF, type Supervision } from '../partitions/worker/supervised.partition.js';
import { partitionPerDevice } from '../partitions/onnx/devices.js';
import { formatValue } from '../format.js';
import {
  aFunction,
  batching,
  batchingOf,
  checkOptions,
  checkRoom,
  DEFAULT_AGEING,
  isRecord,
  delay,
  LONGEST_DELAY,
  milliseconds,
  shutdownOf,
  type Rule,
  type Rules,
  whole,
} from './option-rules.js';
import { rowTemplate, portsOfTemplate } from './row-template.js';
import { contentHash } from '../batch/content-hash.js';
import type {
  KeyServingOptions,
  ServingDefinition,
  ServingDistributionOptions,
  WorkerOptions,
} from './serving-definition.js';
import {
  type KeyOptions,
  type RetryOptions,
  type Sharing,
  type ResolvedServing,
  type ServingDistribution,
} from './resolved-serving.js';
import type { PartitionOptions } from '../partitions/batch-function.js';

const anObject: Rule = { check: isRecord, allowed: 'an object' };
const pathOr = (allowed: string, other: Rule['check']): Rule => ({
  check: (value) =>
    (typeof value === 'string' && value !== '') || value instanceof URL || other(value),
  allowed,
});
const axes: Rule = {
  check: (value) =>
    isRecord(value) && Object.values(value).every((port) => isRecord(port) && 'batchAxis' in port),
  allowed: 'an object of { batchAxis: number | null } by name',
};

const sizes: Rule = {
  check: (value) =>
    Array.isArray(value) &&
    value.length > 0 &&
    value.every((size, i) => whole((value[i - 1] ?? 0) + 1, 2 ** 20).check(size)),
  allowed: 'a list of whole numbers from 1 on, each larger than the one before',
};
const flag: Rule = { check: (value) => typeof value === 'boolean', allowed: 'true or false' };

/** The options that can differ by key. */
const perKey: Rules = {
  batchSize: batching['batchSize']!,
  batchTimeout: batching['batchTimeout']!,
  allowedSizes: sizes,
  pad: flag,
};

const common: Rules = {
  ...batching,
  ...perKey,
  name: {
    check: (value) => typeof value === 'string' && value !== '',
    allowed: 'a string that is not empty',
  },
  partitions: {
    check: (value) =>
      value === true ||
      (Array.isArray(value)
        ? value.length > 0 && value.every(isRecord)
        : whole(1, 1024).check(value)),
    allowed: 'a number from 1 to 1024, true, or a list of options, one per partition',
  },
  batchKeys: {
    check: (value) => isStrings(value) && value.length > 0 && new Set(value).size === value.length,
    allowed: 'a list of different strings',
  },
  keyOptions: {
    check: (value) => isRecord(value) && Object.values(value).every(isRecord),
    allowed: 'an object of options by key',
  },
  warmUp: { check: Array.isArray, allowed: 'a list of inputs' },
  maxQueueCost: {
    check: (value) => typeof value === 'number' && value > 0,
    allowed: 'a number above 0',
  },
  cost: aFunction,
  timeout: delay,
  priorityAgeing: delay,
  tenant: aFunction,
  tenantWeights: {
    check: (value) =>
      isRecord(value) &&
      Object.values(value).every(
        (weight) => typeof weight === 'number' && weight > 0 && weight < Infinity,
      ),
    allowed: 'an object of numbers above 0 by tenant',
  },
  idempotent: flag,
  isolateFailures: flag,
  retries: whole(0, 100),
  maxRows: whole(1, Number.MAX_SAFE_INTEGER),
  maxBytes: whole(1, Number.MAX_SAFE_INTEGER),
  separateOrigins: flag,
  runTimeout: milliseconds(1),
  singleFlight: flag,
  identify: aFunction,
  cache: {
    check: (value) => isRecord(value) && value['ttl'] !== undefined,
    allowed: 'an object of ttl and timeout, in milliseconds',
  },
  drainOnShutdown: flag,
  drainTimeout: delay,
  distribution: {
    check: isRecord,
    allowed: 'an object of enabled, weight, preprocess and postprocess',
  },
  preprocess: aFunction,
  postprocess: aFunction,
  postprocessStream: aFunction,
};

const isolation: Rule = {
  check: (value) => value === 'thread' || value === 'process',
  allowed: '"thread" or "process"',
};
const onlyOfWorkers: Rule = {
  check: () => false,
  allowed: 'nothing here: only model and useFile run apart from the application',
};

/** The options of servings in threads or processes. */
const worker: Rules = {
  isolation,
  restartDelay: milliseconds(0, LONGEST_BACKOFF),
  maxRestarts: whole(0, Number.MAX_SAFE_INTEGER),
  restartTimeout: milliseconds(1),
};
const noWorker: Rules = Object.fromEntries(
  Object.keys(worker).map((option) => [option, onlyOfWorkers]),
);
const ofDistribution: Rules = {
  enabled: flag,
  weight: {
    check: (value) => typeof value === 'number' && value >= 0 && value <= 1e6,
    allowed: 'a number from 0 to 1000000',
  },
  preprocess: aFunction,
  postprocess: aFunction,
};

const ofCache: Rules = { ttl: whole(1, Number.MAX_SAFE_INTEGER), timeout: whole(1, LONGEST_DELAY) };

const kinds: Readonly<Record<string, Rules>> = {
  model: {
    ...worker,
    model: pathOr('a path, a file: URL, or the bytes of an ONNX file', (value) =>
      ArrayBuffer.isView(value),
    ),
    session: anObject,
    inputs: axes,
    outputs: axes,
    fetches: {
      check: (value) => isStrings(value) && value.length > 0,
      allowed: 'a list of names of outputs',
    },
  },
  useFactory: { ...noWorker, template: rowTemplate, useFactory: aFunction },
  useFile: {
    ...worker,
    template: rowTemplate,
    useFile: pathOr('an absolute path or file: URL of a module', () => false),
  },
  useClass: { ...noWorker, template: rowTemplate, useClass: aFunction },
  useExisting: {
    ...noWorker,
    template: rowTemplate,
    useExisting: {
      check: (value) => value !== undefined && value !== null,
      allowed: 'an injection token',
    },
  },
};

/**
 * Checks a definition and fills in its defaults.
 *
 * @throws InvalidServingError naming the serving, the option, its value, and the allowed values
 */
export function resolveDefinition(definition: ServingDefinition): ResolvedServing {
  const kind = definitionKind(definition);
  const owner = `Serving ${formatValue(definition.name)} with "${kind}"`;
  checkOptions(owner, { ...definition, name: definition.name }, { ...common, ...kinds[kind] });
  const {
    name,
    batchKeys = [DEFAULT_KEY],
    keyOptions = {},
    separateOrigins = false,
    warmUp = [],
  } = definition;
  const { maxQueueCost, timeout, runTimeout } = definition;
  const { maxQueue } = batchingOf(definition);
  const { maxRows = maxQueue, maxBytes } = definition;
  if (maxRows > maxQueue) {
    throw new InvalidServingError(
      `${owner}: maxRows ${maxRows} is more than maxQueue ${maxQueue}, so no such call could ` +
        'ever wait; lower the one or raise the other',
    );
  }
  const otherKeys = keyOptionsOf(owner, definition, {});
  checkRoom(owner, otherKeys.batchSize, maxQueue);
  const unknown = Object.keys(keyOptions).find((key) => !batchKeys.includes(key));
  if (unknown !== undefined) {
    throw new InvalidServingError(
      `${owner}: keyOptions has the unknown key "${unknown}"; its keys are ${batchKeys.join(', ')}`,
    );
  }
  const keys = batchKeys.map((key) => {
    const own = keyOptions[key] ?? {};
    const ownerOfKey = `${owner}, key "${key}"`;
    checkOptions(ownerOfKey, own, perKey);
    const options = keyOptionsOf(ownerOfKey, definition, own);
    checkRoom(ownerOfKey, options.batchSize, maxQueue);
    return [key, options] as const;
  });
  const partitions = partitionsOf(definition);
  const recovery = recoveryOf(owner, kind, definition);
  return Object.freeze({
    name,
    maxQueue,
    maxQueueCost,
    timeout,
    order: orderOf(definition),
    ...recovery,
    distribution: distributionOf(
      owner,
      definition.distribution,
      recovery,
      2 * otherKeys.batchSize * partitions.length,
    ),
    maxRows,
    maxBytes,
    keys: new Map(keys),
    otherKeys,
    separateOrigins,
    sharing: sharingOf(owner, definition),
    warmUp: [...warmUp],
    template: templateOf(definition),
    runTimeout,
    ...supervisionOf(definition),
    ...shutdownOf(definition),
    partitions,
  });
}

function orderOf({
  priorityAgeing = DEFAULT_AGEING,
  tenantWeights = {},
}: ServingDefinition): QueueOrder {
  return { ageing: priorityAgeing, weights: new Map(Object.entries(tenantWeights)) };
}

function recoveryOf(owner: string, kind: string, definition: ServingDefinition): RetryOptions {
  const { idempotent = kind === 'model', isolateFailures = idempotent, retries = 2 } = definition;
  if (isolateFailures && !idempotent) {
    throw new InvalidServingError(
      `${owner}: isolateFailures runs batches again, and needs idempotent: true`,
    );
  }
  if (definition.retries !== undefined && !idempotent) {
    throw new InvalidServingError(
      `${owner}: retries needs idempotent: true, since it repeats batches whose partition was lost`,
    );
  }
  return { idempotent, isolateFailures, retries };
}

function distributionOf(
  owner: string,
  options: ServingDistributionOptions = {},
  { idempotent }: RetryOptions,
  saturation: number,
): ServingDistribution {
  checkOptions(`${owner}, distribution`, options, ofDistribution);
  const { enabled = true, weight = 1 } = options;
  return {
    enabled,
    weight,
    idempotent,
    saturation,
    preprocess: options.preprocess && ((input) => options.preprocess!(input)),
    postprocess: options.postprocess && ((output) => options.postprocess!(output)),
  };
}

function sharingOf(owner: string, definition: ServingDefinition): Sharing | undefined {
  const { singleFlight, cache } = definition;
  if (cache) {
    checkOptions(`${owner}, cache`, cache, ofCache);
  }
  if (definition.identify && !singleFlight && !cache) {
    throw new InvalidServingError(
      `${owner}: identify needs singleFlight: true or cache, whose inputs it identifies`,
    );
  }
  const { ttl, timeout = 100 } = cache ?? {};
  return singleFlight || ttl !== undefined
    ? {
        singleFlight: singleFlight ?? false,
        identify: (input) =>
          definition.identify ? definition.identify(input) : contentHash(input),
        cache: ttl === undefined ? undefined : { ttl, timeout },
      }
    : undefined;
}

function templateOf(definition: ServingDefinition): readonly ModelPort[] | undefined {
  return 'template' in definition && definition.template
    ? portsOfTemplate(definition.template)
    : undefined;
}

/** The options of a key: its own, or else those of the serving. */
function keyOptionsOf(
  owner: string,
  shared: KeyServingOptions,
  own: KeyServingOptions,
): KeyOptions {
  const padding = own.allowedSizes || own.pad !== undefined ? own : shared;
  const given = own.batchSize ?? shared.batchSize;
  const { batchTimeout } = batchingOf({ batchTimeout: own.batchTimeout ?? shared.batchTimeout });
  if (padding.allowedSizes && padding.pad) {
    throw new InvalidServingError(
      `${owner}: pad is short for allowedSizes [batchSize] and contradicts the allowedSizes ` +
        'given; drop one',
    );
  }
  const batchSize = given ?? padding.allowedSizes?.at(-1) ?? batchingOf({}).batchSize;
  const allowedSizes = padding.pad
    ? [batchSize]
    : padding.allowedSizes && [...padding.allowedSizes];
  if (allowedSizes && allowedSizes.at(-1)! < batchSize) {
    throw new InvalidServingError(
      `${owner}: batchSize ${batchSize} is more than the largest of allowedSizes, ` +
        `${allowedSizes.at(-1)}; lower the one or extend the other`,
    );
  }
  return {
    batchSize,
    batchTimeout,
    allowedSizes,
    runSize: given ?? allowedSizes?.at(-1) ?? Infinity,
  };
}

function supervisionOf(definition: ServingDefinition): Supervision {
  const {
    restartDelay = 100,
    maxRestarts = 5,
    restartTimeout = 600_000,
  }: WorkerOptions = 'model' in definition || 'useFile' in definition ? definition : {};
  return { restartDelay, maxRestarts, restartTimeout };
}

/** The path of the model, or its bytes. */
export function modelOf(name: string, model: string | URL | Uint8Array): string | Uint8Array {
  return ArrayBuffer.isView(model) ? model : existing(name, model);
}

/** The file as a `file:` URL for `import`. */
export function moduleOf(name: string, file: string | URL): string {
  return pathToFileURL(existing(name, file)).href;
}

function existing(name: string, file: string | URL): string {
  const path =
    file instanceof URL || file.startsWith('file:') ? fileURLToPath(file) : resolve(file);
  if (!existsSync(path)) {
    const hint =
      isAbsolute(String(file)) || file instanceof URL
        ? ''
        : ` (a relative path counts from ${process.cwd()})`;
    throw new InvalidServingError(`Serving "${name}": there is no file ${path}${hint}`);
  }
  return path;
}

function definitionKind(definition: ServingDefinition): string {
  const options = new Map<string, unknown>(Object.entries(definition));
  const given = Object.keys(kinds).filter((kind) => options.get(kind) !== undefined);
  if (given.length !== 1) {
    throw new InvalidServingError(
      `Serving ${formatValue(definition.name)} has ` +
        `${given.length === 0 ? 'nothing to run its batches' : given.join(' and ')}; ` +
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
  // Divides all cores but one, which the event loop needs.
  const intraOpNumThreads = Math.max(1, Math.floor((availableParallelism() - 1) / own.length));
  return own.map((options) => ({ intraOpNumThreads, ...shared, ...options }));
}

function ownOptions(
  partitions: NonNullable<ServingDefinition['partitions']>,
  session: PartitionOptions,
): PartitionOptions[] {
  if (partitions === true) {
    return partitionPerDevice(session);
  }
  return typeof partitions === 'number'
    ? Array.from({ length: partitions }, () => ({}))
    : partitions.map((options) => ({ ...options }));
}

function isStrings(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((entry) => typeof entry === 'string' && entry !== '');
}
