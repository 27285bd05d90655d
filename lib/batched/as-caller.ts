/** A `@Batched()` method as its callers see it: single arguments in, one result out. */
type CallerOf<Method> = Method extends (
  ...columns: infer Columns extends readonly (readonly unknown[])[]
) => infer Results
  ? (
      ...args: { [I in keyof Columns]: Columns[I][number] }
    ) => Promise<Exclude<ElementOf<Awaited<Results>>, Error>>
  : Method;

type ElementOf<Results> = Results extends readonly (infer Result)[] ? Awaited<Result> : never;

/** An object with batched methods as its callers see it. */
export type Caller<T> = { readonly [Key in keyof T]: CallerOf<T[Key]> };

/**
 * Gives the object back as it is, with the types its callers need: a decorator cannot tell
 * TypeScript that callers of a `@Batched()` method pass single values.
 * `await caller(scorer).score(dto)`.
 */
export function asCaller<T extends object>(instance: T): Caller<T> {
  return instance as Caller<T>;
}
