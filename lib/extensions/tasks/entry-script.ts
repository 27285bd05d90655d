import { existsSync } from 'node:fs';
import { ServingLoadError } from '../../index.js';

/**
 * The script of `textGeneration`. A separate module, which test runners can map. Both builds start
 * the ES module.
 *
 * @throws ServingLoadError if it is missing
 */
export function generatorScript(): URL {
  const script = new URL('../../../esm/extensions/tasks/generator.js', import.meta.url);
  if (!existsSync(script)) {
    throw new ServingLoadError(
      `The script that textGeneration runs in a thread is not at ${script.href}; do not bundle ` +
        'nestjs-serving and @nestjs',
    );
  }
  return script;
}
