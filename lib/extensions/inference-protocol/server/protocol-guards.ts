import { type CanActivate, type ExecutionContext, Injectable } from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import { ModuleGuards } from '../../../doors/servings.js';
import { InferenceServer } from './inference-server.js';

@Injectable()
export class ProtocolGuards extends ModuleGuards {
  constructor({ options: { guards, repository } }: InferenceServer, moduleRef: ModuleRef) {
    super(moduleRef, guards, repository?.guards);
  }
}

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
