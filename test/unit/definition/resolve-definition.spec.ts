import { describe, expect, it } from '@jest/globals';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { InvalidServingError } from '../../../lib/core/errors.js';
import { modelOf, moduleOf } from '../../../lib/core/definition/resolve-definition.js';
import { features } from '../../../lib/features/features.js';
import type { ServingDefinition } from '../../../lib/core/definition/serving-definition.js';

class Handler {}

const useFactory = () => (rows: unknown[]) => rows;
const valid = { name: 'embedder', model: { useFactory } };
const model = { name: 'embedder', model: 'model.onnx' };
const circular: Record<string, unknown> = {};
circular['self'] = circular;

/** Options that violate the types are allowed here. */
const resolve = (definition: object) => features.resolve(definition as ServingDefinition);

describe('resolveDefinition', () => {
  it.each([
    [
      { wait: 1 },
      'unknown option "distribution.wait" (1); known are enabled, postprocess, preprocess, weight',
    ],
    [{ weight: -1 }, 'option "distribution.weight" is -1; allowed is a number from 0 to 1000000'],
  ])('[1.9] The distribution options %j are refused', (distribution, message) => {
    expect(() => resolve({ ...valid, distribution })).toThrow(
      `Serving "embedder" with "useFactory": ${message}`,
    );
  });

  it('[4.12] A definition without options gets every default', () => {
    const limits = { batchSize: 32, batchTimeout: 0, runSize: Infinity };
    expect(resolve(valid)).toEqual({
      name: 'embedder',
      version: '1',
      runner: 'function',
      isolation: undefined,
      distribution: {
        enabled: true,
        weight: 1,
        idempotent: false,
        saturation: 64,
        preprocess: undefined,
        postprocess: undefined,
      },
      queue: {
        maxRows: 10_000,
        maxRowsPerCall: 10_000,
        maxBytesPerCall: undefined,
        maxCost: undefined,
        order: { ageing: 1000, weights: new Map() },
        separateOrigins: false,
        preservesOrder: false,
      },
      recovery: {
        idempotent: false,
        isolateFailures: false,
        retries: 2,
        runTimeout: undefined,
        restartDelay: 100,
        maxRestarts: 5,
        restartTimeout: 600_000,
      },
      keys: new Map([['default', limits]]),
      otherKeys: limits,
      warmUp: [],
      checkRows: true,
      cuts: {},
      partitions: [{}],
      shutdown: { drain: true, timeout: 30_000 },
    });
  });

  it('[1.9] A definition with options gets their values', () => {
    const ofKeys = { batchSize: 8, batchTimeout: 2.5 };
    const given = {
      queue: { maxRows: 8, maxRowsPerCall: 5, maxBytesPerCall: 4096, separateOrigins: true },
      warmUp: ['a'],
      recovery: { runTimeout: 500 },
      shutdown: { drain: false, timeout: 0 },
    };

    const resolved = resolve({ ...valid, ...ofKeys, ...given, batchKeys: ['en', 'de'] });

    const limits = { ...ofKeys, runSize: 8 };
    expect(resolved).toMatchObject({ ...given, otherKeys: limits });
    expect(Object.fromEntries(resolved.keys)).toEqual({ en: limits, de: limits });
  });

  it('[1.9] [5.6] The options for restarts of threads and processes are accepted', () => {
    const given = { recovery: { restartDelay: 0, maxRestarts: 0, restartTimeout: 1 } };

    expect(resolve({ ...model, ...given })).toMatchObject(given);
    expect(resolve({ name: 'a', model: { useFile: 'a.mjs' }, ...given })).toMatchObject(given);
  });

  it("[5.8] A model in the application's own thread uses one core", () => {
    const own = { ...model, model: { file: 'model.onnx', isolation: 'none' } };

    expect(resolve(own)).toMatchObject({
      isolation: 'none',
      partitions: [{ intraOpNumThreads: 1 }],
    });
    expect(resolve({ ...own, partitions: [{ intraOpNumThreads: 2 }] }).partitions).toEqual([
      { intraOpNumThreads: 2 },
    ]);
  });

  it('[1.9] [16.5] A limit of sessions that is undefined has its default', () => {
    const sessions = { max: undefined, idle: 5 } as object;

    expect(resolve({ name: 'a', model: { useFactory, sessions } }).states).toMatchObject({
      max: 1000,
      idle: 5,
    });
  });

  it('[1.9] An option that is undefined counts as absent', () => {
    const options = {
      batchSize: undefined,
      batchTimeout: undefined,
      partitions: undefined,
      batchKeys: undefined,
      shutdown: { drain: undefined },
    };

    expect(resolve({ ...valid, ...options })).toEqual(resolve(valid));
  });

  it.each([
    ['a number', { ...valid, partitions: 3 }, [{}, {}, {}]],
    ['a list of options', { ...valid, partitions: [{ deviceId: 1 }, {}] }, [{ deviceId: 1 }, {}]],
    [
      'true',
      { ...valid, partitions: true },
      Array.from({ length: Math.max(1, availableParallelism() - 1) }, () => ({})),
    ],
    [
      'a list, whose options win over those of the session',
      {
        ...model,
        model: {
          file: 'model.onnx',
          session: { intraOpNumThreads: 4, graphOptimizationLevel: 'all' },
        },
        partitions: [{ intraOpNumThreads: 2 }, {}],
      },
      [
        { intraOpNumThreads: 2, graphOptimizationLevel: 'all' },
        { intraOpNumThreads: 4, graphOptimizationLevel: 'all' },
      ],
    ],
    [
      'as many sessions of a model as share all cores but one',
      { ...model, partitions: 1000 },
      Array.from({ length: 1000 }, () => ({ intraOpNumThreads: 1 })),
    ],
  ])('[5.1] Each partition gets its options: %s', (_, definition, partitions) => {
    expect(resolve(definition).partitions).toEqual(partitions);
  });

  it('[1.9] Later changes to the definition do not change the resolved options', () => {
    const partitions = [{ deviceId: 0 }];
    const batchKeys = ['en'];
    const allowedSizes = [4, 8];
    const warmUp = ['a'];
    const resolved = resolve({ ...valid, partitions, batchKeys, batchSize: allowedSizes, warmUp });

    partitions[0]!.deviceId = 1;
    partitions.push({ deviceId: 2 });
    batchKeys.push('de');
    allowedSizes.push(16);
    warmUp.push('b');

    expect(resolved).toMatchObject({ partitions: [{ deviceId: 0 }], warmUp: ['a'] });
    expect([...resolved.keys]).toEqual([['en', expect.objectContaining({ allowedSizes: [4, 8] })]]);
  });

  it('[1.9] A frozen definition and one derived from it are accepted', () => {
    const base = Object.freeze({ ...valid, batchSize: 8 });

    expect(resolve({ ...base, name: 'other', batchSize: 4 })).toMatchObject({
      name: 'other',
      otherKeys: { batchSize: 4 },
    });
    expect(resolve(base)).toMatchObject({ name: 'embedder', otherKeys: { batchSize: 8 } });
  });

  const positive = 'allowed is a whole number from 1 to 1048576';
  const milliseconds = 'allowed is milliseconds from 0 to 2147483647';
  const partitions =
    'allowed is a number from 1 to 1024, true, or a list of options, one per partition';
  const axes = 'allowed is an object of { batchAxis: number | null, variableAxis: number } by name';
  it.each([
    [{ batchSize: 0 }, `option "batchSize" is 0; ${positive}`],
    [{ batchSize: 1.5 }, `option "batchSize" is 1.5; ${positive}`],
    [{ batchSize: NaN }, `option "batchSize" is NaN; ${positive}`],
    [{ batchSize: Infinity }, `option "batchSize" is Infinity; ${positive}`],
    [{ batchSize: '8' }, `option "batchSize" is "8"; ${positive}`],
    [{ batchSize: 8n }, `option "batchSize" is 8n; ${positive}`],
    [{ batchSize: null }, `option "batchSize" is null; ${positive}`],
    [{ batchSize: 2 ** 21 }, `option "batchSize" is 2097152; ${positive}`],
    [
      { batchSize: 64, queue: { maxRows: 63 } },
      'batchSize 64 is more than queue.maxRows 63, so no batch could ever fill',
    ],
    [
      { queue: { maxRowsPerCall: 101, maxRows: 100 } },
      'queue.maxRowsPerCall 101 is more than queue.maxRows 100, so no such call could ever wait',
    ],
    [
      { queue: { maxRowsPerCall: 0 } },
      'option "queue.maxRowsPerCall" is 0; allowed is a whole number from 1 to',
    ],
    [
      { queue: { maxBytesPerCall: 1.5 } },
      'option "queue.maxBytesPerCall" is 1.5; allowed is a whole number from 1 to',
    ],
    [
      { queue: { maxRows: 31 } },
      'batchSize 32 is more than queue.maxRows 31, so no batch could ever fill',
    ],
    [{ queue: { maxRows: 0 } }, 'option "queue.maxRows" is 0; allowed is a whole number from 1 to'],
    [{ batchTimeout: -1 }, `option "batchTimeout" is -1; ${milliseconds}`],
    [{ batchTimeout: NaN }, `option "batchTimeout" is NaN; ${milliseconds}`],
    [{ batchTimeout: 2 ** 31 }, `option "batchTimeout" is 2147483648; ${milliseconds}`],
    [{ shutdown: { timeout: '30s' } }, `option "shutdown.timeout" is "30s"; ${milliseconds}`],
    [
      { recovery: { runTimeout: 0 } },
      'option "recovery.runTimeout" is 0; allowed is milliseconds from 1 to 2147483647',
    ],
    [{ shutdown: { drain: 'no' } }, 'option "shutdown.drain" is "no"; allowed is true or false'],
    [{ partitions: 0 }, `option "partitions" is 0; ${partitions}`],
    [{ partitions: false }, `option "partitions" is false; ${partitions}`],
    [{ partitions: [] }, `option "partitions" is []; ${partitions}`],
    [{ partitions: [1, 2] }, `option "partitions" is [ 1, 2 ]; ${partitions}`],
    [{ batchKeys: [] }, 'option "batchKeys" is []; allowed is a list of different keys'],
    [
      { batchKeys: ['en', 'en'] },
      `option "batchKeys" is [ 'en', 'en' ]; allowed is a list of different keys`,
    ],
    [{ batchKeys: [''] }, `option "batchKeys" is [ '' ]; allowed is a list of different keys`],
    [{ batchKeys: 'en' }, 'option "batchKeys" is "en"; allowed is a list of different keys'],
    [{ distribution: true }, 'option "distribution" is true; allowed is an object of enabled,'],
    [{ preprocess: 'text' }, 'option "preprocess" is "text"; allowed is a function'],
    [{ postprocess: {} }, 'option "postprocess" is {}; allowed is a function'],
    [
      { model: { useFactory: Handler.name } },
      'option "model.useFactory" is "Handler"; allowed is a function',
    ],
    [
      { batchsize: 8 },
      'unknown option "batchsize" (8); did you mean "batchSize"? known are batchKeys, batchSize, batchTimeout,',
    ],
    [
      { logger: circular },
      'unknown option "logger" (<ref *1> { self: [Circular *1] }); known are batchKeys,',
    ],
    [
      { recovery: { maxRestarts: 3 } },
      "recovery.maxRestarts 3 has no effect in the application's own thread, where a run cannot be ended and no partition is lost",
    ],
    [
      { recovery: { restartTimeout: 3 } },
      "recovery.restartTimeout 3 has no effect in the application's own thread, where a run cannot be ended and no partition is lost",
    ],
    [
      { model: { useFactory, isolation: 'process' } },
      'option "model.isolation" is "process"; allowed is nothing here: only model files and useFile run apart',
    ],
    [{ session: {} }, 'unknown option "session" ({}); known are batchKeys,'],
    [{ constructor: 1 }, 'unknown option "constructor" (1); known are batchKeys,'],
    [
      { recovery: { retries: -1 } },
      'option "recovery.retries" is -1; allowed is a whole number from 0 to 100',
    ],
    [
      { recovery: { retries: 1.5 } },
      'option "recovery.retries" is 1.5; allowed is a whole number from 0 to 100',
    ],
    [
      { recovery: { retries: 3 } },
      'recovery.retries needs recovery.idempotent: true, since it repeats batches whose partition was lost',
    ],
  ])('[1.9] [M8] The options %p are refused', (options, message) => {
    const resolving = (): unknown => resolve({ ...valid, ...options });

    expect(resolving).toThrow(InvalidServingError);
    expect(resolving).toThrow(`Serving "embedder" with "useFactory": ${message}`);
  });

  it.each([
    [
      { name: '', model: { useFactory } },
      'createServing: option "name" of a serving is ""; allowed is a string that is not empty',
    ],
    [
      { model: { useFactory } },
      'createServing: option "name" of a serving is undefined; allowed is a string that is not empty',
    ],
    [
      { name: 'a' },
      'Serving "a" has nothing to run its batches; as its model give a file, endpoint(), or an object with exactly one of file, useFactory, useFile, useClass, useExisting',
    ],
    [
      { name: 'a', model: { file: 'a.onnx', useFactory } },
      'Serving "a" has file and useFactory; as its model give a file, endpoint(), or an object with exactly one of',
    ],
    [
      { name: 'a', model: '' },
      'Serving "a" with "model": option "model" is ""; allowed is a path, a file: or https: URL, an hf: address, or the bytes of an ONNX file',
    ],
    [{ name: 'a', model: [1] }, 'Serving "a" has nothing to run its batches'],
    [{ name: 'a', model: { session: {} } }, 'Serving "a" has nothing to run its batches'],
    [{ name: 'a', model: { file: '' } }, 'option "model.file" is ""; allowed is a path'],
    [
      { name: 'a', model: { file: 'a.onnx', input: {} } },
      'unknown option "model.input" ({}); did you mean "model.inputs"? known are blockingLimit, checkRows, fetches, file, inputs, isolation, outputs',
    ],
    [
      { ...model, model: { file: 'a.onnx', session: 'cuda' } },
      'option "model.session" is "cuda"; allowed is an object',
    ],
    ...(
      [
        [{ executionProviders: 'cpu' }, 'a list of providers: names, or objects with a name'],
        [{ executionProviders: [null] }, 'a list of providers: names, or objects with a name'],
        [{ intraOpNumThreads: NaN }, 'a whole number from 0 to 2147483647'],
        [{ interOpNumThreads: 1.5 }, 'a whole number from 0 to 2147483647'],
        [{ freeDimensionOverrides: { n: 2.5 } }, "an object of the axes' sizes by name, each a"],
        [
          { graphOptimizationLevel: 'most' },
          '"disabled" or "basic" or "extended" or "layout" or "all"',
        ],
        [{ enableCpuMemArena: 'false' }, 'true or false'],
        [{ enableMemPattern: 0 }, 'true or false'],
        [{ executionMode: 'paralel' }, '"sequential" or "parallel"'],
        [{ optimizedModelFilePath: 1 }, 'a string'],
        [{ enableProfiling: 'yes' }, 'true or false'],
        [{ logId: 5 }, 'a string'],
        [{ logSeverityLevel: 9 }, 'a whole number from 0 to 4'],
        [{ extra: { session: { a: 1 } } }, 'an object of strings, or of such objects'],
      ] as const
    ).map(([session, allowed]): [object, string] => [
      { name: 'a', model: { file: 'a.onnx', session } },
      `; allowed is ${allowed}`,
    ]),
    [
      { name: 'a', model: { file: 'a.onnx', session: { intraOpNumThread: 1 } } },
      'unknown option "model.session.intraOpNumThread" (1); did you mean "model.session.intraOpNumThreads"?',
    ],
    [
      { name: 'a', model: { file: 'a.onnx' }, partitions: [{}, { logId: 5 }] },
      'option "partitions[1].logId" is 5; allowed is a string',
    ],
    [
      { ...model, recovery: { restartDelay: 30_001 } },
      'option "recovery.restartDelay" is 30001; allowed is milliseconds from 0 to 30000',
    ],
    [
      { ...model, recovery: { maxRestarts: -1 } },
      'option "recovery.maxRestarts" is -1; allowed is a whole number from 0 to 9007199254740991',
    ],
    [
      { ...model, recovery: { restartTimeout: 0 } },
      'option "recovery.restartTimeout" is 0; allowed is milliseconds from 1 to 2147483647',
    ],
    [
      { ...model, model: { file: 'a.onnx', inputs: { x: 1 } } },
      `option "model.inputs" is { x: 1 }; ${axes}`,
    ],
    [
      { ...model, model: { file: 'a.onnx', outputs: { x: { axis: 1 } } } },
      `option "model.outputs" is { x: { axis: 1 } }; ${axes}`,
    ],
    [
      { ...model, model: { file: 'model.onnx', isolation: 'fork' } },
      'option "model.isolation" is "fork"; allowed is "thread", "process", "native" or "none"',
    ],
    [
      { name: 'a', model: { useFile: 'a.js', isolation: true } },
      'option "model.isolation" is true; allowed is "thread" or "process"',
    ],
    [
      { name: 'a', model: { useFile: 'a.js', isolation: 'none' } },
      "for a function in the application's own thread use useFactory",
    ],
    [
      { ...model, model: { file: 'model.onnx', blockingLimit: 5 } },
      "blockingLimit 5 is for isolation: 'none'; the runs of a thread or process do not hold the event loop",
    ],
    [
      { ...model, model: { file: 'model.onnx', isolation: 'none', blockingLimit: -1 } },
      'option "model.blockingLimit" is -1; allowed is milliseconds from 0',
    ],
    [
      { ...model, model: { file: 'model.onnx', isolation: 'none' }, partitions: 2 },
      "partitions 2 cannot run in parallel in the application's own thread (isolation: 'none')",
    ],
    [
      { ...model, model: { file: 'model.onnx', isolation: 'none' }, partitions: true },
      "partitions true cannot run in parallel in the application's own thread (isolation: 'none')",
    ],
    ...['restartDelay', 'maxRestarts', 'restartTimeout', 'runTimeout', 'retries'].map(
      (name): [object, string] => [
        { ...model, model: { file: 'model.onnx', isolation: 'none' }, recovery: { [name]: 7 } },
        `recovery.${name} 7 has no effect in the application's own thread`,
      ],
    ),
    [
      {
        ...model,
        model: { file: 'model.onnx', isolation: 'none' },
        partitions: [{ executionProviders: ['webgpu', 'cpu'] }],
      },
      "the execution provider \"webgpu\" needs isolation: 'thread' or 'process'",
    ],
    [
      { name: 'a', model: { useClass: Handler, isolation: 'thread' } },
      'option "model.isolation" is "thread"; allowed is nothing here',
    ],
    [
      { name: 'a', model: { useFile: 3 } },
      'option "model.useFile" is 3; allowed is an absolute path or file: URL of a module',
    ],
    [
      { name: 'a', model: { useClass: new Handler() } },
      'option "model.useClass" is Handler {}; allowed is a function',
    ],
    [
      { name: 'a', model: { useExisting: null } },
      'option "model.useExisting" is null; allowed is an injection token',
    ],
  ])('[1.9] The definition %p is refused', (definition, message) => {
    const resolving = (): unknown => resolve(definition);

    expect(resolving).toThrow(InvalidServingError);
    expect(resolving).toThrow(message);
  });
});

describe('modelOf and moduleOf', () => {
  const here = join(import.meta.dirname, 'resolve-definition.spec.ts');

  it('[1.3] A file is given by path or URL, and a model also by its bytes', () => {
    const bytes = Uint8Array.of(1);

    expect(modelOf('a', { file: bytes })).toBe(bytes);
    for (const file of [here, pathToFileURL(here), pathToFileURL(here).href]) {
      expect(modelOf('a', { file })).toEqual({ file: here });
      expect(moduleOf('a', file)).toBe(pathToFileURL(here).href);
    }
  });

  it.each([
    ['/no/such.onnx', 'Serving "a": there is no file /no/such.onnx'],
    [
      'no/such.onnx',
      `Serving "a": there is no file ${join(process.cwd(), 'no/such.onnx')} (a relative path counts from ${process.cwd()})`,
    ],
    [new URL('file:///no/such.onnx'), 'Serving "a": there is no file /no/such.onnx'],
  ])('[9.1] A missing file is refused with its path: %s', (file, message) => {
    expect(() => modelOf('a', { file })).toThrow(new InvalidServingError(message));
    expect(() => moduleOf('a', file)).toThrow(new InvalidServingError(message));
  });

  it.each<[string | Uint8Array, string | false, string]>([
    [here, false, 'model.sha256 false has no effect on a file of this machine'],
    [Uint8Array.of(1), 'a0'.repeat(32), 'has no effect on the bytes of a model'],
  ])('[1.10] A model is refused at boot: %s with sha256 %s', (file, hash, message) => {
    const resolving = () => modelOf('a', { file, sha256: hash });
    expect(resolving).toThrow(InvalidServingError);
    expect(resolving).toThrow(`Serving "a": `);
    expect(resolving).toThrow(message);
  });

  it('[1.10] An address is refused if nothing here fetches models', () => {
    expect(() => modelOf('a', { file: 'hf:org/repo/model.onnx' })).toThrow(
      'Serving "a": nothing here fetches the model hf:org/repo/model.onnx; import "nestjs-serving"',
    );
  });
});
