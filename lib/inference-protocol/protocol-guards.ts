import {
  type CanActivate,
  type ExecutionContext,
  ForbiddenException,
  Injectable,
  type OnModuleInit,
} from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import { lastValueFrom, isObservable } from 'rxjs';
import { InferenceServer } from './inference-server.js';
import type { ProtocolGuard } from './options.js';

/** Runs the guards of the module, for every door. */
@Injectable()
export class ProtocolGuards implements CanActivate, OnModuleInit {
  private readonly instances = new Map<ProtocolGuard, Promise<CanActivate>>();

  constructor(
    private readonly server: InferenceServer,
    private readonly moduleRef: ModuleRef,
  ) {}

  /** @internal Called by Nest: guards that cannot be made fail the boot. */
  async onModuleInit(): Promise<void> {
    const { guards, repository } = this.server.options;
    await Promise.all(
      [...guards, ...(repository?.guards ?? [])].map((each) => this.instanceOf(each)),
    );
  }

  canActivate(context: ExecutionContext): Promise<boolean> {
    return this.pass(this.server.options.guards, context);
  }

  /** @throws ForbiddenException where a guard refuses, as Nest does */
  async pass(guards: readonly ProtocolGuard[], context: ExecutionContext): Promise<true> {
    for (const guard of guards) {
      const result = (await this.instanceOf(guard)).canActivate(context);
      if (!(await (isObservable(result) ? lastValueFrom(result) : result))) {
        throw new ForbiddenException('Forbidden resource');
      }
    }
    return true;
  }

  /** That of the application where it provides the guard, else one of its own. */
  private instanceOf(guard: ProtocolGuard): Promise<CanActivate> {
    const known = this.instances.get(guard) ?? this.make(guard);
    this.instances.set(guard, known);
    return known;
  }

  private async make(guard: ProtocolGuard): Promise<CanActivate> {
    if (typeof guard !== 'function') {
      return guard;
    }
    try {
      return this.moduleRef.get(guard, { strict: false });
    } catch {
      return this.moduleRef.create(guard);
    }
  }
}

/** The guards of load and unload, after those of the module. */
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
