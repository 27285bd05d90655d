import {
  All,
  Controller,
  Delete,
  Get,
  MethodNotAllowedException,
  NotImplementedException,
  Patch,
  Post,
  Put,
  UseFilters,
  UseGuards,
  VERSION_NEUTRAL,
} from '@nestjs/common';
import { ProtocolGuards } from '../protocol-guards.js';
import { ProtocolExceptionFilter } from './protocol-exception.filter.js';
import { CALL, READ, UNSUPPORTED } from './routes.js';

/** Answers other methods of the paths, and extensions that are not supported. */
@Controller({ path: 'v2', version: VERSION_NEUTRAL })
@UseGuards(ProtocolGuards)
@UseFilters(ProtocolExceptionFilter)
export class RefusingController {
  @All(UNSUPPORTED)
  unsupported(): never {
    throw new NotImplementedException(
      'Shared memory is not supported; send the tensors themselves',
    );
  }

  @Post(READ)
  postToRead(): never {
    throw wrongMethod('GET');
  }

  @Put(READ)
  putToRead(): never {
    throw wrongMethod('GET');
  }

  @Patch(READ)
  patchToRead(): never {
    throw wrongMethod('GET');
  }

  @Delete(READ)
  deleteToRead(): never {
    throw wrongMethod('GET');
  }

  @Get(CALL)
  getToCall(): never {
    throw wrongMethod('POST');
  }

  @Put(CALL)
  putToCall(): never {
    throw wrongMethod('POST');
  }

  @Patch(CALL)
  patchToCall(): never {
    throw wrongMethod('POST');
  }

  @Delete(CALL)
  deleteToCall(): never {
    throw wrongMethod('POST');
  }
}

function wrongMethod(allowed: string): Error {
  return new MethodNotAllowedException(`This call of the protocol is a ${allowed}`);
}
