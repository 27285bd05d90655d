import {
  Body,
  Controller,
  Get,
  HttpCode,
  Param,
  Post,
  UnprocessableEntityException,
  UseGuards,
} from '@nestjs/common';
import { ApiSecurity } from '@nestjs/swagger';
import { ServingError, type VersionStatus } from 'nestjs-serving';
import { apiKeyHeader, ApiKeyGuard, OperatorGuard } from './api-key.guard.js';
import { CanaryDto } from './canary.dto.js';
import { RolloutService } from './rollout.service.js';

/** The versions of this process: other pods have their own. Each answer has what they are now. */
@Controller('operator/versions')
@UseGuards(ApiKeyGuard, OperatorGuard)
@ApiSecurity(apiKeyHeader)
export class RolloutController {
  constructor(private readonly rollout: RolloutService) {}

  @Get()
  versions(): readonly VersionStatus[] {
    return this.rollout.versions;
  }

  @Post()
  @HttpCode(200)
  load(@Body() canary: CanaryDto): Promise<readonly VersionStatus[]> {
    return this.after(this.rollout.load(canary));
  }

  @Post(':version/promote')
  @HttpCode(200)
  promote(@Param('version') version: string): Promise<readonly VersionStatus[]> {
    return this.after(this.rollout.promote(version));
  }

  @Post(':version/rollback')
  @HttpCode(200)
  rollback(@Param('version') version: string): Promise<readonly VersionStatus[]> {
    return this.after(this.rollout.rollback(version));
  }

  /** The operator reads why a version was refused; the one before goes on. */
  private async after(change: Promise<void>): Promise<readonly VersionStatus[]> {
    try {
      await change;
    } catch (cause) {
      throw cause instanceof ServingError
        ? new UnprocessableEntityException(cause.message, { cause })
        : cause;
    }
    return this.rollout.versions;
  }
}
