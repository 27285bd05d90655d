import { existsSync } from 'node:fs';
import { ServingLoadError } from '../../index.js';

/**
 * The script of a task that runs in a thread. A separate module, which test
 * runners can map. Both builds start the ES module.
 *
 * @throws ServingLoadError if it is missing
 */
export function taskScript(name: 'generator' | 'transcriber' | 'tokenizer-thread'): URL {
  const script = new URL(`../../../esm/extensions/tasks/${name}.js`, import.meta.url);
  if (!existsSync(script)) {
    throw new ServingLoadError(
      `The script that a task runs in a thread is not at ${script.href}; do not bundle ` +
        'nestjs-serving and @nestjs',
    );
  }
  return script;
}
