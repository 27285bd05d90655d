/** Calls back when the source emits. Returns a function that removes the callback. */
export type Listen<Source> = (source: Source, callback: () => void) => () => void;

/**
 * Shares one listener between all callbacks of a source. The number of callbacks may depend on
 * clients; a source searches all its listeners to add or remove one, and warns of a leak beyond
 * ten.
 */
export function sharedListener<Source extends object>(listen: Listen<Source>): Listen<Source> {
  const sources = new WeakMap<Source, Waiting>();
  return (source, callback) => {
    const waiting = sources.get(source) ?? begin(source);
    const wake = (): void => callback();
    waiting.callbacks.add(wake);
    return () => {
      waiting.callbacks.delete(wake);
      if (waiting.callbacks.size === 0) {
        end(source, waiting);
      }
    };
  };

  function begin(source: Source): Waiting {
    const callbacks = new Set<() => void>();
    const stop = listen(source, () => {
      end(source, waiting);
      callbacks.forEach((wake) => wake());
    });
    const waiting = { callbacks, stop };
    sources.set(source, waiting);
    return waiting;
  }

  function end(source: Source, waiting: Waiting): void {
    if (sources.get(source) === waiting) {
      sources.delete(source);
      waiting.stop();
    }
  }
}

interface Waiting {
  readonly callbacks: Set<() => void>;
  readonly stop: () => void;
}
