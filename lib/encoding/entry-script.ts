import { existsSync } from 'node:fs';
import { ServingLoadError } from '../core/errors.js';

/**
 * A separate module, so test runners can map it. Both builds start the ES module.
 *
 * @param path of its module below `lib`, without an extension
 * @throws ServingLoadError if it is missing
 */
export function scriptOfThread(path: string): URL {
  const script = new URL(`../../esm/${path}.js`, import.meta.url);
  if (!existsSync(script)) {
    throw new ServingLoadError(
      `The script of a thread is not at ${script.href}; do not bundle nestjs-serving and @nestjs`,
    );
  }
  return script;
}
