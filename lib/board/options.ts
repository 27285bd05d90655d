import type { CanActivate, Type } from '@nestjs/common';
import {
  checkOptions,
  isRecord,
  type Rule,
  type Rules,
  whole,
} from '../definition/option-rules.js';
import { InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import { guardList } from '../module-guards.js';

/** Guards of the routes that change servings. */
export interface ServingBoardChanges {
  /** Guards of changes, after those of the board. At least one. */
  readonly guards: readonly (Type<CanActivate> | CanActivate)[];
}

/** Options of `ServingBoardModule.forRoot`, beside its `path`. */
export interface ServingBoardOptions {
  /**
   * Guards of all routes of the board, as `@UseGuards` takes them. `[]` where global guards of the
   * application, or its network, keep strangers away.
   */
  readonly guards: readonly (Type<CanActivate> | CanActivate)[];
  /**
   * Lets users pause, resume and drain servings, size their batches, and load, promote and roll back
   * versions.
   *
   * @default off: changes are answered with 405
   */
  readonly changes?: ServingBoardChanges;
  /**
   * The minutes for which figures are kept: 44 bytes a second for each serving.
   *
   * @default 10
   */
  readonly minutes?: number;
}

/** The options with every default filled in. */
export interface ResolvedBoard {
  readonly guards: ServingBoardOptions['guards'];
  /** The guards of changes; undefined where none are allowed. */
  readonly changes: ServingBoardOptions['guards'] | undefined;
  /** The seconds of history. */
  readonly seconds: number;
}

const OWNER = 'ServingBoardModule';

const someGuards: Rule = {
  check: (value) => guardList.check(value) && Array.isArray(value) && value.length > 0,
  allowed: 'a list of at least one guard, as @UseGuards takes them',
  isRequired: true,
};

const rules: Rules = {
  guards: {
    ...guardList,
    allowed: `${guardList.allowed}; [] where global guards or the network keep strangers away`,
    isRequired: true,
  },
  changes: { check: isRecord, allowed: 'an object of guards', group: { guards: someGuards } },
  minutes: whole(1, 60),
};

/** @throws InvalidServingError for unknown options and invalid values */
export function resolveBoard(options: ServingBoardOptions): ResolvedBoard {
  checkOptions(OWNER, options, rules);
  const { guards, changes, minutes = 10 } = options;
  return { guards, changes: changes?.guards, seconds: 60 * minutes };
}

/** The path of the board without a slash before it. */
export function resolvePath(path: unknown): string {
  if (typeof path !== 'string' || !/^\/?[\w.~-]+(\/[\w.~-]+)*$/.test(path)) {
    throw new InvalidServingError(
      `${OWNER}: option "path" is ${formatValue(path)}; allowed are names of letters, digits and ` +
        "-._~ with slashes between them, such as 'admin/servings'",
    );
  }
  return path.replace(/^\//, '');
}
