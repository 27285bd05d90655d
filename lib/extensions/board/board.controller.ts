import {
  Body,
  type CanActivate,
  Controller,
  type ExecutionContext,
  ForbiddenException,
  Get,
  HttpException,
  HttpStatus,
  Inject,
  Injectable,
  MethodNotAllowedException,
  NotFoundException,
  Param,
  Post,
  Query,
  Req,
  Res,
  SetMetadata,
  type Type,
  UseGuards,
  VERSION_NEUTRAL,
} from '@nestjs/common';
import { HttpAdapterHost, ModuleRef } from '@nestjs/core';
import { InvalidServingError, isServingError, UnknownServingError } from '../../index.js';
import { ModuleGuards } from '../../doors/servings.js';
import { isA } from '../../doors/text.js';
import type { PageFile } from './page-files.js';
import { ServingBoard } from './serving-board.js';

/** Excluded from `@nestjs/swagger`: a page is not an API. */
const EXCLUDED_FROM_OPENAPI = 'swagger/apiExcludeController';

const JSON_TYPE = 'application/json; charset=utf-8';
const HEADERS = {
  'cache-control': 'no-cache',
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'same-origin',
  'content-security-policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
    "img-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'",
};

interface BoardRequest {
  readonly headers: { readonly 'if-none-match'?: string };
}

export function boardController(path: string): Type<unknown> {
  @Controller({ path, version: VERSION_NEUTRAL })
  @UseGuards(BoardGuards)
  @SetMetadata(EXCLUDED_FROM_OPENAPI, [true])
  class ServingBoardController {
    constructor(
      @Inject(ServingBoard) private readonly board: ServingBoard,
      @Inject(HttpAdapterHost) private readonly host: HttpAdapterHost,
    ) {}

    @Get('api')
    poll(
      @Query('serving') serving: unknown,
      @Query('since') since: unknown,
      @Query('batch') batch: unknown,
      @Res() response: unknown,
    ): void {
      const text = this.board.poll({
        serving: typeof serving === 'string' ? serving : undefined,
        since: wholeOf(since),
        batch: wholeOf(batch),
      });
      this.send(response, HttpStatus.OK, { text, type: JSON_TYPE });
    }

    @Post('changes')
    @UseGuards(ChangeGuards)
    async change(@Body() body: unknown, @Res() response: unknown): Promise<void> {
      try {
        await this.board.change(body);
      } catch (error) {
        throw refusalOf(error);
      }
      this.send(response, HttpStatus.OK, { text: '{"changed":true}', type: JSON_TYPE });
    }

    // Nest removes a path's trailing slash, but Fastify tells such URLs apart.
    @Get(['', '//'])
    page(@Req() request: BoardRequest, @Res() response: unknown): void {
      const { httpAdapter } = this.host;
      this.sendFile(request, response, this.board.files.page(httpAdapter.getRequestUrl(request)));
    }

    @Get(':file')
    file(
      @Param('file') name: string,
      @Req() request: BoardRequest,
      @Res() response: unknown,
    ): void {
      const file = this.board.files.find(name);
      if (!file) {
        throw new NotFoundException();
      }
      this.sendFile(request, response, file);
    }

    private sendFile(request: BoardRequest, response: unknown, file: PageFile): void {
      const known = request.headers['if-none-match']?.split(/,\s*/) ?? [];
      this.host.httpAdapter.setHeader(response, 'etag', file.etag);
      if (known.some((each) => each.replace(/^W\//, '') === file.etag)) {
        this.send(response, HttpStatus.NOT_MODIFIED);
      } else {
        this.send(response, HttpStatus.OK, file);
      }
    }

    /** Bypasses interceptors, which may change the body. */
    private send(
      response: unknown,
      status: HttpStatus,
      body?: Pick<PageFile, 'text' | 'type'>,
    ): void {
      const { httpAdapter } = this.host;
      for (const [name, value] of Object.entries(HEADERS)) {
        httpAdapter.setHeader(response, name, value);
      }
      if (body) {
        httpAdapter.setHeader(response, 'content-type', body.type);
      }
      httpAdapter.reply(response, body?.text, status);
    }
  }
  return ServingBoardController;
}

/** Returns -1 unless it is a whole number. */
function wholeOf(text: unknown): number {
  return typeof text === 'string' && /^\d{1,15}$/.test(text) ? Number(text) : -1;
}

/** Shows the error's text, since board users run the application. */
function refusalOf(error: unknown): unknown {
  if (!isServingError(error)) {
    return error;
  }
  const { code, message } = error;
  const status = isA(error, InvalidServingError)
    ? HttpStatus.CONFLICT
    : isA(error, UnknownServingError)
      ? HttpStatus.NOT_FOUND
      : error.statusCode;
  return new HttpException({ statusCode: status, code, message }, status, { cause: error });
}

/**
 * Browsers send it to another site only with its permission, so foreign pages can't use a login.
 */
export const CHANGE_HEADER = 'x-serving-board';

@Injectable()
export class BoardGuards extends ModuleGuards {
  constructor(
    private readonly board: ServingBoard,
    moduleRef: ModuleRef,
  ) {
    super(moduleRef, board.options.guards, board.options.changes);
  }

  /** @throws MethodNotAllowedException if the board allows no changes */
  passChange(context: ExecutionContext): Promise<true> {
    const { changes } = this.board.options;
    if (!changes) {
      throw new MethodNotAllowedException(
        'This board only shows; the option "changes" of ServingBoardModule allows changes',
      );
    }
    return this.pass(changes, context);
  }
}

/** Runs after the board's guards. */
@Injectable()
export class ChangeGuards implements CanActivate {
  constructor(private readonly guards: BoardGuards) {}

  async canActivate(context: ExecutionContext): Promise<boolean> {
    await this.guards.passChange(context);
    const { headers } = context
      .switchToHttp()
      .getRequest<{ readonly headers: Readonly<Record<string, unknown>> }>();
    if (headers[CHANGE_HEADER] === undefined) {
      throw new ForbiddenException(
        `A change needs the header ${CHANGE_HEADER}, with any value, which pages of other sites ` +
          'cannot send',
      );
    }
    return true;
  }
}
