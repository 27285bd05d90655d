import { transformSync } from '@swc/core';

/** Compiles TypeScript to the ES modules of Node, as the build does: `import x = require()` works. */
export default {
  process: (source, filename) =>
    transformSync(source, {
      filename,
      swcrc: false,
      sourceMaps: 'inline',
      module: { type: 'nodenext' },
      jsc: {
        target: 'es2022',
        keepClassNames: true,
        parser: { syntax: 'typescript', decorators: true },
        transform: {
          legacyDecorator: true,
          decoratorMetadata: true,
          useDefineForClassFields: false,
        },
      },
    }),
};
