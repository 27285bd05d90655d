import {
  type INestApplication,
  type ModuleMetadata,
  ServiceUnavailableException,
} from '@nestjs/common';
// #region imports
import { createReadStream } from 'node:fs';
import { createInterface } from 'node:readline';
import { Controller, type MessageEvent, Query, Sse } from '@nestjs/common';
import { Batch, DONE, defineServing, RequestSignal, ServingService } from 'nestjs-serving';
import { endWith, finalize, map, type Observable, ReplaySubject, Subscription, tap } from 'rxjs';
// #endregion
import { afterEach, describe, expect, it } from '@jest/globals';
import { setTimeout } from 'node:timers/promises';
import { BadRequestException, Get, Header } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { createServing, ServingModule, Tensor } from 'nestjs-serving';
import { recordBatches } from 'nestjs-serving/testing';
import { describeInBrowser } from '../../fixtures/http/describe-in-browser.js';
import { runPage } from '../../fixtures/http/run-page.js';
import { inFolder } from '../../fixtures/serving/in-folder.js';

// #region generator
export const writer = defineServing({
  name: 'writer',
  batchSize: 8,
  model: {
    useFactory: () =>
      async function* (prompts: string[]) {
        const words = prompts.map((prompt) => prompt.split(' ').toReversed());
        for (let step = 0; words.some(({ length }) => step < length); step++) {
          // One entry per row. DONE ends its row; the others go on.
          yield words.map((own) => own[step] ?? DONE);
        }
      },
  },
});
// #endregion

// #region sse
/** Tells the page that the answer is complete. */
const END: MessageEvent = { type: 'end', data: 'end' };

@Controller()
export class WriterController {
  constructor(private readonly servings: ServingService) {}

  @Sse('write')
  write(@Query('prompt') prompt: string): Observable<MessageEvent> {
    const words = this.servings.stream(writer, prompt);
    return words.pipe(
      map(({ output }) => ({ data: output })),
      endWith(END),
    );
  }
}
// #endregion

// #region started
/** The events, once there is one. An error before it rejects, and is answered with its status. */
function started<Event>(events: Observable<Event>): Promise<Observable<Event>> {
  return new Promise((resolve, reject) => {
    const call = new Subscription();
    const sent = new ReplaySubject<Event>();
    const open = () => resolve(sent.pipe(finalize(() => call.unsubscribe())));
    call.add(events.pipe(tap({ next: open, complete: open, error: reject })).subscribe(sent));
  });
}

@Controller()
export class CarefulWriterController {
  constructor(private readonly servings: ServingService) {}

  @Sse('write')
  write(
    @Query('prompt') prompt: string,
    @RequestSignal() signal: AbortSignal, // A client may leave before the first event.
  ): Promise<Observable<MessageEvent>> {
    const words = this.servings.stream(writer, prompt, { signal });
    return started(
      words.pipe(
        map(({ output }) => ({ data: output })),
        endWith(END),
      ),
    );
  }
}
// #endregion

@Controller('blank')
class Blank {
  @Get()
  @Header('content-type', 'text/html')
  page(): string {
    return '<!doctype html><link rel="icon" href="data:," />';
  }
}

// #region ready
@Controller('health')
export class HealthController {
  constructor(private readonly servings: ServingService) {}

  @Get('ready')
  ready(): string {
    if (!this.servings.isReady) {
      throw new ServiceUnavailableException();
    }
    return 'ready';
  }
}
// #endregion

// #region sequence
export const lengths = defineServing({
  name: 'lengths',
  batchSize: 64,
  preprocess(path: string) {
    // An async iterable: each line is a row.
    return { batch: createInterface({ input: createReadStream(path) }) };
  },
  model: { useFactory: () => (lines: string[]) => lines.map((line) => line.length) },
});
// #endregion

// #region hooks
export const sums = defineServing({
  name: 'sums',
  preprocess: (rows: Batch) => ({ batch: rows }), // a call may have several rows
  model: {
    useFactory:
      () =>
      (rows: number[][], { emit }) => {
        const squares = rows.map((row) => row.map((x) => x * x));
        emit('squares', squares); // One entry per row; each caller gets its own.
        return squares.map((row) => row.reduce((sum, x) => sum + x, 0));
      },
  },
});
// #endregion

// #region keys
const tokens = [16, 32, 64];

export const texts = defineServing({
  name: 'texts',
  batchKeys: ['16', '32', { key: '64', batchSize: 8 }],
  preprocess(text: string) {
    const codes = Int32Array.from(text.slice(0, 64), (character) => character.charCodeAt(0));
    const length = tokens.find((each) => codes.length <= each)!;
    const padded = new Int32Array(length);
    padded.set(codes);
    const row = new Tensor('int32', padded, [1, length]);
    return { batch: Batch.concatenate([row]).withKey(String(length)) };
  },
  model: {
    useFactory:
      ({ key }) =>
      ({ dims }: Tensor) =>
        Array.from({ length: dims[0]! }, () => `ran with rows of ${dims[1]}, as key ${key}`),
  },
});
// #endregion

// #region sizes
export const compiled = defineServing({
  name: 'compiled',
  model: 'digits.onnx',
  batchSize: [1, 8, 32], // 3 rows run as 8, and 3 results come back.
});
// #endregion

// #region origins
export const audited = defineServing({
  name: 'audited',
  queue: { separateOrigins: true },
  model: {
    useFactory:
      () =>
      (rows: string[], { origin }) =>
        rows.map((row) => `${row}, by ${origin}`),
  },
});
// #endregion

describe('The manual on streams', () => {
  let app: INestApplication | undefined;

  afterEach(async () => {
    await app?.close();
    app = undefined;
  });

  async function start(metadata: ModuleMetadata): Promise<string> {
    app = (await Test.createTestingModule(metadata).compile()).createNestApplication({
      logger: ['error'],
    });
    await app.listen(0, '127.0.0.1');
    return app.getUrl();
  }

  it("[8.2] [8.4] The manual's generator streams to a browser", async () => {
    const url = await start({
      imports: [ServingModule.forRoot({ servings: [writer] })],
      controllers: [WriterController],
    });
    const read = async (prompt: string): Promise<string[]> => {
      const response = await fetch(`${url}/write?prompt=${encodeURIComponent(prompt)}`, {
        headers: { connection: 'close' },
      });
      return [...(await response.text()).matchAll(/^data: (.*)$/gm)].map(([, data]) => data!);
    };

    expect(await Promise.all(['one', 'one two three'].map(read))).toEqual([
      ['one', 'end'],
      ['three', 'two', 'one', 'end'],
    ]);
  });

  describeInBrowser((openPage) => {
    it.each([WriterController, CarefulWriterController])(
      "[FU2] The manual's page closes the source of %p at its last event",
      async (controller) => {
        const url = await start({
          imports: [ServingModule.forRoot({ servings: [writer] })],
          controllers: [controller, Blank],
        });
        const { page, problems } = await openPage(`${url}/blank`, {});
        const variables = { prompt: 'one two three' };
        expect(await runPage(page, 'test/e2e/manual/pages/words.js', variables)).toBe(
          'three two one',
        );
        expect(problems).toEqual([]);
      },
    );
  });

  it.each([
    [WriterController, 200, /^event: error$/m],
    [CarefulWriterController, 400, /"message":"No prompt"/],
  ])(
    '[N11] An error before the first event of %p has the status %i',
    async (controller, status, text) => {
      const careful = {
        ...writer,
        async preprocess(prompt: string) {
          await setTimeout(200); // Long enough for Nest to send its headers.
          if (!prompt) throw new BadRequestException('No prompt');
          return { batch: prompt };
        },
      };
      const url = await start({
        imports: [ServingModule.forRoot({ servings: [careful] })],
        controllers: [controller],
      });
      const headers = { connection: 'close' };

      const failed = await fetch(`${url}/write?prompt=`, { headers });
      expect(await failed.text()).toMatch(text);
      expect(failed.status).toBe(status);
      const written = await fetch(`${url}/write?prompt=one%20two`, { headers });
      expect(written.headers.get('content-type')).toContain('text/event-stream');
      expect(
        [...(await written.text()).matchAll(/^data: (.*)$/gm)].map(([, data]) => data),
      ).toEqual(['two', 'one', 'end']);
    },
  );

  it("[9.2] The manual's readiness endpoint answers", async () => {
    const url = await start({
      imports: [ServingModule.forRoot({ servings: [writer] })],
      controllers: [HealthController],
    });

    expect((await fetch(`${url}/health/ready`, { headers: { connection: 'close' } })).status).toBe(
      200,
    );
  });

  it("[8.1] [8.5] The manual's lazy sequence streams output while it is read", async () => {
    await start({ imports: [ServingModule.forRoot({ servings: [lengths] })] });
    const servings = app!.get(ServingService);
    // #region iterate
    let longest = 0;
    for await (const { output } of servings.stream(lengths, 'README.md')) {
      // Lines of the file run in batches while later lines are read.
      longest = Math.max(longest, ...output);
    }
    // #endregion
    expect(longest).toBeGreaterThan(100);
  });

  it("[8.3] The manual's hooks arrive before the output", async () => {
    const serving = createServing(sums);
    await serving.start();
    const seen: unknown[] = [];
    // #region hooked
    for await (const event of serving.stream(Batch.stack([[1, 2], [3]]), { hooks: ['squares'] })) {
      seen.push('hook' in event ? event.value : event.output); // [[1, 4], [9]], then [5, 9]
    }
    // #endregion
    expect(seen).toEqual([
      [[1, 4], [9]],
      [5, 9],
    ]);
    // #region change
    serving.setBatchSize(64); // Holds from the next window on.
    serving.setBatchTimeout(5);
    // #endregion
    await serving.close();
  });

  it("[4.7] The manual's texts of different lengths batch apart", async () => {
    const serving = createServing(texts);
    await serving.start();
    const replies = await Promise.all(
      ['short', 'a'.repeat(20), 'b'.repeat(200)].map((text) => serving.batchedRun(text)),
    );
    expect(replies).toEqual(
      [16, 32, 64].map((length) => [`ran with rows of ${length}, as key ${length}`]),
    );
    await serving.close();
  });

  describe('with a model', () => {
    inFolder('sample/01-digits/model');

    it("[2.4] The manual's model pads to allowed sizes", async () => {
      const serving = createServing(compiled);
      await serving.start();
      const batches = recordBatches(serving);
      const { probabilities } = (await serving.batchedRun({
        image: new Tensor('float32', new Float32Array(3 * 784), [3, 784]),
      })) as { probabilities: Tensor };
      expect(probabilities.dims).toEqual([3, 10]);
      await serving.close();
      expect(batches).toMatchObject([{ rows: 3, padding: 5 }]);
    });
  });

  it("[4.10] The manual's origins batch apart", async () => {
    const serving = createServing(audited);
    await serving.start();
    const batches = recordBatches(serving);
    const replies = await Promise.all([
      serving.batchedRun('a'),
      serving.batchedRun('b', { origin: 'nightly' }),
    ]);
    expect(replies).toEqual(['a, by in-process', 'b, by nightly']);
    await serving.close();
    expect(batches).toHaveLength(2);
  });
});
