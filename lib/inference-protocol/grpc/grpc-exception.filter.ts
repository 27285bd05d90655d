import { Catch, type ExceptionFilter, Logger } from '@nestjs/common';
import { type ErrorAnswer, errorAnswer } from '../error-answers.js';

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
