import { afterEach, describe, expect, it } from '@jest/globals';
import {
  type ArgumentsHost,
  BadRequestException,
  Body,
  Catch,
  Controller,
  type ExceptionFilter,
  HttpException,
  Get,
  Logger,
  NotFoundException,
  Param,
  Post,
  Sse,
  type Type,
  UseFilters,
} from '@nestjs/common';
import { HttpAdapterHost } from '@nestjs/core';
import {
  type ClientProxy,
  ClientProxyFactory,
  MessagePattern,
  Payload,
  Transport,
} from '@nestjs/microservices';
import { Test } from '@nestjs/testing';
import * as api from 'nestjs-serving';
import {
  Batch,
  Batched,
  InjectServing,
  Serving,
  type ServingDefinition,
  ServingModule,
  ServingRpcExceptionFilter,
} from 'nestjs-serving';
import { STATUS_CODES } from 'node:http';
import type { AddressInfo, Server } from 'node:net';
import { firstValueFrom, Observable, Subject } from 'rxjs';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';

/** Every error of the package with its HTTP status. */
const errors: [string, number, typeof api.ServingError][] = [
  ['ServingError', 500, api.ServingError],
  ['InvalidServingError', 500, api.InvalidServingError],
  ['UnknownServingError', 500, api.UnknownServingError],
  ['UnknownVersionError', 404, api.UnknownVersionError],
  ['ServingLoadError', 500, api.ServingLoadError],
  ['ProviderUnavailableError', 500, api.ProviderUnavailableError],
  ['InvalidBatchError', 400, api.InvalidBatchError],
  ['InvalidInputError', 400, api.InvalidInputError],
  ['UnknownKeyError', 400, api.UnknownKeyError],
  ['RequestTooLargeError', 413, api.RequestTooLargeError],
  ['CallCancelledError', 499, api.CallCancelledError],
  ['DeadlineExceededError', 504, api.DeadlineExceededError],
  ['DeadlineTooShortError', 503, api.DeadlineTooShortError],
  ['OverloadedError', 503, api.OverloadedError],
  ['RunTimeoutError', 504, api.RunTimeoutError],
  ['ServingUnavailableError', 503, api.ServingUnavailableError],
  ['ServingClosedError', 503, api.ServingClosedError],
  ['SlowConsumerError', 503, api.SlowConsumerError],
  ['BatchFailedError', 500, api.BatchFailedError],
  ['CallCycleError', 500, api.CallCycleError],
  ['InvalidOutputError', 500, api.InvalidOutputError],
  ['RunTimeoutError', 504, api.RunTimeoutError],
  ['ServingUnavailableError', 503, api.ServingUnavailableError],
  ['PartitionLostError', 503, api.PartitionLostError],
  ['NodeLostError', 503, api.NodeLostError],
  ['SessionEndedError', 410, api.SessionEndedError],
];

function raise(name: string, retryAfter?: number): never {
  const [, , ErrorClass] = errors.find(([each]) => each === name)!;
  throw new ErrorClass(`row 7 of ${name}`, { cause: new Error('a password'), retryAfter });
}

it('[6.5] The table of errors in these tests is complete', () => {
  const exported = Object.values(api).filter(
    (each) =>
      typeof each === 'function' &&
      (each === api.ServingError || each.prototype instanceof api.ServingError),
  );
  expect(new Set(exported)).toEqual(new Set(errors.map(([, , ErrorClass]) => ErrorClass)));
});

/** Answers with the error that it caught. */
@Catch(api.OverloadedError)
class OverloadFilter implements ExceptionFilter<api.OverloadedError> {
  constructor(private readonly host: HttpAdapterHost) {}

  catch({ name, retryAfter }: api.OverloadedError, host: ArgumentsHost): void {
    this.host.httpAdapter.reply(host.switchToHttp().getResponse(), { name, retryAfter }, 429);
  }
}

/** Answers with another status and body. */
@Catch(api.OverloadedError)
class ReshapingFilter extends api.ServingExceptionFilter {
  override catch(cause: api.OverloadedError, host: ArgumentsHost): void {
    // oxlint-disable-next-line promise/valid-params -- It is the method of a filter.
    super.catch(new HttpException({ code: cause.code }, 429, { cause }), host);
  }
}

/** Fails with errors that have a time to retry. */
@Controller('later')
class Later {
  @Get('in/:seconds')
  inSeconds(@Param('seconds') seconds: string): never {
    return raise('OverloadedError', Number(seconds));
  }

  @Get('batched/:seconds')
  @Batched()
  batched(@Param('seconds') seconds: string[]): never[] {
    return seconds.map((each) => raise('DeadlineTooShortError', Number(each)));
  }

  @Get('filtered/:seconds')
  @UseFilters(OverloadFilter)
  filtered(@Param('seconds') seconds: string): never {
    return raise('OverloadedError', Number(seconds));
  }

  @Get('reshaped/:seconds')
  @UseFilters(ReshapingFilter)
  reshaped(@Param('seconds') seconds: string): never {
    return raise('OverloadedError', Number(seconds));
  }

  @Get('recovers/:seconds')
  recovers(@Param('seconds') seconds: string): string {
    try {
      return raise('OverloadedError', Number(seconds));
    } catch {
      return 'something simpler';
    }
  }

  @Sse('events/:seconds')
  events(@Param('seconds') seconds: string): Observable<{ data: string }> {
    return new Observable((subscriber) => {
      subscriber.next({ data: 'first' });
      // The headers are sent with the first event.
      setImmediate(() =>
        subscriber.error(new api.OverloadedError('row 7', { retryAfter: Number(seconds) })),
      );
    });
  }
}

@Controller('errors')
class Errors {
  @Get(':name')
  raise(@Param('name') name: string): never {
    return raise(name);
  }

  @Get('batched/:name')
  @Batched()
  raiseBatched(@Param('name') names: string[]): never[] {
    return names.map((name) => raise(name));
  }
}

/** Fails in the stage that the text names. */
const touchy: ServingDefinition<string> = {
  name: 'touchy',
  batchSize: 2,
  batchTimeout: 1_000_000,
  batchKeys: ['default', 'even'],
  preprocess(text: string) {
    if (text === 'unreadable') {
      throw new BadRequestException('cannot read that');
    }
    return { batch: text.startsWith('key ') ? Batch.stack([text]).withKey(text.slice(4)) : text };
  },
  model: {
    useFactory: () => (rows: string[]) => {
      if (rows.includes('explosive')) {
        throw new NotFoundException('a password');
      }
      return rows.map((row) => (row === 'missing' ? new NotFoundException('no such text') : row));
    },
  },
};

@Controller('texts')
class Texts {
  constructor(@InjectServing(touchy) private readonly serving: Serving<string, string>) {}

  @Post()
  async send(@Body() { text }: { text: string }): Promise<{ text: string }> {
    return { text: await this.serving.batchedRun(text) };
  }
}

describeOnPlatforms('Errors over HTTP', (listen) => {
  const start = (...controllers: Type[]) =>
    listen({ imports: [ServingModule.forRoot({ servings: [touchy] })], controllers });

  it.each(errors)(
    '[6.5] %s answers with %d and exposes its message only when the client is at fault',
    async (name, statusCode) => {
      const site = await start(Errors);

      for (const path of [`/errors/${name}`, `/errors/batched/${name}`]) {
        const { status, body } = await site.get(path);
        expect(status).toBe(statusCode);
        expect(body).toEqual({
          statusCode,
          message: status < 500 ? `row 7 of ${name}` : STATUS_CODES[status],
        });
      }
    },
  );

  it.each(['in', 'batched'])(
    '[7.1] The HTTP answer has Retry-After when the error has it: %s',
    async (path) => {
      const site = await start(Later);

      const { status, headers, body } = await site.get(`/later/${path}/7`);

      expect([status, headers.get('retry-after')]).toEqual([503, '7']);
      expect(body).toEqual({ statusCode: 503, message: 'Service Unavailable' });
    },
  );

  it('[7.1] The HTTP answer has no Retry-After when the error has none', async () => {
    const site = await start(Errors);

    expect((await site.get('/errors/OverloadedError')).headers.get('retry-after')).toBeNull();
  });

  it('[7.1] [10.4] Exception filters of the application receive the error unchanged, and answer as they like', async () => {
    const site = await start(Later);

    const { status, headers, body } = await site.get('/later/filtered/7');

    expect([status, headers.get('retry-after')]).toEqual([429, null]);
    expect(body).toEqual({ name: 'OverloadedError', retryAfter: 7 });
  });

  it('[7.1] [10.4] The answer of an exception filter that extends ServingExceptionFilter has Retry-After', async () => {
    const site = await start(Later);

    const { status, headers, body } = await site.get('/later/reshaped/7');

    expect([status, headers.get('retry-after')]).toEqual([429, '7']);
    expect(body).toEqual({ code: 'SERVING_OVERLOADED' });
  });

  it('[7.1] A handler that recovers from the error sends no Retry-After', async () => {
    const site = await start(Later);

    const { status, headers, body } = await site.get('/later/recovers/7');

    expect([status, headers.get('retry-after'), body]).toEqual([200, null, 'something simpler']);
  });

  it('[7.1] [8.2] A stream whose headers are sent ends with an error event', async () => {
    const site = await start(Later);

    const { status, headers, body } = await site.get('/later/events/7');

    expect([status, headers.get('retry-after')]).toEqual([200, null]);
    expect(body).toContain('data: first');
    expect(body).toContain('event: error');
    expect(body).toContain('data: Service Unavailable');
  });

  it.each<[string, string[], number[], string]>([
    ['[1.5] An error in preprocess', ['unreadable', 'a', 'b'], [400, 201, 201], 'cannot read that'],
    [
      '[4.7] An unknown key',
      ['key odd', 'a', 'b'],
      [400, 201, 201],
      'Serving "touchy" has no key "odd"; its keys are default, even',
    ],
    ['[6.2] An error in place of a result', ['missing', 'a'], [404, 201], 'no such text'],
  ])('%s fails its caller alone', async (_, texts, codes, message) => {
    const site = await start(Texts);

    const replies = await Promise.all(texts.map((text) => site.post('/texts', { text })));

    expect(replies.map(({ status }) => status)).toEqual(codes);
    const [bad, ...good] = replies.map(({ body }) => body);
    expect(bad).toMatchObject({ message });
    expect(good).toEqual(texts.slice(1).map((text) => ({ text })));
  });

  it('[6.1] An error in a batch function fails its batch with a hidden message, and the next batch runs', async () => {
    const site = await start(Texts);

    const failed = await Promise.all(
      ['explosive', 'a'].map((text) => site.post('/texts', { text })),
    );
    const served = await Promise.all(['b', 'c'].map((text) => site.post('/texts', { text })));

    expect(failed.map(({ status, body }) => ({ status, body }))).toEqual(
      failed.map(() => ({
        status: 500,
        body: { statusCode: 500, message: 'Internal Server Error' },
      })),
    );
    expect(served.map(({ body }) => body)).toEqual([{ text: 'b' }, { text: 'c' }]);
  });

  it.each(['serving', 'method'])(
    '[6.5] [7.1] The full queue of a %s answers 503, and the others are served',
    async (path) => {
      const running$ = new Subject<void>();
      let open!: () => void;
      const gate = new Promise<void>((resolve) => (open = resolve));
      const hold = async (texts: string[]): Promise<string[]> => {
        running$.next();
        await (texts[0] === 'learned' ? undefined : gate);
        return texts;
      };
      const narrow = { batchSize: 1, queue: { maxRows: 1 } };

      @Controller()
      class Narrow {
        @Get('serving/:text')
        @Batched('narrow')
        viaServing(@Param('text') text: string): string {
          return text;
        }

        @Get('method/:text')
        @Batched(narrow)
        viaMethod(@Param('text') texts: string[]): Promise<string[]> {
          return hold(texts);
        }
      }
      const servings = [{ name: 'narrow', ...narrow, model: { useFactory: () => hold } }];
      const site = await listen({
        imports: [ServingModule.forRoot({ servings })],
        controllers: [Narrow],
      });

      await site.get(`/${path}/learned`);
      const running = firstValueFrom(running$);
      const first = site.get(`/${path}/first`);
      await running;
      const others = ['second', 'third'].map((text) => site.get(`/${path}/${text}`));
      const refused = await Promise.race(others);
      expect(refused).toMatchObject({
        status: 503,
        body: { statusCode: 503, message: 'Service Unavailable' },
      });
      expect(refused.headers.get('retry-after')).toBe('1');
      open();

      const replies = await Promise.all([first, ...others]);
      expect(replies.filter(({ status }) => status === 200)).toHaveLength(2);
    },
  );
});

@Controller()
class Messages {
  @MessagePattern('raise')
  raise(@Payload() name: string): never {
    return raise(name);
  }

  @MessagePattern('later')
  later(@Payload() seconds: number): never {
    return raise('OverloadedError', seconds);
  }

  @MessagePattern('double')
  @Batched({ batchSize: 3, batchTimeout: 1_000_000, types: [Number] })
  double(@Payload() numbers: number[]): unknown[] {
    return numbers.map((number) =>
      number < 0 ? new api.InvalidInputError(`${number} of ${numbers.length}`) : 2 * number,
    );
  }

  @MessagePattern('text')
  @Batched('touchy')
  text(@Payload() text: string): string {
    return text;
  }
}

describe('Errors over TCP', () => {
  const closing: (() => unknown)[] = [];

  afterEach(() => Promise.all(closing.splice(0).map((close) => close())));

  async function connect(
    ...filters: ServingRpcExceptionFilter[]
  ): Promise<(pattern: string, data: unknown) => Promise<unknown>> {
    const imports = [ServingModule.forRoot({ servings: [touchy] })];
    const testing = await Test.createTestingModule({ imports, controllers: [Messages] }).compile();
    const app = testing.createNestMicroservice({
      transport: Transport.TCP,
      options: { port: 0 },
      logger: false,
    });
    app.useGlobalFilters(...filters);
    await app.listen();
    const { port } = app.unwrap<Server>().address() as AddressInfo;
    const client: ClientProxy = ClientProxyFactory.create({
      transport: Transport.TCP,
      options: { port },
    });
    closing.push(async () => {
      await client.close();
      await app.close();
    });
    return (pattern, data) => firstValueFrom(client.send(pattern, data));
  }

  it.each(errors)(
    '[6.5] ServingRpcExceptionFilter answers with name, code and status of %s, and its message when the caller is at fault',
    async (name, statusCode, ErrorClass) => {
      const send = await connect(new ServingRpcExceptionFilter());

      const { code } = new ErrorClass();
      const message = statusCode < 500 ? `row 7 of ${name}` : STATUS_CODES[statusCode];
      await expect(send('raise', name)).rejects.toEqual({ name, code, statusCode, message });
    },
  );

  it('[7.1] ServingRpcExceptionFilter answers with the time to retry', async () => {
    const send = await connect(new ServingRpcExceptionFilter());

    await expect(send('later', 7)).rejects.toMatchObject({
      code: 'SERVING_OVERLOADED',
      retryAfter: 7,
    });
  });

  it('[6.5] ServingRpcExceptionFilter logs exactly the errors whose message it hides', async () => {
    const logged: unknown[] = [];
    const send = await connect(new ServingRpcExceptionFilter());
    Logger.overrideLogger({ log: () => {}, warn: () => {}, error: (error) => logged.push(error) });

    await expect(send('raise', 'InvalidInputError')).rejects.toMatchObject({
      message: 'row 7 of InvalidInputError',
    });
    await expect(send('raise', 'BatchFailedError')).rejects.toMatchObject({
      message: 'Internal Server Error',
    });
    Logger.overrideLogger(false);

    expect(logged).toEqual([expect.objectContaining({ message: 'row 7 of BatchFailedError' })]);
  });

  it('[10.4] Without the filter an error has the generic message of any handler', async () => {
    const send = await connect();

    await expect(send('raise', 'InvalidInputError')).rejects.toEqual({
      status: 'error',
      message: 'Internal server error',
    });
  });

  it('[10.4] Messages are batched by methods and by servings, and fail alone', async () => {
    const send = await connect(new ServingRpcExceptionFilter());

    expect(await Promise.allSettled([1, -2, 3].map((number) => send('double', number)))).toEqual([
      { status: 'fulfilled', value: 2 },
      {
        status: 'rejected',
        reason: expect.objectContaining({ code: 'SERVING_INVALID_INPUT', message: '-2 of 3' }),
      },
      { status: 'fulfilled', value: 6 },
    ]);
    expect(await Promise.all(['a', 'b'].map((text) => send('text', text)))).toEqual(['a', 'b']);
  });
});
