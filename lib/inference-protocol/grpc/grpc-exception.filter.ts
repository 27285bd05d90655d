import { Catch, type ExceptionFilter, Logger } from '@nestjs/common';
import { type ErrorAnswer, errorAnswer } from '../error-answers.js';
import type { Metadata, StatusObject } from '@grpc/grpc-js';

/** Makes the answer of an error, which the door sends as a status. */
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

/** What a filter returns in place of a reply. */
export class FailedCall {
  constructor(readonly answer: ErrorAnswer) {}
}

/** How long a client waits before it tries again, in milliseconds, by gRPC's retry design. */
const PUSHBACK = 'grpc-retry-pushback-ms';

/** The status of an error. `metadata` is new and empty. */
export function statusOf(
  { grpc, message, retryAfter }: ErrorAnswer,
  metadata: Metadata,
): StatusObject {
  if (retryAfter !== undefined) {
    metadata.set(PUSHBACK, String(retryAfter * 1000));
  }
  // Half of a surrogate pair, which a cut text may end with, cannot be encoded.
  return { code: grpc, details: Buffer.from(message).toString(), metadata };
}
