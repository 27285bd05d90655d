import { Get, NotImplementedException, Post, UseGuards } from '@nestjs/common';
import { ProtocolGuards } from '../protocol-guards.js';
import { ProtocolController } from './routes.js';

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
