import { type AbortSignalLike, type CallOptions, onAbort } from './call-options.js';
import { currentSignal, currentOrigin, type Origin } from './caller-context.js';

/** The options, with the signal of the current request if they have none. */
export function inRequest<Options extends CallOptions>(options: Options): Options {
  const signal = options.signal ? undefined : currentSignal();
  return signal ? { ...options, signal } : options;
}

/**
 * The options of a stream, resolved now: its consumer may subscribe outside of the request, as Nest
 * does for `@Sse()`.
 */
export function streamInRequest<Options extends CallOptions>(
  options: Options,
): Options & { readonly origin: Origin } {
  const inside = inRequest(options);
  // Options may be an AbortController, whose inherited signal a copy would lose.
  return { ...inside, signal: inside.signal, origin: options.origin ?? currentOrigin() };
}

/** Makes a call with these options. */
export function callInRequest<Reply>(
  options: CallOptions,
  call: (options: CallOptions) => Promise<Reply>,
): Promise<Reply> {
  const inside = inRequest(options);
  return inside === options ? call(options) : markHandled(inside.signal, call(inside));
}

/**
 * The same reply. A caller may await it later: the rejection of a client that leaves in between
 * must not end the process as unhandled.
 */
function markHandled<Reply>(
  signal: AbortSignalLike | undefined,
  given: Promise<Reply>,
): Promise<Reply> {
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
