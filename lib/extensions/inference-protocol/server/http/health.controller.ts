import { Get, HttpStatus, Res } from '@nestjs/common';
import { InferenceServer } from '../inference-server.js';
import { ProtocolController } from './routes.js';
import { answer, answerWith, type PlatformResponse } from './send-reply.js';
import { jsonReply } from './write-reply.js';

/** Health probes, which skip the module's guards. */
@ProtocolController('/health')
export class HealthController {
  constructor(private readonly server: InferenceServer) {}

  @Get('live')
  live(@Res() response: PlatformResponse): Promise<void> {
    return answer(response, { live: true }, this.server);
  }

  @Get('ready')
  ready(@Res() response: PlatformResponse): Promise<void> {
    const ready = this.server.isReady;
    const status = ready ? HttpStatus.OK : HttpStatus.SERVICE_UNAVAILABLE;
    return answerWith(response, status, jsonReply({ ready, live: true }), this.server);
  }
}
