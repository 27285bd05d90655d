/** What a task's calls take and give. Protocols offer a task's serving accordingly. */
export type TaskKind = 'text-embedding' | 'rerank' | 'text-generation' | 'speech-to-text';

/** Two copies of this module, as in Jest's realms, share a registered symbol. */
const TASK = Symbol.for('nestjs-serving:task');

/** Marks a task's definition. `{ ...definition }` keeps the mark. */
export function asTask<Definition extends object>(
  kind: TaskKind,
  definition: Definition,
): Definition {
  return { ...definition, [TASK]: kind };
}

/** Undefined for a definition that no task has made. */
export function taskOf(definition: object): TaskKind | undefined {
  return (definition as { readonly [TASK]?: TaskKind })[TASK];
}
