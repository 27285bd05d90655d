import { type Provider, Scope, type Type } from '@nestjs/common';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { InvalidServingError } from '../core/errors.js';

interface Copy {
  readonly path: string;
  readonly tokens: readonly Type[];
}

/** All copies find this list, whatever their version. */
const COPIES = Symbol.for('nestjs-serving:copies');

const own = dirname(dirname(fileURLToPath(import.meta.url)));

/** A copy loaded again replaces itself. */
export function enterCopy(tokens: readonly Type[]): void {
  Reflect.set(globalThis, COPIES, [...otherCopies(), { path: own, tokens }]);
}

/** Failing providers for other copies' classes: an application can't mix copies. */
export function providersOfOtherCopies(): Exclude<Provider, Type>[] {
  return otherCopies().flatMap((copy) =>
    copy.tokens.map((token) => ({
      provide: token,
      scope: Scope.TRANSIENT,
      useFactory: () => {
        throw new InvalidServingError(
          `${token.name} comes from another copy of nestjs-serving than ServingModule: ` +
            adviceFor([copy.path, own]),
        );
      },
    })),
  );
}

/** Empty if only one copy is loaded. */
export function hintOfCopies(): string {
  const others = otherCopies().map(({ path }) => path);
  return others.length === 0
    ? ''
    : `. Several copies of nestjs-serving are loaded, and an application needs all of one: ` +
        adviceFor([...others, own]);
}

function adviceFor(paths: readonly string[]): string {
  return (
    `${paths.map((path) => `${path} (version ${versionOf(path)})`).join(' and ')}. Keep one: ` +
    '"npm ls nestjs-serving" shows what depends on each, and "npm dedupe" merges equal versions; ' +
    'one version can be loaded twice, by import and by require'
  );
}

function otherCopies(): readonly Copy[] {
  const copies = (Reflect.get(globalThis, COPIES) ?? []) as readonly Copy[];
  return copies.filter(({ path }) => path !== own);
}

/** Reads the nearest package.json; by default this package's. */
export function versionOf(folder = own): string {
  const file = join(folder, 'package.json');
  const { version } = existsSync(file)
    ? (JSON.parse(readFileSync(file, 'utf8')) as { version?: string })
    : {};
  return version ?? (dirname(folder) === folder ? 'unknown' : versionOf(dirname(folder)));
}
