import { STATUS_CODES } from 'node:http';
import { Catch, type ExceptionFilter, HttpException, Logger } from '@nestjs/common';
import { isServingError } from '../../../index.js';
import { statusText } from '../../../doors/text.js';
import type { Metadata, StatusObject } from '@grpc/grpc-js';

export interface ErrorAnswer {
  readonly status: number;
  readonly grpc: number;
  readonly message: string;
  /** Whole seconds. */
  readonly retryAfter: number | undefined;
  /** Application faults are logged. */
  readonly isFault: boolean;
}

/** gRPC status codes: https://grpc.github.io/grpc/core/md_doc_statuscodes.html */
const CANCELLED = 1;
const INVALID_ARGUMENT = 3;
const DEADLINE_EXCEEDED = 4;
const NOT_FOUND = 5;
const PERMISSION_DENIED = 7;
const RESOURCE_EXHAUSTED = 8;
const FAILED_PRECONDITION = 9;
const UNIMPLEMENTED = 12;
const INTERNAL = 13;
const UNAVAILABLE = 14;
const UNAUTHENTICATED = 16;

export const answersByCode: Readonly<Record<string, readonly [status: number, grpc: number]>> = {
  SERVING_INVALID_INPUT: [400, INVALID_ARGUMENT],
  SERVING_INVALID_BATCH: [400, INVALID_ARGUMENT],
  SERVING_UNKNOWN_KEY: [400, INVALID_ARGUMENT],
  SERVING_UNKNOWN: [404, NOT_FOUND],
  SERVING_UNKNOWN_VERSION: [404, NOT_FOUND],
  SERVING_SESSION_ENDED: [410, FAILED_PRECONDITION],
  SERVING_TOO_LARGE: [413, RESOURCE_EXHAUSTED],
  SERVING_CANCELLED: [499, CANCELLED],
  SERVING_OVERLOADED: [503, UNAVAILABLE],
  SERVING_DEADLINE_TOO_SHORT: [503, UNAVAILABLE],
  SERVING_CLOSED: [503, UNAVAILABLE],
  SERVING_UNAVAILABLE: [503, UNAVAILABLE],
  SERVING_PARTITION_LOST: [503, UNAVAILABLE],
  SERVING_NODE_LOST: [503, UNAVAILABLE],
  SERVING_SLOW_CONSUMER: [503, RESOURCE_EXHAUSTED],
  SERVING_DEADLINE_EXCEEDED: [504, DEADLINE_EXCEEDED],
  SERVING_RUN_TIMEOUT: [504, DEADLINE_EXCEEDED],
};

const grpcByStatus: Readonly<Record<number, number>> = {
  400: INVALID_ARGUMENT,
  401: UNAUTHENTICATED,
  403: PERMISSION_DENIED,
  404: NOT_FOUND,
  405: UNIMPLEMENTED,
  413: RESOURCE_EXHAUSTED,
  415: INVALID_ARGUMENT,
  429: RESOURCE_EXHAUSTED,
  501: UNIMPLEMENTED,
  503: UNAVAILABLE,
  504: DEADLINE_EXCEEDED,
};

/** Only client faults and Nest exceptions show their message: others may reveal details. */
export function errorAnswer(error: unknown): ErrorAnswer {
  if (isServingError(error)) {
    const { code, message, retryAfter } = error;
    const [status, grpc] = answersByCode[code] ?? [500, INTERNAL];
    const shown = status < 500 ? message : `${STATUS_CODES[status]} (${code})`;
    return { status, grpc, message: shown, retryAfter, isFault: status === 500 };
  }
  if (error instanceof HttpException) {
    const status = error.getStatus();
    const grpc = grpcByStatus[status] ?? (status < 500 ? INVALID_ARGUMENT : INTERNAL);
    return { status, grpc, message: error.message, retryAfter: undefined, isFault: false };
  }
  const message = STATUS_CODES[500]!;
  return { status: 500, grpc: INTERNAL, message, retryAfter: undefined, isFault: true };
}

@Catch()
export class GrpcExceptionFilter implements ExceptionFilter {
  private readonly logger = new Logger('InferenceProtocol');

  catch(error: unknown): FailedCall {
    const answer = errorAnswer(error);
    if (answer.isFault) {
      this.logger.error(error);
    }
    return new FailedCall(answer);
  }
}

export class FailedCall {
  constructor(readonly answer: ErrorAnswer) {}
}

/**
 * Milliseconds before a client retries:
 * https://github.com/grpc/proposal/blob/master/A6-client-retries.md
 */
const PUSHBACK = 'grpc-retry-pushback-ms';

/** `metadata` must be empty. */
export function statusOf(
  { grpc, message, retryAfter }: ErrorAnswer,
  metadata: Metadata,
): StatusObject {
  if (retryAfter !== undefined) {
    metadata.set(PUSHBACK, String(retryAfter * 1000));
  }
  return { code: grpc, details: statusText(message), metadata };
}
