import {
  type CanActivate,
  type ExecutionContext,
  ForbiddenException,
  type Type,
} from '@nestjs/common';
import type { ModuleRef } from '@nestjs/core';
import { isObservable, lastValueFrom } from 'rxjs';
import { isRecord, type Rule } from '../core/definition/option-rules.js';

type ModuleGuard = Type<CanActivate> | CanActivate;

export const guardList: Rule = {
  check: (value) => Array.isArray(value) && value.every(isGuard),
  allowed: 'a list of guards, as @UseGuards takes them',
};

/** Guards that are options of a module, so no decorator can name them. */
export class ModuleGuards {
  private readonly instances = new Map<ModuleGuard, Promise<CanActivate>>();

  constructor(private readonly moduleRef: ModuleRef) {}

  /** Guards that can't be made fail here. */
  async make(guards: readonly ModuleGuard[]): Promise<void> {
    await Promise.all(guards.map((each) => this.instanceOf(each)));
  }

  /** @throws ForbiddenException if a guard refuses, as Nest does */
  async pass(guards: readonly ModuleGuard[], context: ExecutionContext): Promise<true> {
    for (const guard of guards) {
      const result = (await this.instanceOf(guard)).canActivate(context);
      if (!(await (isObservable(result) ? lastValueFrom(result) : result))) {
        throw new ForbiddenException('Forbidden resource');
      }
    }
    return true;
  }

  /** The application's if it provides the guard, otherwise a new one. */
  private instanceOf(guard: ModuleGuard): Promise<CanActivate> {
    const known = this.instances.get(guard) ?? this.create(guard);
    this.instances.set(guard, known);
    return known;
  }

  private async create(guard: ModuleGuard): Promise<CanActivate> {
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

function isGuard(value: unknown): boolean {
  return typeof value === 'function' || (isRecord(value) && 'canActivate' in value);
}
