// Builds dist/cjs, which Jest and bundlers load, from lib; its declarations are those of dist/esm.
import { transformFile } from '@swc/core';
import { cp, mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const [source, esm, cjs] = ['lib', 'dist/esm', 'dist/cjs'].map((folder) => join(root, folder));

/** A file of `useFile` may be an ES module, which only `import()` loads. */
const KEEPS_DYNAMIC_IMPORT = ['core/partitions/worker/worker-host.ts'];

await rm(cjs, { recursive: true, force: true });
// The scripts of a page are for browsers, whatever the build.
const isCopied = (path) => !path.endsWith('.js') || dirname(path).endsWith('/board/page');
await cp(esm, cjs, { recursive: true, filter: isCopied });
await writeFile(join(cjs, 'package.json'), '{ "type": "commonjs" }\n');
await Promise.all(
  (await readdir(source, { recursive: true }))
    .filter((file) => file.endsWith('.ts'))
    .map(async (file) => {
      const target = join(cjs, file.replace(/ts$/, 'js'));
      const { code } = await transformFile(join(source, file), options(file));
      await mkdir(dirname(target), { recursive: true });
      await writeFile(target, code);
    }),
);

/** The same output as that of tsconfig.json, in CommonJS. */
function options(file) {
  return {
    swcrc: false,
    module: { type: 'commonjs', ignoreDynamic: KEEPS_DYNAMIC_IMPORT.includes(file) },
    jsc: {
      target: 'es2022',
      keepClassNames: true,
      parser: { syntax: 'typescript', decorators: true },
      transform: { legacyDecorator: true, decoratorMetadata: true, useDefineForClassFields: false },
    },
  };
}
