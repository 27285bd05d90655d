import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { isAbsolute, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { DEFAULT_KEY } from '../batch/batch.js';
import { InvalidServingError } from '../errors.js';
import { LONGEST_BACKOFF } from '../partitions/worker/supervised.partition.js';
import {
  isPath,
  isRemote,
  isRemoteModel,
  type ModelPlace,
  remoteModelOf,
} from '../partitions/model/remote-models.js';
import { closestName, formatValue } from '../format.js';
import {
  aFunction,
  checkOptions,
  DEFAULT_AGEING,
  DEFAULT_BATCH_SIZE,
  DEFAULT_QUEUE_ROWS,
  DEFAULT_VERSION,
  delay,
  flag,
  groupOf,
  isRecord,
  milliseconds,
  perKey,
  type Rule,
  type Rules,
  shutdown,
  whole,
  withRules,
} from './option-rules.js';
import { runtimeRules } from './runtime-rules.js';
import { batchSizeOf, batchSizeRule } from './batch-size.js';
import {
  checkTogether,
  type Combination,
  combinations,
  combinationsOfKeys,
  type KeyFacts,
} from './combinations.js';
import { outputAxes, rowTemplate, portsOfTemplate } from './row-template.js';
import type {
  ModelFile,
  ModelOptions,
  ModelRepository,
  QueueOptions,
  ServingDefinition,
  ServingDistributionOptions,
  ServingOptions,
  RecoveryOptions,
  RunnerOptions,
  ShutdownOptions,
  SignatureOptions,
} from './serving-definition.js';
import type {
  KeyOptions,
  ResolvedQueue,
  ResolvedRecovery,
  ResolvedServing,
  ServingDistribution,
  StatesPlan,
} from './resolved-serving.js';
import type { PartitionOptions } from '../partitions/batch-function.js';
import type { ContinuousPlan, ExternalModel } from '../partitions/engine.js';

const count = whole(1, Number.MAX_SAFE_INTEGER);
const aString: Rule = {
  check: (value) => typeof value === 'string' && value !== '',
  allowed: 'a string that is not empty',
  isRequired: true,
};
const aCost: Rule = {
  check: (value) => typeof value === 'number' && value > 0,
  allowed: 'a number above 0',
};
/** Only an input is padded; that is checked against the model. */
const ofPorts = ['batchAxis', 'variableAxis', 'padWith'];
const axes: Rule = {
  check: (value) =>
    isRecord(value) &&
    Object.values(value).every(
      (port) =>
        isRecord(port) &&
        ('batchAxis' in port || 'variableAxis' in port) &&
        Object.keys(port).every((name) => ofPorts.includes(name)),
    ),
  allowed: 'an object of { batchAxis: number | null, variableAxis: number } by name',
};

export const common: Rules = {
  batchSize: batchSizeRule,
  batchTimeout: delay,
  name: aString,
  batchKeys: {
    check: (value) => {
      const keys: unknown[] = Array.isArray(value) ? value.map(keyOf) : [];
      return keys.length > 0 && isStrings(keys) && new Set(keys).size === keys.length;
    },
    allowed: 'a list of different keys: strings, or objects of key and options',
  },
  partitions: {
    check: (value) =>
      value === true ||
      (Array.isArray(value)
        ? value.length > 0 && value.every(isRecord)
        : whole(1, 1024).check(value)),
    allowed: 'a number from 1 to 1024, true, or a list of options, one per partition',
  },
  warmUp: { check: Array.isArray, allowed: 'a list of inputs' },
  timeout: groupOf({ default: milliseconds(1), most: milliseconds(1) }, milliseconds(1)),
  rollout: groupOf({ version: { ...aString, isRequired: false } }),
  queue: groupOf({
    maxRows: count,
    maxCost: aCost,
    cost: aFunction,
    maxRowsPerCall: count,
    maxBytesPerCall: count,
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
    separateOrigins: flag,
    order: { check: (value) => value === 'preserve', allowed: '"preserve"' },
  }),
  recovery: groupOf({
    idempotent: flag,
    isolateFailures: flag,
    retries: whole(0, 100),
    runTimeout: milliseconds(1),
    restartDelay: milliseconds(0, LONGEST_BACKOFF),
    maxRestarts: whole(0, Number.MAX_SAFE_INTEGER),
    restartTimeout: milliseconds(1),
  }),
  shutdown,
  distribution: groupOf({
    enabled: flag,
    weight: {
      check: (value) => typeof value === 'number' && value >= 0 && value <= 1e6,
      allowed: 'a number from 0 to 1000000',
    },
    preprocess: aFunction,
    postprocess: aFunction,
  }),
  preprocess: aFunction,
  postprocess: aFunction,
  postprocessStream: aFunction,
};

const ownPlace: Rule = {
  check: (value) => value === 'thread' || value === 'process',
  allowed: '"thread" or "process"; for a function in the application\'s own thread use useFactory',
};

const onlyOfWorkers: Rule = {
  check: () => false,
  allowed: 'nothing here: only model files and useFile run apart from the application',
};

const modelFile = pathOr(
  'a path, a file: or https: URL, an hf: address, or the bytes of an ONNX file',
  (value) => ArrayBuffer.isView(value) || isRemoteModel(value),
);

const fetches: Rule = {
  check: (value) => isStrings(value) && value.length > 0,
  allowed: 'a list of names of outputs',
};

/** For a model's inputs and outputs, wherever it runs. */
export const portRules: Rules = { inputs: axes, outputs: axes, fetches };

export const aModel: Rule = {
  check: (value) => modelFile.check(value) || isRecord(value),
  allowed: `${modelFile.allowed}, or an object`,
  isRequired: true,
};

const ofModel: Rules = {
  file: { ...modelFile, isRequired: true },
  sha256: {
    check: (value) =>
      value === false || (typeof value === 'string' && /^[\da-f]{64}$/i.test(value)),
    allowed: '64 hexadecimal digits, or false',
  },
  session: groupOf(runtimeRules),
  checkRows: flag,
  ...portRules,
  state: {
    check: (value) =>
      isRecord(value) &&
      isStrings(Object.values(value)) &&
      Object.keys(value).length > 0 &&
      new Set(Object.values(value)).size === Object.keys(value).length,
    allowed: 'an object of names of outputs by the name of their input',
  },
};

const ofCode: Rules = {
  signature: groupOf({ template: rowTemplate, outputs: outputAxes }),
  isolation: onlyOfWorkers,
};

/** Its name at run time, its own options, and the serving's options that differ. */
interface Kind {
  readonly runner: ResolvedServing['runner'];
  readonly own: Rules;
  readonly around?: Rules;
}

const external: Kind = {
  runner: 'external model',
  own: {},
  around: {
    partitions: {
      check: () => false,
      allowed: 'nothing here: an external model states how many batches it runs at a time',
    },
  },
};

/** By the option that only they have. */
const kinds: Readonly<Record<string, Kind>> = {
  file: {
    runner: 'model',
    own: {
      ...ofModel,
      isolation: {
        check: (value) => ownPlace.check(value) || value === 'native' || value === 'none',
        allowed: '"thread", "process", "native" or "none"',
      },
      blockingLimit: delay,
    },
  },
  useFactory: {
    runner: 'function',
    own: { ...ofCode, useFactory: aFunction },
  },
  useFile: {
    runner: 'file',
    own: {
      ...ofCode,
      isolation: ownPlace,
      prepare: {
        check: (value) => aFunction.check(value) || (isRecord(value) && 'fetch' in value),
        allowed: 'a function, or an object that fetches',
      },
      useFile: pathOr('an absolute path or file: URL of a module', () => false),
    },
  },
  useClass: {
    runner: 'class',
    own: { ...ofCode, useClass: aFunction },
  },
  useExisting: {
    runner: 'class',
    own: {
      ...ofCode,
      useExisting: {
        check: (value) => value !== undefined && value !== null,
        allowed: 'an injection token',
      },
    },
  },
};

/** The features' part of a definition. */
interface More {
  readonly rules: Rules;
  readonly ofModel: Rules;
  readonly combinations: readonly Combination[];
  continuousOf(serving: ServingOptions, model: RunnerOptions): ContinuousPlan | undefined;
  statesOf(model: RunnerOptions): StatesPlan | undefined;
  devicesOf(session: PartitionOptions): readonly PartitionOptions[] | undefined;
}

/**
 * Checks a definition and fills in its defaults.
 *
 * @throws InvalidServingError naming the serving, the option, its value, and the allowed values
 */
export function resolveDefinition(definition: ServingDefinition, more: More): ResolvedServing {
  checkName('createServing', definition);
  const rules = { ...withRules(common, more.rules), model: aModel };
  const [label, { runner, own, around }] = kindOf(definition, rules, more.ofModel);
  const owner = `Serving ${formatValue(definition.name)} with "${label}"`;
  checkOptions(owner, definition, { ...rules, model: { ...aModel, inside: own }, ...around });
  const options = runnerOf(definition);
  checkOptions(owner, options, own, 'model.');
  checkPartitions(owner, definition, options);
  const { name, rollout: { version = DEFAULT_VERSION } = {}, warmUp = [] } = definition;
  const size = batchSizeOf(definition.batchSize);
  const partitions = partitionsOf(definition, more);
  const recovery = recoveryOf(label === 'model', definition.recovery);
  const states = more.statesOf(options);
  const continuous = more.continuousOf(definition, options);
  const signature = signatureOf(options.signature);
  const resolved = { size, partitions, recovery, states, continuous, signature };
  const all = [...combinations, ...more.combinations];
  checkTogether(owner, { definition, kind: runner, runner: options, ...resolved }, all);
  const timeout = timeoutOf(definition.timeout);
  const queue = queueOf(definition.queue);
  const shared = {
    batchSize: size.rows ?? DEFAULT_BATCH_SIZE,
    runSize: size.rows ?? Infinity,
    batchTimeout: definition.batchTimeout ?? 0,
    allowedSizes: size.sizes,
    latencyTarget: size.latencyTarget,
    timeout,
    queueRows: queue.maxRows,
  };
  const keyOptions = keyOptionsOf(owner, shared);
  const otherKeys = continuous ? ROW_BY_ROW : keyOptions;
  const keys = keysOf(owner, definition, shared, continuous);
  const saturation = 2 * keyOptions.batchSize * partitions.length;
  return Object.freeze({
    name,
    version,
    runner,
    isolation: options.isolation,
    timeout,
    queue,
    recovery,
    states,
    shutdown: shutdownOf(definition.shutdown),
    distribution: distributionOf(definition.distribution, recovery.idempotent, saturation),
    partitions,
    keys,
    otherKeys,
    continuous,
    batchCost: size.cost,
    warmUp: [...warmUp],
    checkRows: options.checkRows ?? true,
    ...signature,
  });
}

/** @throws InvalidServingError naming the caller, if there is no definition with a name */
export function checkName(caller: string, definition: unknown): void {
  if (!isRecord(definition)) {
    throw new InvalidServingError(
      `${caller} was given ${formatValue(definition)} as the definition of a serving; if it is ` +
        'imported, does its file import this one, too? In such a circle it is not defined yet',
    );
  }
  if (!aString.check(definition['name'])) {
    throw new InvalidServingError(
      `${caller}: option "name" of a serving is ${formatValue(definition['name'])}; allowed is ` +
        aString.allowed,
    );
  }
}

export function timeoutOf(timeout: ServingOptions['timeout']): number | undefined {
  return typeof timeout === 'object' ? timeout.default : timeout;
}

function queueOf(options: QueueOptions = {}): ResolvedQueue {
  const { maxRows = DEFAULT_QUEUE_ROWS, maxRowsPerCall = maxRows } = options;
  const { maxCost, maxBytesPerCall, separateOrigins = false } = options;
  const { priorityAgeing = DEFAULT_AGEING, tenantWeights = {} } = options;
  const order = { ageing: priorityAgeing, weights: new Map(Object.entries(tenantWeights)) };
  const preservesOrder = options.order === 'preserve';
  const limits = { maxRows, maxCost, maxRowsPerCall, maxBytesPerCall };
  return { ...limits, order, separateOrigins, preservesOrder };
}

function recoveryOf(isModel: boolean, options: RecoveryOptions = {}): ResolvedRecovery {
  const { idempotent = isModel, isolateFailures = idempotent, retries = 2 } = options;
  const { runTimeout, restartDelay = 100, maxRestarts = 5, restartTimeout = 600_000 } = options;
  const restarts = { restartDelay, maxRestarts, restartTimeout };
  return { idempotent, isolateFailures, retries, runTimeout, ...restarts };
}

function shutdownOf({ drain = true, timeout = 30_000 }: ShutdownOptions = {}) {
  return { drain, timeout };
}

function distributionOf(
  options: ServingDistributionOptions = {},
  idempotent: boolean,
  saturation: number,
): ServingDistribution {
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

/** The declared rows' ports, and the axes where outputs are cut back, by path. */
function signatureOf({ template, outputs = {} }: SignatureOptions = {}): Pick<
  ResolvedServing,
  'template' | 'cuts'
> {
  const cuts = Object.entries(outputs).map(([path, { variableAxis }]) => [path, variableAxis]);
  return { template: template && portsOfTemplate(template), cuts: Object.fromEntries(cuts) };
}

const ROW_BY_ROW: KeyOptions = { batchSize: 1, batchTimeout: 0, runSize: 1 };

function keysOf(
  owner: string,
  { batchKeys = [DEFAULT_KEY] }: ServingDefinition,
  shared: KeyFacts,
  continuous: ContinuousPlan | undefined,
): ReadonlyMap<string, KeyOptions> {
  const keys = batchKeys.map((declared) => {
    const own = typeof declared === 'string' ? { key: declared } : declared;
    const ownerOfKey = `${owner}, key "${own.key}"`;
    checkOptions(ownerOfKey, own, { key: aString, ...perKey });
    const { key, batchSize = shared.batchSize, batchTimeout = shared.batchTimeout } = own;
    const runSize = own.batchSize ?? shared.runSize;
    const options = keyOptionsOf(ownerOfKey, { ...shared, batchSize, batchTimeout, runSize });
    return [key, continuous ? ROW_BY_ROW : options] as const;
  });
  return new Map(keys);
}

function keyOf(declared: unknown): unknown {
  return isRecord(declared) ? declared['key'] : declared;
}

function keyOptionsOf(owner: string, { timeout, queueRows, ...options }: KeyFacts): KeyOptions {
  checkTogether(owner, { ...options, timeout, queueRows }, combinationsOfKeys);
  return options;
}

/** Empty for an external model. */
export function runnerOf({ model }: { readonly model?: unknown }): RunnerOptions {
  return isModelFile(model)
    ? { file: model }
    : isRecord(model) && !isExternal({ model })
      ? model
      : {};
}

/** True if another program runs the model. */
export function isExternal(definition: {
  readonly model?: unknown;
}): definition is { readonly model: ExternalModel } {
  return isRecord(definition.model) && 'engineFor' in definition.model;
}

/** The runner with another model; undefined for one that has none. */
export function movedRunner(
  // The hash belongs to the other file.
  { sha256: _sha256, ...runner }: RunnerOptions,
  model: ModelFile | ModelOptions | ModelRepository,
): RunnerOptions | undefined {
  const { file, prepare } = runner;
  const given: RunnerOptions & { readonly from?: unknown } = runnerOf({ model });
  const { file: _file, from: _from, ...others } = given;
  if (isRemoteModel(file) && file.moved) {
    return { ...runner, ...others, file: file.moved(model) };
  }
  if (file !== undefined) {
    return { ...runner, ...given };
  }
  return typeof prepare === 'object' && prepare.moved
    ? { ...runner, ...others, prepare: prepare.moved(model) }
    : undefined;
}

function isModelFile(model: unknown): model is ModelFile {
  return isPath(model) || ArrayBuffer.isView(model) || isRemoteModel(model);
}

export function modelOf(name: string, { file, sha256 }: ModelOptions): ModelPlace {
  const owner = `Serving "${name}"`;
  if (isRemote(file)) {
    return remoteModelOf(owner, String(file), sha256);
  }
  if (sha256 === false || (sha256 !== undefined && !isPath(file))) {
    throw new InvalidServingError(
      `${owner}: model.sha256 ${formatValue(sha256)} has no effect on ` +
        `${isPath(file) ? 'a file of this machine' : 'the bytes of a model, or on a model that code fetches'}; leave ` +
        'it out',
    );
  }
  return isPath(file) ? { file: existing(name, file), sha256: sha256?.toLowerCase() } : file;
}

/** A `file:` URL for `import`. */
export function moduleOf(name: string, file: string | URL): string {
  return pathToFileURL(existing(name, file)).href;
}

export function pathOf(file: string | URL): string {
  return file instanceof URL || file.startsWith('file:') ? fileURLToPath(file) : resolve(file);
}

function existing(name: string, file: string | URL): string {
  const path = pathOf(file);
  if (!existsSync(path)) {
    const hint =
      isAbsolute(String(file)) || file instanceof URL
        ? ''
        : ` (a relative path counts from ${process.cwd()})`;
    throw new InvalidServingError(`Serving "${name}": there is no file ${path}${hint}`);
  }
  return path;
}

function kindOf(
  definition: ServingDefinition,
  around: Rules,
  more: Rules,
): readonly [label: string, kind: Kind] {
  if (isExternal(definition)) {
    return ['model', external];
  }
  const model: unknown = definition.model;
  if (typeof model === 'function') {
    throw new InvalidServingError(
      `Serving ${formatValue(definition.name)} has ${formatValue(model)} as its model; write ` +
        'model: { useFactory: () => batchFunction } for a batch function, and model: { useClass } for a class',
    );
  }
  const runner = runnerOf(definition);
  const given = Object.keys(kinds).filter(
    (one) => runner[one as keyof RunnerOptions] !== undefined,
  );
  if (given.length !== 1) {
    throw new InvalidServingError(
      `Serving ${formatValue(definition.name)} has ` +
        `${given.join(' and ') || nothingIn(definition, runner, around, more)}; as its model ` +
        `give a file, endpoint(), or an object with exactly one of ${Object.keys(kinds).join(', ')}`,
    );
  }
  const [one] = given as [string];
  const kind = kinds[one]!;
  return [one === 'file' ? 'model' : one, { ...kind, own: { ...kind.own, ...more } }];
}

function nothingIn(
  definition: ServingDefinition,
  runner: RunnerOptions,
  around: Rules,
  more: Rules,
): string {
  const all = [...Object.values(kinds).map(({ own }) => own), more].flatMap(Object.keys);
  const unknown = misspelt(definition, Object.keys(around), '') || misspelt(runner, all, 'model.');
  return `nothing to run its batches${unknown}`;
}

function misspelt(options: object, known: readonly string[], group: string): string {
  const unknown = Object.keys(options).find((option) => !known.includes(option));
  if (unknown === undefined) {
    return '';
  }
  const short = known.find((each) => unknown.toLowerCase().startsWith(each.toLowerCase()));
  const meant = closestName(unknown, known) ?? short;
  const hint = meant === undefined ? '' : `; did you mean "${group}${meant}"?`;
  return ` and the unknown option "${group}${unknown}"${hint}`;
}

/** A module or function gets any options. */
function checkPartitions(
  owner: string,
  { partitions }: ServingDefinition,
  { file }: RunnerOptions,
): void {
  if (file !== undefined && Array.isArray(partitions)) {
    (partitions as readonly object[]).forEach((options, partition) =>
      checkOptions(owner, options, runtimeRules, `partitions[${partition}].`),
    );
  }
}

function partitionsOf(definition: ServingDefinition, more: More): readonly PartitionOptions[] {
  if (isExternal(definition)) {
    return [...definition.model.engineFor(definition).partitions];
  }
  const { file, session, isolation } = runnerOf(definition);
  const { partitions = 1 } = definition;
  const own =
    partitions === true
      ? (more.devicesOf({ ...session }) ?? Array.from({ length: freeCores() }, () => ({})))
      : typeof partitions === 'number'
        ? Array.from({ length: partitions }, () => ({}))
        : partitions.map((options) => ({ ...options }));
  if (file === undefined) {
    return own;
  }
  // In its own thread a run is too short to divide.
  const intraOpNumThreads =
    isolation === 'none' ? 1 : Math.max(1, Math.floor(freeCores() / own.length));
  return own.map((options) => ({ intraOpNumThreads, ...session, ...options }));
}

/** All cores but one, which the event loop needs. */
function freeCores(): number {
  return Math.max(1, availableParallelism() - 1);
}

function isStrings(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((entry) => typeof entry === 'string' && entry !== '');
}

function pathOr(allowed: string, other: Rule['check']): Rule {
  return {
    check: (value) =>
      (typeof value === 'string' && value !== '') || value instanceof URL || other(value),
    allowed,
  };
}
