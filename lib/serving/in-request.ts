import { type AbortSignalLike, type CallOptions, onAbort } from './call-options.js';
import { currentSignal } from './caller-context.js';

/** The options, with the signal of the request that Nest is handling where they have none. */
export function inRequest<Options extends CallOptions>(options: Options): Options {
  const signal = options.signal ? undefined : currentSignal();
  return signal ? { ...options, signal } : options;
}

/** Makes a call with these options. */
export function callInRequest<Reply>(options: CallOptions, call: (options: CallOptions) => Promise<Reply>): Promise<Reply> {
  const inside = inRequest(options);
  return inside === options ? call(options) : awaitedLater(inside.signal, call(inside));
}

/**
 * The same reply. Code that makes a call now and awaits it after something else is right, and must not end the process as an unhandled
 * rejection when the client leaves in between.
 */
function awaitedLater<Reply>(signal: AbortSignalLike | undefined, given: Promise<Reply>): Promise<Reply> {
  const follow = async (): Promise<Reply> => {
    try {
      return await given;
    } finally {
      stop();
    }
  };
  const reply = follow();
  const stop = onAbort(signal, () => void reply.catch(() => {}));
  return reply;
}
