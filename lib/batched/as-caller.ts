/** The type of a `@Batched()` method for its callers: single arguments in, one result out. */
type CallerOf<Method> = Method extends (
  ...columns: infer Columns extends readonly (readonly unknown[])[]
) => infer Results
  ? (
      ...args: { [I in keyof Columns]: Columns[I][number] }
    ) => Promise<Exclude<ElementOf<Awaited<Results>>, Error>>
  : Method;

type ElementOf<Results> = Results extends readonly (infer Result)[] ? Awaited<Result> : never;

/** The type of an object with batched methods for its callers. */
export type Caller<T> = { readonly [Key in keyof T]: CallerOf<T[Key]> };

/**
 * Returns the object itself, typed for its callers: a decorator cannot tell TypeScript that callers
 * of a `@Batched()` method pass single values. `await asCaller(scorer).score(dto)`.
 */
export function asCaller<T extends object>(instance: T): Caller<T> {
  return instance as Caller<T>;
}
