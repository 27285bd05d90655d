import {
  type ResolvedCallOptions,
  DEFAULT_CALL_OPTIONS,
  onCancel,
} from './resolved-call-options.js';

/** A result that a caller waits for. */
interface Wait {
  readonly result: Promise<unknown>;
  readonly end: (reason: unknown) => void;
}

/**
 * Results that callers wait for and that cannot be cancelled: of `preprocess`, of `postprocess`, or
 * of a session that loads. A caller waits at most until its call is cancelled or {@link end} is
 * called.
 */
export class Waits {
  private readonly waits = new Set<Wait>();
  private ending: { readonly error: Error } | undefined;

  /** The number of results that are waited for. */
  get size(): number {
    return this.waits.size;
  }

  /** The result of the work, or the reason when the call ends first. */
  for<T>(work: Promise<T>, terms: ResolvedCallOptions = DEFAULT_CALL_OPTIONS): Promise<T> {
    let end!: Wait['end'];
    let stop: (() => void) | undefined;
    const result = Promise.race([work, new Promise<never>((_, reject) => (end = reject))]);
    const wait = { result, end };
    this.waits.add(wait);
    const forget = (): void => {
      this.waits.delete(wait);
      stop?.();
    };
    result.then(forget, forget);
    stop = onCancel(terms, end);
    if (this.ending) {
      end(this.ending.error);
    }
    return result;
  }

  /** Resolves when no result is waited for. */
  async idle(): Promise<void> {
    while (this.waits.size > 0) {
      await Promise.allSettled([...this.waits].map(({ result }) => result));
    }
  }

  /** Rejects all waits, and later ones at once, with the error. */
  end(error: Error): void {
    this.ending = { error };
    this.waits.forEach(({ end }) => end(error));
  }
}
