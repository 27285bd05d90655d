import { describe, expect, it } from '@jest/globals';
import { type ModuleMetadata } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { Transport } from '@nestjs/microservices';
import {
  Batched,
  type CallOptions,
  createServing,
  type ServingDefinition,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { ServingBoardModule } from 'nestjs-serving/board';
import { ServingClusterModule } from 'nestjs-serving/distribution';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import { OpenAIModule } from 'nestjs-serving/openai';
import { ServingOpenTelemetryModule } from 'nestjs-serving/opentelemetry';
import { textEmbedding, textGeneration } from 'nestjs-serving/tasks';
import { iterated } from '../fixtures/async/streams.js';
import { useServings } from '../fixtures/serving/use-servings.js';
import { embedder } from '../fixtures/tasks/tiny-models.js';

const file = 'sample/01-digits/model/digits.onnx';
const echo = { useFactory: () => (rows: unknown[]) => rows };

const decorate = (...how: unknown[]) => {
  class Texts {
    lengths(texts: string[]): number[] {
      return texts.map(({ length }) => length);
    }
  }
  const own = Object.getOwnPropertyDescriptor(Texts.prototype, 'lengths');
  const decorator = Reflect.apply(Batched, undefined, how) as MethodDecorator;
  decorator(Texts.prototype, 'lengths', own!);
};

const boot = (...imports: NonNullable<ModuleMetadata['imports']>) =>
  Test.createTestingModule({ imports: [ServingModule.forRoot(), ...imports] }).compile();

describe('Wrong options', () => {
  const serve = useServings();

  it.each<[string, object, RegExp]>([
    [
      'a misspelt one',
      { model: { file, session: { intraOpNumThread: 1 } } },
      /unknown option "model\.session\.intraOpNumThread" \(1\); did you mean "model\.session\.intraOpNumThreads"\?/,
    ],
    [
      'one of a partition',
      { model: file, partitions: [{}, { executionProvider: ['cuda'] }] },
      /unknown option "partitions\[1\]\.executionProvider" .+ did you mean "partitions\[1\]\.executionProviders"\?/,
    ],
    [
      'a text for a number',
      { model: { file, session: { intraOpNumThreads: '2' } } },
      /option "model\.session\.intraOpNumThreads" is "2"; allowed is a whole number/,
    ],
    [
      'a text for a switch',
      { model: { file, session: { enableMemPattern: 'false' } } },
      /option "model\.session\.enableMemPattern" is "false"; allowed is true or false/,
    ],
    [
      'a provider without a list',
      { model: { file, session: { executionProviders: 'cpu' } } },
      /option "model\.session\.executionProviders" is "cpu"; allowed is a list of providers/,
    ],
    [
      'a word that is no mode',
      { model: { file, session: { executionMode: 'paralel' } } },
      /option "model\.session\.executionMode" is "paralel"; allowed is "sequential" or "parallel"/,
    ],
    [
      'one of a version',
      { model: file, rollout: { versions: { next: { model: { file, session: { a: 1 } } } } } },
      /unknown option "model\.session\.a"/,
    ],
  ])('[FU51] Of a session, %s fails the start', async (_, options, message) => {
    await expect(
      (async () => serve({ name: 'net', ...options } as ServingDefinition))(),
    ).rejects.toThrow(message);
  });

  it('[FU51] A misspelt option of a session fails a reload', async () => {
    const serving = await serve({ name: 'net', model: file });
    const session = { intraOpNumThread: 1 } as object;
    await expect(serving.reload({ model: { file, session } })).rejects.toThrow(
      /unknown option "model\.session\.intraOpNumThread"/,
    );
  });

  it('[FU51] A misspelt option of a session fails a task', () => {
    const model = { from: 'model', session: { intraOpNumThread: 1 } as object };
    const message = /unknown option "model\.session\.intraOpNumThread"/;
    expect(() => textEmbedding({ name: 'net', model })).toThrow(message);
    expect(() => textGeneration({ name: 'net', model })).toThrow(message);
  });

  it.each<[string, object, string]>([
    ['beside queue', { maxRows: 10, model: echo }, 'queue.maxRows'],
    ['beside batchSize', { latencyTarget: 10, model: echo }, 'batchSize.latencyTarget'],
    ['beside model', { fetches: ['a'], model: file }, 'model.fetches'],
    [
      'beside model.session',
      { model: { file, executionProviders: ['cpu'] } },
      'model.session.executionProviders',
    ],
  ])('[FU52] An option %s is named with its place', (_, options, place) => {
    expect(() => createServing({ name: 'net', ...options } as ServingDefinition)).toThrow(
      `did you mean "${place}"?`,
    );
  });

  it('[FU52] A function or a class as a model is refused with the option that takes it', () => {
    expect(() => createServing({ name: 'net', model: echo.useFactory as never })).toThrow(
      'Serving "net" has [Function: useFactory] as its model; write model: { useFactory: () => batchFunction } ' +
        'for a batch function, and model: { useClass } for a class',
    );
  });

  it.each<[string, unknown[], string]>([
    [
      'without parentheses',
      [{}, 'lengths', {}],
      '@Batched is used without parentheses on lengths; write @Batched()',
    ],
    [
      'with a name and options',
      ['net', { batchSize: 8 }],
      '@Batched("net") takes no options: they are those of the serving "net"',
    ],
    [
      'with a definition',
      [{ name: 'net', model: echo }],
      '@Batched() on Texts.lengths was given the definition of a serving, and takes its name: @Batched("net")',
    ],
    ['with null', [null], '@Batched() on Texts.lengths was given null, and takes an object with'],
    ['with a number', [8], '@Batched() on Texts.lengths was given 8, and takes an object with'],
  ])('[FU53] @Batched() %s is refused', (_, how, message) => {
    expect(() => decorate(...how)).toThrow(message);
  });

  it('[FU54] A call takes a signal or a number in its options only', async () => {
    const serving = await serve({ name: 'net', model: echo });
    const message =
      /^A call was given (an instance of (AbortSignal|Array|Map)|200|null) as its options; they are an object/;
    for (const wrong of [AbortSignal.timeout(60_000), 200, null, [], new Map([['timeout', 5]])]) {
      const options = wrong as CallOptions;
      await expect(async () => serving.batchedRun(1, options)).rejects.toThrow(message);
      await expect(async () => serving.run(1, options)).rejects.toThrow(message);
      expect(() => serving.stream(1, options)).toThrow(message);
    }
  });

  it.each(['zeroCopy', 'group', 'turn', 'resolved', 'recorder'])(
    '[FU70] The option %s, which only the package itself gives a call, is refused from outside',
    async (option) => {
      const serving = await serve({ name: 'net', model: echo });
      const options: CallOptions = { ...({ [option]: 5 } as object) };
      const message = `A call to serving "net" has the unknown option "${option}"`;

      await expect(serving.batchedRun(1, options)).rejects.toThrow(message);
      await expect(serving.run(1, options)).rejects.toThrow(message);
      await expect(iterated(serving.stream(1, options))).rejects.toThrow(message);
      await expect(serving.batchedRun(1)).resolves.toBe(1);
    },
  );

  it('[FU71] The events of a type that no event has are refused', async () => {
    const serving = await serve({ name: 'net', model: echo });
    const app = await Test.createTestingModule({ imports: [ServingModule.forRoot()] }).compile();
    const type = 'batch:ended' as 'batch:end';
    const message =
      'There are no events "batch:ended"; observe call:start, call:end, batch:start, batch:end, ' +
      'partition:change, sequence:step';

    expect(() => serving.eventsOf(type)).toThrow(message);
    expect(() => app.get(ServingService).eventsOf(type)).toThrow(message);
    expect(() => serving.eventsOf('sequence:step')).not.toThrow();
  });

  it('[FU54] A session and its calls take a signal or a number in their options only', async () => {
    const serving = await serve({ name: 'net', model: { ...echo, sessions: {} } });
    const session = serving.open();
    for (const wrong of [AbortSignal.timeout(60_000), 200, null, []]) {
      const options = wrong as CallOptions;
      expect(() => serving.open(options)).toThrow('as its options; they are an object');
      await expect(async () => session.run(1, options)).rejects.toThrow(
        'as its options; they are an object',
      );
    }
    await session.close();
  });

  it.each(['tenant', 'key', 'version'])(
    '[FU54] A call of a session takes no %s, which its session has',
    async (option) => {
      const serving = await serve({ name: 'net', model: { ...echo, sessions: {} } });
      const session = serving.open();

      await expect(async () => session.run(1, { [option]: 'default' })).rejects.toThrow(
        `A call of a session of serving "net" has the option "${option}", which is its session's: ` +
          `open({ ${option} })`,
      );
      await session.close();
    },
  );

  it('[FU54] A call of a batched method takes a signal or a number in its options only, and the signal of an AbortController', async () => {
    class Texts {
      @Batched()
      lengths(texts: string[]): number[] {
        return texts.map(({ length }) => length);
      }
    }
    const app = await Test.createTestingModule({
      imports: [ServingModule.forRoot()],
      providers: [Texts],
    }).compile();
    await app.init();
    const servings = app.get(ServingService);
    const aborted = new AbortController();
    aborted.abort(new Error('left'));

    for (const wrong of [AbortSignal.timeout(60_000), 200, null, []]) {
      const call = servings.batchedRun('Texts.lengths', ['ab'], wrong as CallOptions);
      await expect(call).rejects.toThrow('as its options; they are an object');
    }
    for (const run of ['batchedRun', 'run'] as const) {
      await expect(servings[run]('Texts.lengths', ['ab'], aborted)).rejects.toThrow('left');
    }
    await app.close();
  });

  it.each([
    ['ServingBoardModule', ServingBoardModule],
    ['InferenceProtocolModule', InferenceProtocolModule],
    ['OpenAIModule', OpenAIModule],
    ['ServingClusterModule', ServingClusterModule],
    ['ServingOpenTelemetryModule', ServingOpenTelemetryModule],
    ['ServingModule', ServingModule],
  ])('[FU55] %s refuses options that it would ignore', async (name, module) => {
    const later = Promise.resolve({}) as never;
    expect(() => module.forRoot(later)).toThrow(`${name}.forRoot was given a promise, and takes`);
    expect(() => module.forRoot(null as never)).toThrow(
      `${name}.forRoot was given null, and takes`,
    );
    expect(() => module.forRootAsync({ useFactory: () => ({}), guards: [] } as never)).toThrow(
      `${name}.forRootAsync: unknown option "guards"`,
    );
    expect(() => module.forRootAsync({})).toThrow(
      `${name}.forRootAsync has nothing that makes its options; give one of useFactory, useClass, useExisting`,
    );
    if (module !== ServingOpenTelemetryModule) {
      const nothing = module.forRootAsync({ useFactory: () => undefined as never });
      const imports = module === ServingModule ? [nothing] : [ServingModule.forRoot(), nothing];
      await expect(Test.createTestingModule({ imports }).compile()).rejects.toThrow(
        /was given undefined, and takes an object with/,
      );
    }
  });

  it('[FU55] ServingClusterModule by its class alone is refused', async () => {
    await expect(boot(ServingClusterModule)).rejects.toThrow(
      'A module imports ServingClusterModule without options: write ServingClusterModule.forRoot(',
    );
    const cluster = ServingClusterModule.forRoot({ transport: Transport.TCP, peers: ['a:1'] });
    await (await boot(cluster)).close();
  });

  it('[FU55] ServingOpenTelemetryModule names a wrong option, and a missing ServingModule', async () => {
    const misspelt = await boot(ServingOpenTelemetryModule.forRoot({ meter: 1 } as object));
    await expect(misspelt.init()).rejects.toThrow(
      'ServingOpenTelemetryModule: unknown option "meter"',
    );
    const wrong = ServingOpenTelemetryModule.forRoot({ meterProvider: {} as never });
    await expect((await boot(wrong)).init()).rejects.toThrow(
      'ServingOpenTelemetryModule: option "meterProvider" is {}; allowed is a provider with getMeter()',
    );
    const alone = await Test.createTestingModule({
      imports: [ServingOpenTelemetryModule],
    }).compile();
    await expect(alone.init()).rejects.toThrow(
      'ServingOpenTelemetryModule observes the servings of the application; import ServingModule.forRoot next to it',
    );
  });

  it.each([
    ['InferenceProtocolModule', InferenceProtocolModule],
    ['ServingOpenTelemetryModule', ServingOpenTelemetryModule],
  ])('[23.20] %s is refused a second time', async (name, module) => {
    const two = [module.forRoot({}), module.forRoot({})];
    await expect(boot(...two)).rejects.toThrow(
      `${name} is imported twice; import it once, in the root module`,
    );
    await (await boot(two[0]!, two[0]!)).close();
  });

  it('[23.20] A path of two boards or of two doors of OpenAI is refused, also from a factory', async () => {
    const options = { guards: [], models: { embedder } };
    const { guards } = options;
    for (const [first, second, name] of [
      [
        ServingBoardModule.forRoot({ guards }),
        ServingBoardModule.forRootAsync({ path: '/Servings', useFactory: () => ({ guards }) }),
        'ServingBoardModule is imported twice with the path "servings"',
      ],
      [
        OpenAIModule.forRoot(options),
        OpenAIModule.forRoot(options),
        'OpenAIModule is imported twice with the path ""',
      ],
    ] as const) {
      await expect(boot(first, second)).rejects.toThrow(`${name}; give each a path of its own`);
    }
  });
});
