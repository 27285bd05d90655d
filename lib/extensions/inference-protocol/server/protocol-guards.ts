import {
  type CanActivate,
  type ExecutionContext,
  Injectable,
  type OnModuleInit,
} from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import { ModuleGuards } from '../../../internal.js';
import { InferenceServer } from './inference-server.js';
import type { ProtocolGuard } from './options.js';

@Injectable()
export class ProtocolGuards implements CanActivate, OnModuleInit {
  private readonly guards: ModuleGuards;

  constructor(
    private readonly server: InferenceServer,
    moduleRef: ModuleRef,
  ) {
    this.guards = new ModuleGuards(moduleRef);
  }

  /** @internal Called by Nest: guards that can't be made fail the boot. */
  onModuleInit(): Promise<void> {
    const { guards, repository } = this.server.options;
    return this.guards.make([...guards, ...(repository?.guards ?? [])]);
  }

  canActivate(context: ExecutionContext): Promise<boolean> {
    return this.pass(this.server.options.guards, context);
  }

  /** @throws ForbiddenException if a guard refuses, as in Nest */
  pass(guards: readonly ProtocolGuard[], context: ExecutionContext): Promise<true> {
    return this.guards.pass(guards, context);
  }
}

/** For load and unload. */
@Injectable()
export class RepositoryGuards implements CanActivate {
  constructor(
    private readonly guards: ProtocolGuards,
    private readonly server: InferenceServer,
  ) {}

  canActivate(context: ExecutionContext): Promise<boolean> {
    this.server.checkRepository();
    return this.guards.pass(this.server.options.repository?.guards ?? [], context);
  }
}
