import type { BatchAxes } from '../batch/template.js';
import type { CallMetadata, StreamEvent } from '../definition/reply.js';
import type { BatchOutput } from '../partitions/batch-function.js';
import {
  type Call,
  type Callbacks,
  dropCall,
  finishCall,
  finishStream,
  prepareCall,
  withKey,
} from './call.js';
import type { ResolvedCallOptions } from './resolved-call-options.js';
import { Waits } from './waits.js';

/**
 * The caller's half of a call: `preprocess` before its rows run, `postprocess` after. A caller
 * waits for neither longer than its options allow.
 */
export class CallerSide {
  /** Calls whose `preprocess` runs. */
  readonly preparing = new Waits();
  /** Calls whose `postprocess` runs. */
  readonly finishing = new Waits();

  constructor(
    private readonly callbacks: Callbacks,
    private readonly inputAxes: BatchAxes,
  ) {}

  /**
   * The rows of the input. No promise where nothing is asynchronous: that would cost a microtask.
   */
  prepare(input: unknown, resolved: ResolvedCallOptions): Call | Promise<Call> {
    const { callbacks } = this;
    const { key } = resolved;
    const prepared = prepareCall(callbacks, input, this.inputAxes);
    if (!(prepared instanceof Promise)) {
      return key === undefined ? prepared : withKey(callbacks, prepared, key);
    }
    const keyed =
      key === undefined ? prepared : prepared.then((call) => withKey(callbacks, call, key));
    const call = this.preparing.for(keyed, resolved);
    // A call that was cancelled before leaves the rows of `preprocess` to nobody.
    call.catch(() => prepared.then(dropCall, () => {}));
    return call;
  }

  /**
   * The call with the `info` of its `preprocess` and without rows, for a call that shares those.
   */
  async prepareInfo(input: unknown, resolved: ResolvedCallOptions): Promise<Call> {
    const call = await this.prepare(input, resolved);
    dropCall(call);
    return call;
  }

  /**
   * The reply from the output of the call's rows; a promise where `postprocess` is asynchronous.
   */
  finish(
    call: Call,
    output: BatchOutput,
    metadata: CallMetadata,
    resolved: ResolvedCallOptions,
  ): unknown {
    const reply = finishCall(this.callbacks, call, output, metadata);
    return reply instanceof Promise ? this.finishing.for(reply, resolved) : reply;
  }

  /** The events of a stream as the callbacks shape them. */
  finishStream(
    call: Call,
    events: AsyncIterable<StreamEvent<unknown, string>>,
    resolved: ResolvedCallOptions,
  ): AsyncGenerator<unknown, void> {
    return finishStream(this.callbacks, call, events, (work) => this.finishing.for(work, resolved));
  }
}
