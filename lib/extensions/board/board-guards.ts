import {
  type CanActivate,
  type ExecutionContext,
  ForbiddenException,
  Injectable,
  MethodNotAllowedException,
  type OnModuleInit,
} from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import { ModuleGuards } from '../../internal.js';
import { ServingBoard } from './serving-board.js';

/**
 * Browsers send this header to another site only with its permission, so foreign pages can't use a
 * login.
 */
export const CHANGE_HEADER = 'x-serving-board';

@Injectable()
export class BoardGuards implements CanActivate, OnModuleInit {
  private readonly guards: ModuleGuards;

  constructor(
    private readonly board: ServingBoard,
    moduleRef: ModuleRef,
  ) {
    this.guards = new ModuleGuards(moduleRef);
  }

  /** @internal Called by Nest: guards that can't be made fail the boot. */
  onModuleInit(): Promise<void> {
    const { guards, changes = [] } = this.board.options;
    return this.guards.make([...guards, ...changes]);
  }

  canActivate(context: ExecutionContext): Promise<boolean> {
    return this.guards.pass(this.board.options.guards, context);
  }

  /** @throws MethodNotAllowedException when the board allows no changes */
  passChange(context: ExecutionContext): Promise<true> {
    const { changes } = this.board.options;
    if (!changes) {
      throw new MethodNotAllowedException(
        'This board only shows; the option "changes" of ServingBoardModule allows changes',
      );
    }
    return this.guards.pass(changes, context);
  }
}

/** Runs after the board's guards. */
@Injectable()
export class ChangeGuards implements CanActivate {
  constructor(private readonly guards: BoardGuards) {}

  async canActivate(context: ExecutionContext): Promise<boolean> {
    await this.guards.passChange(context);
    const { headers } = context
      .switchToHttp()
      .getRequest<{ readonly headers: Readonly<Record<string, unknown>> }>();
    if (headers[CHANGE_HEADER] === undefined) {
      throw new ForbiddenException(
        `A change needs the header ${CHANGE_HEADER}, with any value, which pages of other sites ` +
          'cannot send',
      );
    }
    return true;
  }
}
