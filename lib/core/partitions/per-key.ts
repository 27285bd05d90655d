/** Values for undeclared keys; beyond it the oldest is dropped, and built anew if used again. */
const MAX_UNDECLARED = 1024;

/** What is built once for each key of a partition: for the declared ones at start. */
export class PerKey<T> {
  private readonly declared = new Map<string, Promise<T>>();
  private readonly undeclared = new Map<string, Promise<T>>();
  /** The values of declared keys, once they are built: a batch awaits nothing for them. */
  private readonly built = new Map<string, T>();

  constructor(private readonly build: (key: string) => Promise<T>) {}

  /** Builds the declared keys' values, one after the other. */
  async declare(keys: readonly string[]): Promise<void> {
    for (const key of keys) {
      const built = this.build(key);
      this.declared.set(key, built);
      this.built.set(key, await built);
    }
  }

  /** A declared key's value, if it is built. */
  known(key: string): T | undefined {
    return this.built.get(key);
  }

  /** The value for the key, built on first use. */
  get(key: string): Promise<T> {
    const { declared, undeclared } = this;
    const known = declared.get(key) ?? undeclared.get(key);
    if (known) {
      return known;
    }
    if (undeclared.size === MAX_UNDECLARED) {
      undeclared.delete(undeclared.keys().next().value!);
    }
    const built = this.build(key);
    undeclared.set(key, built);
    // Does not cache a failure.
    built.catch(() => undeclared.delete(key));
    return built;
  }
}
