import { existsSync } from 'node:fs';
import { ServingLoadError } from '../core/errors.js';

/**
 * A script that runs in a thread. A separate module, which test runners can map. Both builds start
 * the ES module.
 *
 * @param path of its module below this folder's parent, without an extension
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
