import { InvalidBatchError } from '../errors.js';
import { Batch } from '../batch/batch.js';
import { type Call, unwrap } from './call.js';
import { asOutput, releaseOutput } from './output.js';
import type { Reply, ReplyRequest } from './reply-request.js';
import type { PartMetadata } from './call-metadata.js';
import type { StreamRequest } from './stream-request.js';
import type { StreamEvent } from './stream-event.js';

/** What a call gives while it runs: the events of its pieces, one piece after the other. */
export async function* eventsOf(
  call: Call,
  pieces: AsyncIterator<StreamRequest, undefined>,
): AsyncGenerator<StreamEvent<unknown, string>> {
  let before = 0;
  for (let piece = await pieces.next(); !piece.done; piece = await pieces.next()) {
    for await (const event of piece.value.events) {
      if ('hook' in event) {
        yield { hook: event.hook, value: unwrap(call, event.value) };
      } else {
        const { offset, rows, metadata } = event;
        yield { batch: { offset: before + offset, rows: rows.size }, output: unwrap(call, releaseOutput(rows)), metadata };
      }
    }
    before += piece.value.size;
  }
}

/** The replies to all pieces of a call as one. */
export async function replyOf(serving: string, pieces: AsyncIterator<ReplyRequest, undefined>): Promise<Reply> {
  const replies: Reply[] = [];
  for (let piece = await pieces.next(); !piece.done; piece = await pieces.next()) {
    replies.push(await piece.value.reply);
  }
  const [first, ...others] = replies;
  if (!first) {
    throw new InvalidBatchError(`Serving "${serving}" was given a sequence without batches`);
  }
  if (others.length === 0) {
    return first;
  }
  const rows = asOutput(() => Batch.merge(replies.map((reply) => reply.rows)));
  return { isSplit: true, rows, metadata: metadataOf(replies) };
}

/** What was said of the batches of all replies, by the place of their rows in the call. */
function metadataOf(replies: readonly Reply[]): PartMetadata[] {
  let before = 0;
  return replies.flatMap((reply) => {
    const { isSplit, metadata, rows } = reply;
    const parts = isSplit ? metadata : [{ offset: 0, rows: rows.size, metadata }];
    const placed = parts.map((part) => ({ ...part, offset: before + part.offset }));
    before += rows.size;
    return placed;
  });
}
