import {
  type ResolvedCallOptions,
  DEFAULT_CALL_OPTIONS,
  onCancel,
} from './resolved-call-options.js';

/** One result that a caller waits for. */
interface Wait {
  readonly result: Promise<unknown>;
  readonly end: (reason: unknown) => void;
}

/**
 * The results that callers wait for and that cannot be ended from here: of `preprocess`,
 * `postprocess`, or a session that loads. A caller waits no longer than its terms allow, and at
 * most until {@link end}.
 */
export class Waits {
  private readonly waits = new Set<Wait>();
  private ending: { readonly error: Error } | undefined;

  /** The results that are waited for. */
  get size(): number {
    return this.waits.size;
  }

  /** The result of the work, or the reason for which the call ends before. */
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

  /** Answers every caller that waits, and from now on those that would, with the error. */
  end(error: Error): void {
    this.ending = { error };
    this.waits.forEach(({ end }) => end(error));
  }
}
