import {
  createParamDecorator,
  type ExecutionContext,
  Get,
  HttpStatus,
  Param,
  Post,
  Res,
  UseGuards,
} from '@nestjs/common';
import { callerOf, optionsOf } from '../../../../doors/calls.js';
import { InferenceServer } from '../inference-server.js';
import { ProtocolGuards } from '../protocol-guards.js';
import type { PlatformResponse } from '../../../../encoding/http.js';
import { readRequest } from './read-request.js';
import { ofModel, ProtocolController } from './routes.js';
import { answer, answerWith, jsonReply, requestOf, writeReply } from './send-reply.js';

const Context = createParamDecorator((_: unknown, context: ExecutionContext) => context);

interface ModelPath {
  readonly model: string;
  readonly version?: string;
}

// `@Res()` bypasses the application's own format.

@ProtocolController('')
@UseGuards(ProtocolGuards)
export class InferenceController {
  constructor(private readonly server: InferenceServer) {}

  @Get()
  metadata(@Res() response: PlatformResponse): Promise<void> {
    return answer(response, this.server.metadata(), this.server);
  }

  // Precedes the model paths: "stats" is no model.
  @Get('models/stats')
  statistics(@Res() response: PlatformResponse): Promise<void> {
    return answer(response, { model_stats: this.server.statistics() }, this.server);
  }

  @Get(ofModel(''))
  modelMetadata(
    @Param() { model, version }: ModelPath,
    @Res() response: PlatformResponse,
  ): Promise<void> {
    return answer(response, this.server.modelMetadata(model, version), this.server);
  }

  @Get(ofModel('/config'))
  modelConfig(
    @Param() { model, version }: ModelPath,
    @Res() response: PlatformResponse,
  ): Promise<void> {
    return answer(response, this.server.modelConfig(model, version), this.server);
  }

  @Get(ofModel('/stats'))
  modelStatistics(
    @Param() { model, version }: ModelPath,
    @Res() response: PlatformResponse,
  ): Promise<void> {
    return answer(response, { model_stats: this.server.statistics(model, version) }, this.server);
  }

  @Get(ofModel('/ready'))
  modelReady(
    @Param() { model, version }: ModelPath,
    @Res() response: PlatformResponse,
  ): Promise<void> {
    const ready = this.server.isModelReady(model, version);
    const status = ready ? HttpStatus.OK : HttpStatus.SERVICE_UNAVAILABLE;
    return answerWith(response, status, jsonReply({ name: model, ready }), this.server);
  }

  @Post(ofModel('/infer'))
  async infer(
    @Param() { model, version }: ModelPath,
    @Context() context: ExecutionContext,
    @Res() response: PlatformResponse,
  ): Promise<void> {
    const { server } = this;
    const { bodyLimit, jsonLimit, tenant } = server.options;
    const caller = { ...optionsOf(callerOf(context)), tenant: tenant?.(context) };
    // Refuses unknown models before reading the body.
    const inputs = server.inputsOf(model, version);
    const target = { model, version, bodyLimit, jsonLimit, inputs };
    const request = await readRequest(requestOf(response), target, caller.signal);
    const reply = await server.infer(request, caller);
    return answerWith(response, HttpStatus.OK, await writeReply(reply, request), server);
  }
}

/** Probes skip the module's guards. */
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
