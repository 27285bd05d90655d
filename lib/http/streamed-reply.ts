/**
 * Whether Nest sends the reply item by item, as lines of JSON: an async iterable that is no stream
 * of bytes.
 */
export function isStreamedReply(reply: unknown): reply is AsyncIterable<unknown> {
  return (
    typeof reply === 'object' &&
    reply !== null &&
    Symbol.asyncIterator in reply &&
    !('getReader' in reply) &&
    !('pipe' in reply && typeof reply.pipe === 'function' && 'readable' in reply)
  );
}

/** The reply with its items changed. It ends the original when it is ended. */
export function mapStreamedReply(
  reply: AsyncIterable<unknown>,
  change: (item: unknown) => unknown,
): AsyncIterable<unknown> {
  return {
    [Symbol.asyncIterator](): AsyncIterator<unknown> {
      const items = reply[Symbol.asyncIterator]();
      return {
        async next() {
          const { done, value } = await items.next();
          return done ? { done, value } : { done: false, value: change(value) };
        },
        // Not a generator: it would end the original only after the item that it waits for.
        async return(value: unknown) {
          await items.return?.(value);
          return { done: true, value };
        },
      };
    },
  };
}
