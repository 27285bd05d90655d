import { type INestApplication, ValidationPipe } from '@nestjs/common';
// #region imports
import { Body, Controller, Injectable, Module, Param, Post } from '@nestjs/common';
import {
  Batch,
  Batched,
  defineServing,
  InjectServing,
  ServingModule,
  ServingService,
  Tensor,
  withMetadata,
} from 'nestjs-serving';
import type { Serving, ServingHandler, ServingOf } from 'nestjs-serving';
// #endregion
import { afterEach, describe, expect, it } from '@jest/globals';
import { IsString } from 'class-validator';
import { trace } from '@opentelemetry/api';
import { Telemetry } from '../../fixtures/serving/telemetry.js';
// #region cache-imports
import { CacheModule } from '@nestjs/cache-manager';
// #endregion
// #region telemetry-imports
import { ServingOpenTelemetryModule } from 'nestjs-serving/opentelemetry';
// #endregion
// #region testing-imports
import { Test } from '@nestjs/testing';
import { BatchScript, overrideServing, recordBatches, VirtualTime } from 'nestjs-serving/testing';
// #endregion
import { asCaller, createServing, getServingToken } from 'nestjs-serving';
import { inFolder } from '../../fixtures/serving/in-folder.js';

inFolder('sample/01-digits/model');

// #region model
export const digits = defineServing({
  name: 'digits',
  model: 'digits.onnx',
  batchSize: 32,

  preprocess(pixels: number[]) {
    return { batch: { image: new Tensor('float32', Float32Array.from(pixels), [1, 784]) } };
  },
  postprocess({ probabilities }: { probabilities: Tensor }) {
    const values = [...(probabilities.data as Float32Array)];
    return values.indexOf(Math.max(...values));
  },
});

@Controller('digits')
export class DigitsController {
  constructor(private readonly servings: ServingService) {}

  @Post()
  async read(@Body() { pixels }: { pixels: number[] }) {
    return { digit: await this.servings.batchedRun(digits, pixels) };
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: [digits] })],
  controllers: [DigitsController],
})
export class AppModule {}
// #endregion

// #region telemetry
@Module({ imports: [ServingModule.forRoot({ servings: [digits] }), ServingOpenTelemetryModule] })
export class TracedModule {}
// #endregion

// #region handle
@Injectable()
export class MailSorter {
  constructor(@InjectServing(digits) private readonly reader: ServingOf<typeof digits>) {}

  async postcode(images: number[][]): Promise<string> {
    const read = await Promise.all(images.map((image) => this.reader.batchedRun(image)));
    return read.join('');
  }
}
// #endregion

class ScoreDto {
  @IsString()
  readonly text!: string;
}

// #region batched
@Controller('models/:model')
export class ScoreController {
  @Post('score')
  @Batched({ batchSize: 64, batchTimeout: 10, types: [ScoreDto, String] })
  score(@Body() bodies: ScoreDto[], @Param('model') models: string[]): (number | Error)[] {
    // Runs once per batch; each client gets the entry of its own call, and an Error goes to that
    // client alone.
    return bodies.map(({ text }, i) =>
      models[i] === 'length' ? text.length : new Error(`No model ${models[i]}`),
    );
  }
}
// #endregion

// #region preprocessing
@Controller('pictures')
export class PictureController {
  @Post()
  @Batched('digits')
  read(@Body() { picture }: { picture: string }) {
    // The result is the input of 'digits'; the output of 'digits' is the reply.
    return picture.split('').map((character) => (character === '#' ? 1 : 0));
  }
}
// #endregion

// #region provider
@Injectable()
export class UserLoader {
  @Batched({ batchSize: 100 })
  async byId(ids: number[]): Promise<(string | Error)[]> {
    // One query for all ids of the batch would be here.
    return ids.map((id) => (id > 0 ? `user ${id}` : new Error(`No user ${id}`)));
  }
}
// #endregion

// #region method-options
@Injectable()
export class RateService {
  @Batched({
    warmUp: [['EUR', 'USD']], // the arguments of a call
    timeout: { most: 2000 },
    deduplication: { singleFlight: true }, // Equal calls at the same time are one.
    recovery: { runTimeout: 1000 },
  })
  async rate(from: string[], to: string[]): Promise<number[]> {
    // One request for all pairs of the batch would be here.
    return from.map((currency, i) => (currency === to[i] ? 1 : 1.1));
  }
}
// #endregion

@Injectable()
class VocabularyService {
  async load(): Promise<void> {}

  decode(ids: ArrayLike<number | bigint>): string {
    return Array.from(ids, (id) => String.fromCharCode(96 + Number(id))).join('');
  }
}

@Module({ providers: [VocabularyService], exports: [VocabularyService] })
class VocabularyModule {}

// #region class
@Injectable()
export class Translator implements ServingHandler {
  constructor(private readonly vocabulary: VocabularyService) {}

  async init(): Promise<void> {
    await this.vocabulary.load(); // The application listens only after this.
  }

  handleBatch(batch: Batch, partition: number) {
    const sentences = batch.consume() as number[][];
    return { output: sentences.map((ids) => this.vocabulary.decode(ids)), metadata: { partition } };
  }
}

@Module({
  imports: [
    ServingModule.forRoot({
      imports: [VocabularyModule],
      servings: [{ name: 'translator', model: { useClass: Translator } }],
    }),
  ],
})
export class TranslatorModule {}
// #endregion

// #region function
export const shout = defineServing({
  name: 'shout',
  model: {
    useFactory: ({ partition }) => {
      // Called once per partition and key at start. Load here what the function needs.
      return (texts: string[]) =>
        withMetadata(
          texts.map((text) => text.toUpperCase()),
          { partition },
        );
    },
  },
  postprocess(text: string, { metadata }) {
    return { text, metadata };
  },
});
// #endregion

// #region copy
export const words = defineServing({
  name: 'words',
  queue: { maxRows: 1000, tenant: (text: string) => text.split(':')[0] },
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.split(' ').length) },
});

export const fewWords = defineServing({
  ...words,
  name: 'few words',
  queue: { ...words.queue, maxRows: 100 }, // Without ...words.queue it would have no tenants.
});
// #endregion

// #region thread
export const primes = defineServing({
  name: 'primes',
  model: { useFile: new URL('./primes.js', import.meta.url) },
  partitions: 2,
});
// #endregion

@Module({
  imports: [
    ServingModule.forRootAsync({
      names: ['digits'],
      useFactory: () => ({
        servings: [{ ...digits, batchTimeout: Number(process.env['BATCH_TIMEOUT'] ?? 5) }],
      }),
    }),
  ],
})
export class ConfiguredModule {}

interface Comment {
  readonly author: string;
  readonly text: string;
}

const moodOf = (text: string): string => (text.endsWith('!') ? 'excited' : 'calm');

// #region alike
export const moods = defineServing({
  name: 'moods',
  deduplication: {
    singleFlight: true, // Concurrent calls with the same text share one run.
    cache: { ttl: 60_000 }, // Calls of the next minute get the kept reply.
    key: ({ text }: Comment) => text, // The author does not change the reply.
  },
  preprocess: ({ text }: Comment) => ({ batch: text }),
  model: { useFactory: () => (texts: string[]) => texts.map((text) => ({ mood: moodOf(text) })) },
});

@Module({ imports: [CacheModule.register(), ServingModule.forRoot({ servings: [moods] })] })
export class MoodsModule {}
// #endregion

// #region plain-rows
export const scores = defineServing({
  name: 'scores',
  preprocess: (dto: { text: string }) => ({ batch: { text: dto.text } }),
  model: { useFactory: () => (rows: { text: string }[]) => rows.map(({ text }) => text.length) },
});
// #endregion

// #region devices
export const onTwoDevices = {
  ...digits,
  partitions: [
    { executionProviders: [{ name: 'cuda', deviceId: 0 }, 'cpu'] },
    { executionProviders: [{ name: 'cuda', deviceId: 1 }, 'cpu'] },
  ],
};
// #endregion

// #region native-gpu
const gpu = { name: 'cuda', deviceId: 0, gpuMemLimit: 8 * 2 ** 30 };

export const onOneGpu = {
  ...digits,
  partitions: 2,
  model: {
    file: 'digits.onnx',
    isolation: 'native',
    session: { executionProviders: [gpu, 'cpu'] },
  },
} as const;
// #endregion

// #region main-thread
export const inOwnThread = defineServing({
  ...digits,
  model: { file: 'digits.onnx', isolation: 'none' },
});
// #endregion

// #region native
export const onOneSession = defineServing({
  ...digits,
  partitions: 3,
  model: { file: 'digits.onnx', isolation: 'native' },
});
// #endregion

const blank = Array.from({ length: 784 }, () => 0);

describe('The manual on servings', () => {
  let app: INestApplication | undefined;

  afterEach(async () => {
    await app?.close();
    app = undefined;
  });

  async function start(module: {
    imports?: object[];
    controllers?: unknown[];
    providers?: unknown[];
  }): Promise<INestApplication> {
    const testing = await Test.createTestingModule(module as never).compile();
    app = testing.createNestApplication({ logger: ['error'] });
    app.useGlobalPipes(new ValidationPipe());
    await app.listen(0, '127.0.0.1');
    return app;
  }

  async function post(path: string, body: object): Promise<{ status: number; body: unknown }> {
    const reply = await fetch(`${await app!.getUrl()}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    const text = await reply.text();
    return { status: reply.status, body: text.startsWith('{') ? JSON.parse(text) : text };
  }

  it("[1.3] [3.2] The manual's endpoint answers with a model", async () => {
    await start({ imports: [AppModule] });
    const replies = await Promise.all(
      Array.from({ length: 50 }, () => post('/digits', { pixels: blank })),
    );
    expect(new Set(replies.map(({ status }) => status))).toEqual(new Set([201]));
    expect(replies[0]!.body).toEqual({ digit: expect.any(Number) });
  });

  it("[5.8] The manual's model in the application's own thread answers", async () => {
    await start({ imports: [ServingModule.forRoot({ servings: [inOwnThread] })] });
    const serving = app!.get<ServingOf<typeof inOwnThread>>(getServingToken('digits'));
    expect(await serving.batchedRun(blank)).toEqual(expect.any(Number));
  });

  it("[24.2] The manual's serving with one copy of the weights answers", async () => {
    await start({ imports: [ServingModule.forRoot({ servings: [onOneSession] })] });
    const serving = app!.get<ServingOf<typeof onOneSession>>(getServingToken('digits'));
    const answers = await Promise.all(Array.from({ length: 9 }, () => serving.batchedRun(blank)));
    expect(new Set(answers)).toEqual(new Set([expect.any(Number)]));
  });

  it("[3.3] The manual's typed handle answers", async () => {
    await start({ imports: [AppModule], providers: [MailSorter] });
    expect(await app!.get(MailSorter).postcode([blank, blank, blank])).toMatch(/^\d{3}$/);
  });

  it("[10.2] The manual's batched endpoint validates each client by itself", async () => {
    await start({ imports: [ServingModule.forRoot()], controllers: [ScoreController] });
    const [good, invalid, failed] = await Promise.all([
      post('/models/length/score', { text: 'four' }),
      post('/models/length/score', { text: 4 }),
      post('/models/unknown/score', { text: 'four' }),
    ]);
    expect([good.status, invalid.status, failed.status]).toEqual([201, 400, 500]);
    expect(good.body).toBe('4');
  });

  it("[10.3] The manual's endpoint that only preprocesses answers", async () => {
    await start({ imports: [AppModule], controllers: [PictureController] });
    expect((await post('/pictures', { picture: '#'.repeat(784) })).status).toBe(201);
  });

  it("[10.2] The manual's batched provider answers", async () => {
    await start({ imports: [ServingModule.forRoot()], providers: [UserLoader] });
    // #region caller
    // The same object with the types that callers need: single ids, a promise of one name.
    const users = asCaller(app!.get(UserLoader));
    const names = await Promise.all([1, 2, 3].map((id) => users.byId(id)));
    // #endregion
    expect(names).toEqual(['user 1', 'user 2', 'user 3']);
    await expect(users.byId(-1)).rejects.toThrow('No user -1');
  });

  it("[N12] The manual's method with options answers, and its copy of a definition keeps the group", async () => {
    await start({
      imports: [ServingModule.forRoot({ servings: [fewWords] })],
      providers: [RateService],
    });
    const rates = asCaller(app!.get(RateService));
    expect(await Promise.all([rates.rate('EUR', 'USD'), rates.rate('EUR', 'EUR')])).toEqual([
      1.1, 1,
    ]);
    expect(await app!.get(ServingService).batchedRun(fewWords, 'ann: two words')).toBe(3);
    expect(fewWords.queue).toEqual({ ...words.queue, maxRows: 100 });
    expect(fewWords.queue?.tenant?.('ann: two words')).toBe('ann');
  });

  it("[1.1] [1.2] [1.6] [10.1] The manual's class, function and configured servings answer", async () => {
    await start({ imports: [TranslatorModule] });
    expect(await app!.get(ServingService).batchedRun('translator', [8, 9])).toBe('hi');
    await app!.close();
    await start({ imports: [ServingModule.forRoot({ servings: [shout] })] });
    const shouter: Serving<string, { text: string; metadata: unknown }> = app!.get(
      getServingToken(shout),
    );
    expect(await shouter.batchedRun('hi')).toEqual({ text: 'HI', metadata: { partition: 0 } });
    await app!.close();
    await start({ imports: [ConfiguredModule] });
    expect(await app!.get(ServingService).batchedRun(digits, blank)).toEqual(expect.any(Number));
  });

  it("[1.4] The manual's function in a thread of its own answers", async () => {
    await start({ imports: [ServingModule.forRoot({ servings: [primes] })] });
    const serving: Serving = app!.get(getServingToken(primes));
    expect(await Promise.all([7, 8, 9].map((n) => serving.batchedRun(n)))).toEqual([
      true,
      false,
      false,
    ]);
  });

  it("[5.1] [5.7] The manual's devices with a fallback answer", async () => {
    await start({ imports: [ServingModule.forRoot({ servings: [onTwoDevices] })] });
    expect(await app!.get(ServingService).batchedRun(digits, blank)).toEqual(expect.any(Number));
  });

  it("[FU11] The manual's preprocess of plain rows makes one row", async () => {
    await start({ imports: [ServingModule.forRoot({ servings: [scores] })] });
    expect(await app!.get(ServingService).batchedRun(scores, { text: 'four' })).toBe(4);
  });

  it("[24.11] The manual's session for the partitions of a GPU answers", async () => {
    await start({ imports: [ServingModule.forRoot({ servings: [onOneGpu] })] });
    expect(await app!.get(ServingService).batchedRun(digits, blank)).toEqual(expect.any(Number));
  });

  it("The manual's equal calls share one run and its cached reply", async () => {
    await start({ imports: [MoodsModule] });
    const servings = app!.get(ServingService);
    const batches = recordBatches(servings);
    const ask = (author: string): Promise<unknown> =>
      servings.batchedRun(moods, { author, text: 'Hello!' });
    const replies = await Promise.all([ask('Ada'), ask('Max')]);
    expect([...replies, await ask('Eve')]).toEqual([1, 2, 3].map(() => ({ mood: 'excited' })));
    expect(batches).toMatchObject([{ rows: 1 }]);
  });

  it("[1.7] [2.1] [2.2] The manual's rows and batches have the replies that it states", async () => {
    await start({ imports: [] });
    // #region batches
    const sums = createServing({
      name: 'sums',
      model: { useFactory: () => (rows: number[][]) => rows.map(([a = 0, b = 0]) => a + b) },
    });
    await sums.start();

    const one = await sums.batchedRun([1, 2]); // One plain value is one row: 3.
    const many = await sums.batchedRun(
      Batch.stack([
        [1, 2],
        [3, 4],
      ]),
    ); // A batch of two rows: [3, 7].
    const alone = await sums.run([5, 6]); // Runs at once, in a batch of its own: 11.

    await sums.close();
    // #endregion
    expect([one, many, alone]).toEqual([3, [3, 7], 11]);
  });

  it("The manual's test without a model passes", async () => {
    // #region testing
    const testing = await overrideServing(
      Test.createTestingModule({ imports: [AppModule] }),
      digits,
    )
      .useFunction((images) => images.map((pixels) => pixels.length % 10))
      .compile();
    // #endregion
    app = testing.createNestApplication({ logger: ['error'] });
    await app.listen(0, '127.0.0.1');
    expect(await post('/digits', { pixels: [1, 2, 3] })).toEqual({
      status: 201,
      body: { digit: 3 },
    });
  });

  it("The manual's test with a script passes", async () => {
    // #region script
    const script = BatchScript.of(digits);
    const testing = await overrideServing(
      Test.createTestingModule({ imports: [AppModule] }),
      digits,
    )
      .useScript(script)
      .compile();
    // #endregion
    app = testing.createNestApplication({ logger: ['error'] });
    await app.listen(0, '127.0.0.1');
    // #region held
    const first = post('/digits', { pixels: [1] });
    // Resolves when a batch runs: { rows: [[1]], size: 1, key: 'default', partition: 0, ... }.
    const running = await script.next();
    const second = post('/digits', { pixels: [2] });

    running.finish([1]);
    expect(await first).toEqual({ status: 201, body: { digit: 1 } });

    (await script.next()).crash();
    expect(await second).toMatchObject({ status: 503 });
    // #endregion
  });

  it("The manual's test with virtual time passes", async () => {
    const builder = Test.createTestingModule({ imports: [AppModule] });
    // #region time
    const time = await VirtualTime.install();
    const testing = await overrideServing(builder, { ...digits, batchTimeout: 50 })
      .useFunction((images) => images.map(() => 7))
      .compile();
    const servings = (await testing.init()).get(ServingService);
    const batches = recordBatches(servings);

    const replies = [[1], [2], [3]].map((pixels) => servings.batchedRun(digits, pixels));
    await time.advance(49);
    expect(batches).toEqual([]);
    await time.advance(1);
    expect(batches).toMatchObject([{ rows: 3, reason: 'timeout', wait: 50 }]);

    await testing.close();
    time.restore();
    // #endregion
    expect(await Promise.all(replies)).toEqual([7, 7, 7]);
  });

  it("[12.1] The manual's telemetry traces calls and batches", async () => {
    const telemetry = new Telemetry();
    trace.setGlobalTracerProvider(telemetry.tracerProvider);
    await start({ imports: [TracedModule] });
    await app!.get(ServingService).batchedRun(digits, blank);
    await app!.close();
    trace.disable();

    expect(telemetry.spans.map(({ name }) => name)).toEqual(
      expect.arrayContaining(['batchedRun digits', 'batch digits']),
    );
    await telemetry.shutdown();
  });

  it("[12.2] The manual's event listener logs a batch", async () => {
    await start({ imports: [AppModule] });
    const lines: string[] = [];
    const log = (line: string): unknown => lines.push(line);
    const servings = app!.get(ServingService);
    // #region events
    servings
      .eventsOf('batch:end')
      .subscribe(({ serving, key, partition, rows, fill, reason, wait, runTime }) => {
        log(
          `${serving}/${key}/${partition}: ${rows} rows (${Math.round(fill * 100)} %), ` +
            `closed by ${reason}, waited ${wait} ms, ran ${runTime} ms`,
        );
      });
    // #endregion
    await servings.batchedRun(digits, blank);
    await app!.close();
    expect(lines).toEqual([
      expect.stringMatching(/^digits\/default\/0: 1 rows \(3 %\), closed by idle/),
    ]);
  });
});
