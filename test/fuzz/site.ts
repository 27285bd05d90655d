import { resolve } from 'node:path';
import {
  type ArgumentsHost,
  BadRequestException,
  Body,
  Catch,
  Controller,
  type INestApplication,
  Module,
  Param,
  Post,
  Query,
} from '@nestjs/common';
import { BaseExceptionFilter, HttpAdapterHost } from '@nestjs/core';
import { Batched, defineServing, ServingModule, ServingService, Tensor } from 'nestjs-serving';
import { imageTensor, pixelsIn } from './digits.js';
import { fingerprint } from './fingerprint.js';
import { listening, type Platform } from './listening.js';

const model = 'sample/01-digits/model/digits.onnx';
const echo = (rows: unknown): unknown => rows;

/** As the manual tells: what comes from clients is checked before it becomes a tensor. */
const drawn = defineServing({
  name: 'drawn',
  model,
  preprocess(body: unknown) {
    const pixels = pixelsIn(body);
    if (!pixels) {
      throw new BadRequestException('pixels must be a list of 784 numbers');
    }
    return { batch: { image: imageTensor(pixels) } };
  },
  postprocess({ probabilities }: { probabilities: Tensor }) {
    return { probabilities: [...(probabilities.data as Float32Array)] };
  },
});

/** Takes anything: a plain value, or what passes for tensors. */
const prints = defineServing({
  name: 'prints',
  model: {
    useFactory: () => (rows: unknown) =>
      Array.isArray(rows) ? rows.map((row) => ({ print: fingerprint(row) })) : rows,
  },
  postprocess: (output: unknown) =>
    typeof output === 'object' && output !== null && 'print' in output ? output : { tensors: true },
});

const definitions = [
  drawn,
  prints,
  defineServing({ name: 'digits', model }),
  defineServing({
    name: 'echo',
    queue: { separateOrigins: true, maxBytesPerCall: 2 ** 20 },
    model: { useFactory: () => echo },
  }),
  defineServing({
    name: 'thread',
    model: { useFile: resolve('test/fixtures/workers/echo.mjs') },
  }),
  defineServing({
    name: 'sizes',
    batchSize: [1, 4, 32],
    warmUp: [new Tensor('float32', new Float32Array(4), [1, 4])],
    model: { useFactory: () => echo },
  }),
];

@Controller()
class Bodies {
  constructor(private readonly servings: ServingService) {}

  @Post('drawn')
  drawn(@Body() body: unknown): Promise<unknown> {
    return this.servings.batchedRun('drawn', body);
  }

  @Post('digits')
  digits(@Body() body: unknown): Promise<unknown> {
    return this.servings.batchedRun('digits', body);
  }

  @Post('prints')
  prints(@Body() body: unknown): Promise<unknown> {
    return this.servings.batchedRun('prints', body);
  }

  @Post('methods/:name')
  @Batched({ batchSize: 16, types: [Object, String, Object] })
  method(
    @Body() bodies: unknown[],
    @Param('name') names: string[],
    @Query() queries: unknown[],
  ): object[] {
    return bodies.map((body, i) => ({
      print: fingerprint(body),
      name: names[i],
      query: fingerprint(queries[i]),
    }));
  }

  @Post('named')
  @Batched('prints')
  named(@Body() body: unknown): unknown {
    return body;
  }
}

/**
 * The header that tells the fuzzer, and in an application nobody, what has become an error over
 * HTTP.
 */
export const ERROR_HEADER = 'x-error';

/** What errors of this package, of Nest and of its body parsers may have. */
interface Telling extends Error {
  readonly code?: string | number;
  readonly status?: number;
  readonly statusCode?: number;
}

@Catch()
class TellingFilter extends BaseExceptionFilter {
  override catch(error: unknown, host: ArgumentsHost): void {
    const { constructor, code, status, statusCode } = error as Telling;
    const response = host
      .switchToHttp()
      .getResponse<{ header(name: string, value: string): void }>();
    response.header(
      ERROR_HEADER,
      `${constructor.name} ${code ?? '-'} ${statusCode ?? status ?? 500}`,
    );
    // oxlint-disable-next-line promise/valid-params, promise/no-promise-in-callback -- a filter, and no promise
    super.catch(error, host);
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: definitions, requestContext: true })],
  controllers: [Bodies],
})
class SiteModule {}

/** The application that is attacked, listening. */
export function openSite(platform: Platform): Promise<INestApplication> {
  return listening(platform, SiteModule, (app) =>
    app.useGlobalFilters(new TellingFilter(app.get(HttpAdapterHost).httpAdapter)),
  );
}
