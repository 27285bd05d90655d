import type { StreamOptions } from '../../context/call-options.js';
import type { Serving } from '../../serving/serving.js';
import type { StreamEvent } from '../../definition/reply.js';
import type { InternalCallOptions } from '../../execution/resolved-call-options.js';

/** A serving of this node that other nodes may call. */
export interface ExportedServing {
  readonly serving: Serving;
  readonly postprocess: ((output: unknown) => unknown) | undefined;
}

/** The methods that other nodes may call. */
export type Method = 'batchedRun' | 'run' | 'stream';

/** The output of a call, as it is sent. */
export function outputOf(
  { serving, postprocess }: ExportedServing,
  method: Exclude<Method, 'stream'>,
  input: unknown,
  options: InternalCallOptions,
): Promise<unknown> {
  const output =
    method === 'run' ? serving.run(input, options) : serving.batchedRun(input, options);
  return postprocess ? output.then(postprocess) : output;
}

/** The events of a streamed call, as they are sent. */
export async function* eventsOf(
  { serving, postprocess }: ExportedServing,
  input: unknown,
  options: StreamOptions<string>,
): AsyncGenerator<unknown, void> {
  const events: AsyncIterable<StreamEvent<unknown, string>> = serving.stream(input, options);
  for await (const event of events) {
    yield 'output' in event && postprocess
      ? { ...event, output: await postprocess(event.output) }
      : event;
  }
}
