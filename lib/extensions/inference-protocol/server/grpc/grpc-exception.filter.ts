import type { Metadata, StatusObject } from '@grpc/grpc-js';
import { Catch, type ExceptionFilter, Logger } from '@nestjs/common';
import { type ErrorAnswer, errorAnswer } from '../error-answers.js';

/** The door sends the answer as a status. */
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
  // Truncated text may end in half a surrogate pair, which protobuf can't encode.
  return { code: grpc, details: Buffer.from(message).toString(), metadata };
}
