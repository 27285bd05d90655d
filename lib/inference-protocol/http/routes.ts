import {
  applyDecorators,
  Controller,
  SetMetadata,
  UseFilters,
  VERSION_NEUTRAL,
} from '@nestjs/common';
import { ProtocolExceptionFilter } from './protocol-exception.filter.js';

/** `@nestjs/swagger` leaves such controllers out: the protocol has a document of its own. */
const EXCLUDED_FROM_OPENAPI = 'swagger/apiExcludeController';

/** A controller of the protocol, whose paths have no version of the application. */
export function ProtocolController(path: string): ClassDecorator {
  return applyDecorators(
    Controller({ path: `v2${path}`, version: VERSION_NEUTRAL }),
    UseFilters(ProtocolExceptionFilter),
    SetMetadata(EXCLUDED_FROM_OPENAPI, [true]),
  );
}

/** The paths of a call of a model, with and without a version. */
export function ofModel(call: string): string[] {
  return ['models/:model', 'models/:model/versions/:version'].map((path) => path + call);
}

/** The URLs of calls with a body, behind whatever prefix the application has. */
export const CALL =
  /\/v2\/(?:models\/[^/]+\/(?:versions\/[^/]+\/)?infer|repository\/(?:index|models\/[^/]+\/(?:un)?load))\/?(?:\?|$)/i;
