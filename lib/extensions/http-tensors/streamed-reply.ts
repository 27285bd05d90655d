/** True for async iterables that aren't byte streams: Nest sends them as lines of JSON. */
export function isStreamedReply(reply: unknown): reply is AsyncIterable<unknown> {
  return (
    typeof reply === 'object' &&
    reply !== null &&
    Symbol.asyncIterator in reply &&
    !('getReader' in reply) &&
    !('pipe' in reply && typeof reply.pipe === 'function' && 'readable' in reply)
  );
}

/** Maps the reply's items. Ending the result ends the original. */
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
        // A generator would end the original only after the pending item.
        async return(value: unknown) {
          await items.return?.(value);
          return { done: true, value };
        },
      };
    },
  };
}
