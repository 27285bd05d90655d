import type { Batch } from '../../batch/batch.js';
import { fromWire } from '../../errors.js';
import type { BatchInfo } from '../batch-function.js';
import { feedsOf, ModelReply } from '../onnx/model-ports.js';
import type { ModelSignature } from '../onnx/model-signature.js';
import { type PartitionResult, STEPPED } from '../partition.js';
import { packTensors, unpackTensors, sendRows, unpackOutput } from './transfer.js';
import type { BatchEnd, Channel } from './worker-protocol.js';

/** Sends batches to a worker and reads the results. */
export class BatchTransfer {
  private readonly reply: ModelReply | undefined;

  constructor(
    private readonly partition: number,
    /** Only for a model: both ends then have its tensors' names and types. */
    private readonly signature?: ModelSignature,
  ) {
    this.reply = signature && new ModelReply(signature);
  }

  /**
   * @throws RejectedRowsError for plain values that cannot be sent, such as functions
   * @throws TooLargeToSendError when the rows are too large for one message
   */
  send(batch: Batch, info: BatchInfo, channel: Channel): void {
    const { partition, signature } = this;
    if (signature) {
      const [feeds, transfer] = packTensors(feedsOf(batch.gather(), signature.inputs));
      const { hooks, sessions } = info;
      channel.post(sessions ? { feeds, hooks, sessions } : { feeds, hooks }, transfer);
    } else {
      sendRows(batch, (rows, transfer) =>
        channel.post({ rows, info: { ...info, partition } }, transfer),
      );
    }
  }

  /** @throws the batch's error */
  resultOf(end: BatchEnd): PartitionResult | typeof STEPPED {
    if ('error' in end) {
      throw fromWire(end.error);
    }
    if ('stepped' in end) {
      return STEPPED;
    }
    if ('output' in end) {
      return { output: unpackOutput(end.output), metadata: end.metadata, own: true };
    }
    const reply = this.reply!;
    return { output: reply.of(unpackTensors(end.reply, reply.ports)), own: true };
  }
}
