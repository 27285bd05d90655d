import { existsSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { ServingLoadError } from '../../errors.js';
import type { Isolation } from './worker.partition.js';

/**
 * A separate module, which test runners can map. Both builds start the ES module script; a bundled
 * application has a bundle next to its own.
 *
 * @throws ServingLoadError when both are missing
 */
export function entryScript(isolation: Isolation): URL {
  const own = new URL(`../../../../esm/features/${isolation}.entry.js`, import.meta.url);
  const application = pathToFileURL(process.argv[1] ?? './');
  const bundles = ['js', 'cjs', 'mjs'].map(
    (extension) => new URL(`serving.${isolation}.${extension}`, application),
  );
  const script = [own, ...bundles].find((url) => existsSync(url));
  if (!script) {
    throw new ServingLoadError(
      `The script of a partition's ${isolation} is neither ${own.href} nor ${bundles[0]!.href}. ` +
        `When the application is bundled, bundle "nestjs-serving/${isolation}" as well, as an ` +
        `entry of its own with the name "serving.${isolation}"; or do not bundle nestjs-serving ` +
        'and @nestjs',
    );
  }
  return script;
}
