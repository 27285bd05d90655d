import { Logger } from '@nestjs/common';
import { OverloadedError, Tensor } from '../../../../index.js';
import { type AbortSignalLike, messageOf } from '../../../../internal.js';
import { scriptOfThread } from '../../../../encoding/entry-script.js';
import { JobThread } from '../../../../encoding/job-thread.js';
import type { InferenceRequest } from '../inference-request.js';

/** A request of which a thread reads the JSON. */
export interface LargeRequest {
  /** With memory of its own, which moves to the thread. */
  readonly body: Uint8Array<ArrayBuffer>;
  /** Bytes of JSON at its beginning. */
  readonly length: number;
  readonly model: string;
  readonly version: string | undefined;
}

/** A request between threads, where its tensors lose their class. */
export type PackedRequest = Omit<InferenceRequest, 'inputs'> & {
  readonly inputs: ReadonlyMap<string, Pick<Tensor, 'type' | 'dims' | 'data'>>;
};

/** The most bytes of bodies that wait for the thread. */
const MOST_WAITING = 256 * 2 ** 20;

/** Reads requests with much JSON in a thread, since to parse it would hold the event loop. */
class LargeRequests {
  private waiting = 0;
  private readonly thread: JobThread<LargeRequest, PackedRequest>;

  constructor(script: URL) {
    const lost = 'The thread that reads large requests has ended';
    this.thread = new JobThread({ script, name: 'serving requests', given: undefined, lost });
  }

  /**
   * @throws InvalidInputError for an invalid request
   * @throws OverloadedError if too much waits for the thread
   * @throws ServingUnavailableError if the thread ends
   */
  async read(
    request: LargeRequest,
    signal: AbortSignalLike | undefined,
  ): Promise<InferenceRequest> {
    const { length } = request.body;
    if (this.waiting + length > MOST_WAITING) {
      throw new OverloadedError(
        `Large requests of ${this.waiting} bytes wait to be read, and ${MOST_WAITING} is the most; ` +
          'call again later, or send tensors as binary data',
      );
    }
    this.waiting += length;
    try {
      const { inputs, ...others } = await this.thread.run(request, signal, [request.body.buffer]);
      const tensors = [...inputs].map(
        ([name, { type, dims, data }]) => [name, new Tensor(type, data, dims)] as const,
      );
      return { ...others, inputs: new Map(tensors) };
    } finally {
      this.waiting -= length;
    }
  }
}

let own: LargeRequests | 'none' | undefined;

/** One for the process. Undefined in a bundled application, which lacks the thread's script. */
export function largeRequests(): LargeRequests | undefined {
  own ??= made();
  return own === 'none' ? undefined : own;
}

function made(): LargeRequests | 'none' {
  try {
    const script = 'extensions/inference-protocol/server/http/request-thread';
    return new LargeRequests(scriptOfThread(script));
  } catch (cause) {
    new Logger('InferenceProtocol').warn(
      `Large JSON is parsed on the event loop, which it holds: ${messageOf(cause)}`,
    );
    return 'none';
  }
}
