import {
  Get,
  HttpStatus,
  NotImplementedException,
  Param,
  Post,
  Res,
  UseGuards,
} from '@nestjs/common';
import { InvalidInputError } from '../../../../index.js';
import { formatValue } from '../../../../doors/text.js';
import { InferenceServer } from '../inference-server.js';
import { ProtocolGuards, RepositoryGuards } from '../protocol-guards.js';
import type { PlatformResponse } from '../../../../encoding/http.js';
import { partsOf, readJsonBody } from './read-request.js';
import { ProtocolController } from './routes.js';
import { answer, answerWith, requestOf } from './send-reply.js';

const EMPTY = { headers: {}, chunks: [] };

@ProtocolController('/repository')
@UseGuards(ProtocolGuards)
export class RepositoryController {
  constructor(private readonly server: InferenceServer) {}

  @Post('index')
  async index(@Res() response: PlatformResponse): Promise<void> {
    const ready = (await this.body(response))['ready'] ?? false;
    if (typeof ready !== 'boolean') {
      throw new InvalidInputError(`"ready" is ${formatValue(ready)}; allowed is true or false`);
    }
    return answer(response, this.server.index(ready), this.server);
  }

  @Post('models/:model/load')
  @UseGuards(RepositoryGuards)
  async load(@Param('model') model: string, @Res() response: PlatformResponse): Promise<void> {
    const { parameters } = await this.body(response);
    await this.server.load(model, Object.keys(partsOf(parameters ?? {})));
    return answerWith(response, HttpStatus.OK, EMPTY, this.server);
  }

  @Post('models/:model/unload')
  @UseGuards(RepositoryGuards)
  async unload(@Param('model') model: string, @Res() response: PlatformResponse): Promise<void> {
    await this.body(response);
    this.server.unload(model);
    return answerWith(response, HttpStatus.OK, EMPTY, this.server);
  }

  private body(response: PlatformResponse): Promise<Readonly<Record<string, unknown>>> {
    return readJsonBody(requestOf(response), this.server.options);
  }
}

const pathsOf = (...calls: readonly string[]): string[] =>
  ['systemsharedmemory', 'cudasharedmemory'].flatMap((memory) =>
    calls.map((call) => `${memory}/${call}`),
  );

@ProtocolController('')
@UseGuards(ProtocolGuards)
export class SharedMemoryController {
  @Get(pathsOf('status', 'region/:region/status'))
  status(): never {
    throw unsupported();
  }

  @Post(pathsOf('region/:region/register', 'region/:region/unregister', 'unregister'))
  change(): never {
    throw unsupported();
  }
}

function unsupported(): Error {
  return new NotImplementedException('Shared memory is not supported; send the tensors themselves');
}
