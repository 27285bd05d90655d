import { type ArgumentsHost, Catch, type ExceptionFilter, Logger } from '@nestjs/common';
import { errorAnswer } from '../error-answers.js';
import { InferenceServer } from '../inference-server.js';
import { answerWith, type PlatformResponse } from './send-reply.js';
import { jsonReply } from './write-reply.js';

/** Answers errors in the protocol's format: `{ "error": "..." }`. */
@Catch()
export class ProtocolExceptionFilter implements ExceptionFilter {
  private readonly logger = new Logger('InferenceProtocol');

  constructor(private readonly server: InferenceServer) {}

  async catch(error: unknown, host: ArgumentsHost): Promise<void> {
    const { status, message, retryAfter, isFault } = errorAnswer(error);
    if (isFault) {
      this.logger.error(error);
    }
    const response = host.switchToHttp().getResponse<PlatformResponse>();
    const { headers, chunks } = jsonReply({ error: message });
    const retry = retryAfter === undefined ? undefined : { 'retry-after': String(retryAfter) };
    await answerWith(response, status, { headers: { ...headers, ...retry }, chunks }, this.server);
  }
}
