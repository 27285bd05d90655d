/** Calls back when the source says so; the function that it returns ends that. */
export type Listen<Source> = (source: Source, callback: () => void) => () => void;

/**
 * The same with one listener for all who wait for a source: how many they are may be for a client
 * to say, and sources search all of their listeners to add or remove one, and warn of a leak when
 * there are more than ten.
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
