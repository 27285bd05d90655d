import { literalOf } from '../../format.js';
import type { definitionOf } from './model-subject.js';
import { axesText, identifier } from '../inspect/suggestion.js';

/** TypeScript of the definition with the options that were found. */
export function tunedDefinition({
  name,
  model: { file, session, inputs, outputs },
  partitions,
  batchSize,
}: ReturnType<typeof definitionOf>): string {
  return [
    `export const ${identifier(name)} = defineServing({`,
    `  name: ${literalOf(name)},`,
    '  model: {',
    `    file: ${literalOf(file)},`,
    `    session: { intraOpNumThreads: ${session.intraOpNumThreads}, interOpNumThreads: 1 },`,
    ...axesText(inputs, outputs),
    '  },',
    `  partitions: ${partitions},`,
    `  batchSize: ${batchSize},`,
    '});',
  ].join('\n');
}
