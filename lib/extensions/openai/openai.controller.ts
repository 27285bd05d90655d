import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import {
  type ArgumentsHost,
  Catch,
  Controller,
  createParamDecorator,
  type ExceptionFilter,
  type ExecutionContext,
  Get,
  HttpStatus,
  Inject,
  Injectable,
  Logger,
  NotFoundException,
  Param,
  Post,
  Res,
  SetMetadata,
  type Type,
  UseFilters,
  UseGuards,
  VERSION_NEUTRAL,
} from '@nestjs/common';
import { BaseExceptionFilter, HttpAdapterHost, ModuleRef } from '@nestjs/core';
import type { CallOptions } from '../../index.js';
import { type PlatformResponse, rawOf } from '../../encoding/http.js';
import { writeInTurns } from '../../encoding/turns.js';
import { type AbortSignalLike, callerOf, optionsOf } from '../../doors/calls.js';
import { ModuleGuards } from '../../doors/servings.js';
import { formatValue } from '../../doors/text.js';
import { createEmbeddings, rankDocuments } from './calls.js';
import { readChat, type TextRequest } from './chat.js';
import { readCompletion } from './completions.js';
import { readForm } from './form.js';
import {
  type Body,
  type ErrorAnswer,
  errorAnswer,
  pathOf,
  type PlatformRequest,
  readBody,
  RequestError,
  SMALL_BODY,
} from './http.js';
import { OfferedModels } from './models.js';
import {
  classifyAsVllm,
  embedAsCohere,
  embedAsOllama,
  embedAsTei,
  modelIn,
  predictAsTei,
  rankAsTei,
} from './other-apis.js';
import { readResponse } from './responses.js';
import { answerSpeech } from './speech.js';

/** Excluded from `@nestjs/swagger`: OpenAI has its own document. */
const EXCLUDED_FROM_OPENAPI = 'swagger/apiExcludeController';

const Context = createParamDecorator((_: unknown, context: ExecutionContext) => context);

@Injectable()
export class OpenAIGuards extends ModuleGuards {
  constructor(models: OfferedModels, moduleRef: ModuleRef) {
    super(moduleRef, models.guards);
  }
}

/** Answers directly, because interceptors may change the format. */
@Injectable()
export class Replies {
  private readonly logger = new Logger('OpenAI');

  constructor(private readonly host: HttpAdapterHost) {}

  send(response: unknown, value: object, status: number = HttpStatus.OK): void {
    this.sendText(response, JSON.stringify(value), 'application/json', status);
  }

  sendText(response: unknown, text: string, type: string, status: number = HttpStatus.OK): void {
    const { httpAdapter } = this.host;
    if (!httpAdapter.isHeadersSent(response)) {
      httpAdapter.setHeader(response, 'content-type', `${type}; charset=utf-8`);
      httpAdapter.reply(response, text, status);
    }
  }

  /** Sends each `ListInParts` part by part. */
  async sendInTurns(response: PlatformResponse, value: object): Promise<void> {
    const chunks = await writeInTurns(value);
    const size = chunks.reduce((sum, chunk) => sum + chunk.length, 0);
    if (size <= SMALL_BODY) {
      this.sendText(response, Buffer.concat(chunks).toString(), 'application/json');
      return;
    }
    const raw = rawOf(response);
    raw.writeHead(HttpStatus.OK, {
      'content-type': 'application/json; charset=utf-8',
      'content-length': size,
    });
    await pipeline(Readable.from(chunks), raw).catch(() => undefined);
  }

  /** Sends server-sent events; closes their source if the client leaves. */
  async stream(response: PlatformResponse, events: AsyncIterable<string>): Promise<void> {
    const raw = rawOf(response);
    raw.writeHead(HttpStatus.OK, {
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-cache',
      // Proxies would hold events back.
      'x-accel-buffering': 'no',
    });
    await pipeline(Readable.from(events), raw).catch(() => undefined);
  }

  /** @param write the error's body, OpenAI's by default */
  fail(
    response: unknown,
    thrown: unknown,
    write: (error: ErrorAnswer['error']) => object = (error) => ({ error }),
  ): void {
    const { status, headers, error, isFault } = errorAnswer(thrown);
    if (isFault) {
      this.logger.error(thrown);
    }
    const { httpAdapter } = this.host;
    if (!httpAdapter.isHeadersSent(response)) {
      for (const [name, value] of Object.entries(headers)) {
        httpAdapter.setHeader(response, name, value);
      }
      this.send(response, write(error), status);
    }
  }
}

/** Answers errors in OpenAI's form, since clients show no other messages. */
@Catch()
@Injectable()
export class OpenAIExceptionFilter implements ExceptionFilter {
  constructor(private readonly replies: Replies) {}

  catch(error: unknown, host: ArgumentsHost): void {
    this.replies.fail(host.switchToHttp().getResponse(), error);
  }
}

/** Answers errors as Text Embeddings Inference and Ollama do, with their message alone. */
@Catch()
@Injectable()
export class PlainExceptionFilter implements ExceptionFilter {
  constructor(private readonly replies: Replies) {}

  catch(thrown: unknown, host: ArgumentsHost): void {
    this.replies.fail(host.switchToHttp().getResponse(), thrown, ({ message, type }) => ({
      error: message,
      error_type: type,
    }));
  }
}

/**
 * Answers unknown paths of the API in OpenAI's form; Nest answers the application's own
 * NotFoundExceptions.
 */
@Catch(NotFoundException)
export class UnknownPathFilter implements ExceptionFilter<NotFoundException> {
  constructor(
    private readonly replies: Replies,
    private readonly host: HttpAdapterHost,
    private readonly isOurs: (path: string) => boolean,
  ) {}

  catch(error: NotFoundException, context: ArgumentsHost): void {
    if (context.getType() !== 'http') {
      // If a filter returns nothing, Nest answers other transports.
      return;
    }
    const http = context.switchToHttp();
    const { httpAdapter } = this.host;
    const request = http.getRequest<unknown>();
    const url = httpAdapter.getRequestUrl(request);
    const route = `${httpAdapter.getRequestMethod(request)} ${url}`;
    if (this.isOurs(pathOf(url)) && error.message === `Cannot ${route}`) {
      const message = `This server does not have ${formatValue(route)}`;
      const code = 'unknown_url';
      this.replies.fail(
        http.getResponse(),
        new RequestError(message, null, HttpStatus.NOT_FOUND, code),
      );
    } else {
      // oxlint-disable-next-line promise/no-promise-in-callback -- It is the method of a filter.
      new BaseExceptionFilter(httpAdapter).catch(error, context);
    }
  }
}

/** Ids may have slashes, encoded or not. Platforms write wildcards differently. */
const MODEL_PARTS = ['first', 'second', 'third', 'fourth', 'fifth', 'sixth'];
const MODEL_PATHS = MODEL_PARTS.map(
  (_, i) => `v1/models/:${MODEL_PARTS.slice(0, i + 1).join('/:')}`,
);

type Answers = (
  models: OfferedModels,
  body: Body,
  options: CallOptions,
  named: string | undefined,
) => Promise<object>;

export function openAIController(path: string): Type<unknown> {
  @Controller({ path, version: VERSION_NEUTRAL })
  @UseGuards(OpenAIGuards)
  @UseFilters(OpenAIExceptionFilter)
  @SetMetadata(EXCLUDED_FROM_OPENAPI, [true])
  class OpenAIController {
    constructor(
      @Inject(OfferedModels) private readonly models: OfferedModels,
      @Inject(Replies) private readonly replies: Replies,
    ) {}

    @Get('v1/models')
    list(@Res() response: unknown): void {
      this.replies.send(response, { object: 'list', data: this.models.list() });
    }

    @Get(MODEL_PATHS)
    describe(@Param() parts: Readonly<Record<string, string>>, @Res() response: unknown): void {
      const id = MODEL_PARTS.flatMap((part) => parts[part] ?? []).join('/');
      this.replies.send(response, this.models.describe(id));
    }

    @Post('v1/embeddings')
    embeddings(
      @Context() context: ExecutionContext,
      @Res() response: PlatformResponse,
    ): Promise<void> {
      return this.answer(context, response, createEmbeddings);
    }

    @Post('v1/rerank')
    rerank(@Context() context: ExecutionContext, @Res() response: PlatformResponse): Promise<void> {
      return this.answer(context, response, (models, body, options) =>
        rankDocuments(models, body, options, '1'),
      );
    }

    @Post('v2/rerank')
    rerankAsV2(
      @Context() context: ExecutionContext,
      @Res() response: PlatformResponse,
    ): Promise<void> {
      return this.answer(context, response, (models, body, options) =>
        rankDocuments(models, body, options, '2'),
      );
    }

    @Post('v1/chat/completions')
    chat(@Context() context: ExecutionContext, @Res() response: PlatformResponse): Promise<void> {
      return this.write(context, response, readChat);
    }

    @Post('v1/completions')
    complete(
      @Context() context: ExecutionContext,
      @Res() response: PlatformResponse,
    ): Promise<void> {
      return this.write(context, response, readCompletion);
    }

    @Post('v1/responses')
    respond(
      @Context() context: ExecutionContext,
      @Res() response: PlatformResponse,
    ): Promise<void> {
      return this.write(context, response, readResponse);
    }

    @Post('v2/embed')
    embedAsCohere(
      @Context() context: ExecutionContext,
      @Res() response: PlatformResponse,
    ): Promise<void> {
      return this.answer(context, response, embedAsCohere);
    }

    @Post(['tei/embed', 'tei'])
    @UseFilters(PlainExceptionFilter)
    embedAsTei(
      @Context() context: ExecutionContext,
      @Res() response: PlatformResponse,
    ): Promise<void> {
      return this.answer(context, response, embedAsTei);
    }

    @Post('tei/rerank')
    @UseFilters(PlainExceptionFilter)
    rankAsTei(
      @Context() context: ExecutionContext,
      @Res() response: PlatformResponse,
    ): Promise<void> {
      return this.answer(context, response, rankAsTei);
    }

    @Post('tei/predict')
    @UseFilters(PlainExceptionFilter)
    predictAsTei(
      @Context() context: ExecutionContext,
      @Res() response: PlatformResponse,
    ): Promise<void> {
      return this.answer(context, response, predictAsTei);
    }

    @Post('vllm/classify')
    classifyAsVllm(
      @Context() context: ExecutionContext,
      @Res() response: PlatformResponse,
    ): Promise<void> {
      return this.answer(context, response, classifyAsVllm);
    }

    @Post('ollama/api/embed')
    @UseFilters(PlainExceptionFilter)
    embedAsOllama(
      @Context() context: ExecutionContext,
      @Res() response: PlatformResponse,
    ): Promise<void> {
      return this.answer(context, response, embedAsOllama);
    }

    @Post('v1/audio/transcriptions')
    transcribe(
      @Context() context: ExecutionContext,
      @Res() response: PlatformResponse,
    ): Promise<void> {
      return this.hear(context, response, 'transcribe');
    }

    @Post('v1/audio/translations')
    translate(
      @Context() context: ExecutionContext,
      @Res() response: PlatformResponse,
    ): Promise<void> {
      return this.hear(context, response, 'translate');
    }

    private async write(
      context: ExecutionContext,
      response: PlatformResponse,
      readRequest: (models: OfferedModels, body: Body) => TextRequest,
    ): Promise<void> {
      const { models, replies } = this;
      const [body, caller] = await this.read(context, readBody);
      const request = readRequest(models, body);
      if (request.isStream) {
        await replies.stream(response, await request.events(caller));
      } else {
        replies.send(response, await request.answer(caller));
      }
    }

    private async hear(
      context: ExecutionContext,
      response: PlatformResponse,
      task: 'transcribe' | 'translate',
    ): Promise<void> {
      const { models, replies } = this;
      const [form, caller] = await this.read(context, readForm);
      const answer = await answerSpeech(models, form, task, caller);
      if ('events' in answer) {
        await replies.stream(response, answer.events);
      } else if ('json' in answer) {
        replies.send(response, answer.json);
      } else {
        replies.sendText(response, answer.text, answer.type);
      }
    }

    private async answer(
      context: ExecutionContext,
      response: PlatformResponse,
      answers: Answers,
    ): Promise<void> {
      const [body, caller] = await this.read(context, readBody);
      const { query } = context.switchToHttp().getRequest<{ readonly query: unknown }>();
      const answer = await answers(this.models, body, caller, modelIn(query));
      await this.replies.sendInTurns(response, answer);
    }

    private async read<Content>(
      context: ExecutionContext,
      read: (
        request: PlatformRequest,
        limit: number,
        signal: AbortSignalLike | undefined,
      ) => Promise<Content>,
    ): Promise<readonly [Content, CallOptions]> {
      const caller = optionsOf(callerOf(context));
      const request = context.switchToHttp().getRequest<PlatformRequest>();
      return [await read(request, this.models.bodyLimit, caller.signal), caller];
    }
  }
  return OpenAIController;
}
