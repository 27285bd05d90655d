import { Batch } from '../batch/batch.js';
import { mostRowsOf } from '../batching/admission.js';
import type { ResolvedServing, Callbacks } from '../definition/resolved-serving.js';
import type { Partition } from '../partitions/partition.js';
import type { PullAhead, Pulls } from '../streaming/pull-ahead.js';
import type { Source } from '../streaming/source.js';
import type { Call } from './caller-side.js';
import { type CallContext, costOf, type Intake, requestedHooks } from './intake.js';
import type { Lanes } from './lanes.js';
import type { BatchRequest, Reply } from './request.js';
import { onCancel } from './resolved-call-options.js';
import { replyOf, type StreamRequest } from './stream-request.js';

interface PiecesOptions {
  readonly options: ResolvedServing;
  readonly callbacks: Callbacks;
  readonly lanes: Lanes;
  readonly partitions: readonly Partition[];
  readonly intake: Intake;
  readonly pulls: Pulls;
}

/**
 * Streams, and lazy sequences as inputs, queue as many rows at a time as keep every partition busy.
 */
export class Pieces {
  constructor(private readonly options: PiecesOptions) {}

  async reply(call: Call, source: Source<Batch>, context: CallContext): Promise<Reply> {
    const { intake, pulls, options } = this.options;
    const pieces = this.pull(call, context, source, (batch, cost) =>
      intake.replyPiece(batch, context, cost),
    );
    pieces.onStop(onCancel(context.resolved, (error) => pulls.end(pieces, { error })));
    try {
      return await replyOf(options.name, pieces);
    } finally {
      pulls.end(pieces);
    }
  }

  /** @param onDone called when only reading is left */
  stream(call: Call, context: CallContext, onDone: () => void): PullAhead<Batch, StreamRequest> {
    const { intake } = this.options;
    const start = (batch: Batch, cost: number) => intake.streamPiece(batch, context, cost);
    return this.pull(call, context, this.sourceOf(call, context), start, onDone);
  }

  /** A large call runs only as fast as it is read, and a call with hooks in one batch. */
  private sourceOf({ rows }: Call, { options, isAlone }: CallContext): Source<Batch> {
    if (!(rows instanceof Batch)) {
      return rows;
    }
    const size = this.largestOf(rows.key, isAlone);
    return (requestedHooks(options) || rows.size === 0 ? [rows] : rows.chunksOf(size)).values();
  }

  /** Rows that a partition runs together. */
  private largestOf(key: string, isAlone = false): number {
    const { lanes, partitions } = this.options;
    const { batchSize, runSize } = lanes.optionsOf(key);
    return partitions[0]?.capacity ?? (isAlone ? runSize : batchSize);
  }

  private pull<Request extends BatchRequest>(
    { isOpen }: Call,
    { resolved }: CallContext,
    source: Source<Batch>,
    start: (batch: Batch, cost: number) => Request,
    onDone?: () => void,
  ): PullAhead<Batch, Request> {
    const { lanes, partitions, callbacks, pulls } = this.options;
    const { maxRows, maxCost = Infinity } = this.options.options.queue;
    const largest = Math.max(...lanes.keys.map((key) => this.largestOf(key)));
    const busy = 2 * partitions.length * largest;
    // Room for a batch stays free: admission refuses rows beyond it.
    const room = Math.max(1, mostRowsOf(resolved, maxRows) - largest + 1);
    // We queue one batch more of existing rows, which keep their place until the first can be read.
    const window = Math.min(isOpen ? busy : busy + largest, room);
    const cost = (batch: Batch): number => costOf(callbacks, batch);
    return pulls.begin({ source, start, window, isOpen, mostCost: maxCost, costOf: cost, onDone });
  }
}
