/** A task's inputs and outputs, by which protocols offer its serving. */
export type TaskKind =
  'text-embedding' | 'rerank' | 'text-classification' | 'text-generation' | 'speech-to-text';

/** Copies of this module, as in Jest's realms, share a registered symbol. */
const TASK = Symbol.for('nestjs-serving:task');

/** Copies with `{ ...definition }` keep the mark. */
export function asTask<Definition extends object>(
  kind: TaskKind,
  definition: Definition,
): Definition {
  return { ...definition, [TASK]: kind };
}

/** Undefined unless a task made the definition. */
export function taskOf(definition: object): TaskKind | undefined {
  return (definition as { readonly [TASK]?: TaskKind })[TASK];
}
