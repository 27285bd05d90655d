/** A task's inputs and outputs, by which protocols offer its serving. */
export type TaskKind =
  'text-embedding' | 'rerank' | 'text-classification' | 'text-generation' | 'speech-to-text';

/** Copies of this module, as in Jest's realms, share a registered symbol. */
const TASK = Symbol.for('nestjs-serving:task');

const RAW = Symbol.for('nestjs-serving:raw-scores');

/** Copies with `{ ...definition }` keep the marks. */
export function asTask<Definition extends object>(
  kind: TaskKind,
  definition: Definition,
  marks: { readonly hasRawScores?: boolean } = {},
): Definition {
  return { ...definition, [TASK]: kind, [RAW]: marks.hasRawScores };
}

/** True for a `rerank` that gives the model's own numbers. */
export function hasRawScores(definition: object): boolean {
  return (definition as { readonly [RAW]?: boolean })[RAW] ?? false;
}

/** Undefined unless a task made the definition. */
export function taskOf(definition: object): TaskKind | undefined {
  return (definition as { readonly [TASK]?: TaskKind })[TASK];
}
