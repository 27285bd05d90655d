import type { CanActivate, Type } from '@nestjs/common';
import { InvalidServingError } from '../../index.js';
import { checkOptions, isRecord, type Rule, type Rules, whole } from '../../doors/options.js';
import { guardList } from '../../doors/servings.js';
import { formatValue } from '../../doors/text.js';

/** Options for routes that change servings. */
export interface ServingBoardChanges {
  /** Guards of changes, at least one; they run after the board's guards. */
  readonly guards: readonly (Type<CanActivate> | CanActivate)[];
}

/** Options of `ServingBoardModule.forRoot`, in addition to `path`. */
export interface ServingBoardOptions {
  /**
   * Guards of all the board's routes, as for `@UseGuards`. Pass `[]` if global guards or the
   * network keep strangers away.
   */
  readonly guards: readonly (Type<CanActivate> | CanActivate)[];
  /**
   * Lets users pause, resume and drain servings, change batch sizes and timeouts, and load, promote
   * and roll back versions.
   *
   * @default off: changes get a 405
   */
  readonly changes?: ServingBoardChanges;
  /**
   * Minutes of history. Each serving takes 44 bytes per second of it.
   *
   * @default 10
   */
  readonly minutes?: number;
}

export interface ResolvedBoard {
  readonly guards: ServingBoardOptions['guards'];
  /** Undefined if changes are off. */
  readonly changes: ServingBoardOptions['guards'] | undefined;
  readonly seconds: number;
}

export const OWNER = 'ServingBoardModule';

const someGuards: Rule = {
  check: (value) => guardList.check(value) && Array.isArray(value) && value.length > 0,
  allowed: 'a list of at least one guard, as @UseGuards takes them',
  isRequired: true,
};

export const rules: Rules = {
  guards: {
    ...guardList,
    allowed: `${guardList.allowed}; [] where global guards or the network keep strangers away`,
    isRequired: true,
  },
  changes: { check: isRecord, allowed: 'an object of guards', group: { guards: someGuards } },
  minutes: whole(1, 60),
};

/** @throws InvalidServingError for unknown or invalid options */
export function resolveBoard(options: ServingBoardOptions): ResolvedBoard {
  checkOptions(OWNER, options, rules);
  const { guards, changes, minutes = 10 } = options;
  return { guards, changes: changes?.guards, seconds: 60 * minutes };
}

/** Removes the leading slash. */
export function resolvePath(path: unknown): string {
  if (typeof path !== 'string' || !/^\/?[\w.~-]+(\/[\w.~-]+)*$/.test(path)) {
    throw new InvalidServingError(
      `${OWNER}: option "path" is ${formatValue(path)}; allowed are names of letters, digits and ` +
        "-._~ with slashes between them, such as 'admin/servings'",
    );
  }
  return path.replace(/^\//, '');
}
