import { Batch } from '../batch/batch.js';
import { SlowConsumerError, InvalidBatchError } from '../errors.js';
import { Queue } from '../streaming/queue.js';
import { BatchRequest, releaseOutput, type Reply, type ReplyRequest } from './request.js';
import { type Call, unwrap } from './caller-side.js';
import { asOutput } from '../batch/container.js';
import type { PartMetadata, StreamEvent } from '../definition/reply.js';

type RequestEvent =
  | { readonly offset: number; readonly rows: Batch; readonly metadata: unknown }
  | { readonly hook: string; readonly value: unknown };

/**
 * Limit of steps and hooks that wait for their consumer, or for earlier rows' events. The batch
 * runs for other callers, so it can't wait.
 */
const EVENTS_AHEAD = 1024;

/** Streams the output in the order of its rows or of a sequence's steps. */
export class StreamRequest extends BatchRequest {
  readonly readsSteps = true;
  readonly events = new Queue<RequestEvent>();
  /** We hold back later parts' events. */
  private turn = 0;
  private readonly held = new Map<number, { readonly events: RequestEvent[]; count: number }>();
  private ahead = 0;
  /** A sequence's rows end one by one, without waiting for earlier rows. */
  isInterleaved = false;

  hook(hook: string, value: unknown): void {
    this.putUnlessSlow(0, { hook, value });
  }

  protected takeOutput(offset: number, rows: Batch, metadata: unknown): void {
    this.put(offset, { offset, rows, metadata });
    this.endPart(offset, rows.size);
  }

  protected takeStep(
    offset: number,
    values: readonly unknown[],
    _live: readonly boolean[],
    metadata: unknown,
  ): void {
    this.putUnlessSlow(offset, { offset, rows: Batch.ofValues(values), metadata });
  }

  protected endSteppedPart(offset: number, count: number): void {
    this.endPart(offset, count);
  }

  protected finish(): void {
    this.events.end();
  }

  protected reject(error: unknown): void {
    this.events.fail(error);
  }

  private endPart(offset: number, count: number): void {
    this.heldAt(offset).count = count;
    for (let part = this.held.get(this.turn); part; part = this.held.get(this.turn)) {
      this.ahead -= part.events.length;
      part.events.splice(0).forEach((event) => this.events.push(event));
      if (part.count === 0) {
        return;
      }
      this.held.delete(this.turn);
      this.turn += part.count;
    }
  }

  private putUnlessSlow(offset: number, event: RequestEvent): void {
    if (this.events.size + this.ahead < EVENTS_AHEAD) {
      this.put(offset, event);
    } else {
      this.fail(
        new SlowConsumerError(
          `The stream has ${EVENTS_AHEAD} unread events, the maximum; read it faster, or collect the ` +
            'events first',
        ),
      );
    }
  }

  private put(offset: number, event: RequestEvent): void {
    if (offset === this.turn || this.isInterleaved) {
      this.events.push(event);
    } else {
      this.heldAt(offset).events.push(event);
      this.ahead++;
    }
  }

  private heldAt(offset: number): { readonly events: RequestEvent[]; count: number } {
    let part = this.held.get(offset);
    if (!part) {
      part = { events: [], count: 0 };
      this.held.set(offset, part);
    }
    return part;
  }
}

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
        yield {
          batch: { offset: before + offset, rows: rows.size },
          output: unwrap(call, releaseOutput(rows)),
          metadata,
        };
      }
    }
    before += piece.value.size;
  }
}

export async function replyOf(
  serving: string,
  pieces: AsyncIterator<ReplyRequest, undefined>,
): Promise<Reply> {
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
