import type { ServingSignature, Serving, StreamOptions, StreamEvent } from '../../../index.js';
import { type InternalCallOptions } from '../../../doors/calls.js';
import {
  healthOf,
  type LocalPart,
  type RemotePreprocess,
  type ServingStatus,
} from '../../../doors/servings.js';
import { afterRun } from '../../../doors/text.js';
import { LONGEST_NAME } from '../membership/node-info.js';
import { RemoteServing } from './remote-serving.js';

/** Newest batch's weight in the moving average. */
const NEWEST = 0.1;

/** Characters: a heartbeat's frame is limited. */
const SIGNATURE_ROOM = 16_384;

export class ExportedServings {
  private readonly sizes = new WeakMap<ServingSignature, number>();
  /** Moving averages in milliseconds. */
  private readonly runTimes = new Map<string, number>();

  constructor(private readonly servings: () => ReadonlyMap<string, Serving>) {}

  get local(): readonly LocalPart[] {
    return [...this.servings().values()].flatMap(({ local }) => local ?? []);
  }

  private sizeOf(signature: ServingSignature | undefined): number {
    if (!signature) {
      return 0;
    }
    const size = this.sizes.get(signature) ?? JSON.stringify(signature).length;
    this.sizes.set(signature, size);
    return size;
  }

  find(name: string): ExportedServing | undefined {
    const serving = this.servings().get(name);
    return serving && isExported(serving)
      ? { serving, postprocess: distributionOf(serving).postprocess }
      : undefined;
  }

  names(): readonly string[] {
    return [...this.servings()]
      .filter(([name, serving]) => isExported(serving) && name.length <= LONGEST_NAME)
      .map(([name]) => name);
  }

  preprocessOf(name: string): RemotePreprocess | undefined {
    const serving = this.servings().get(name);
    return serving && distributionOf(serving).preprocess;
  }

  watch(): void {
    for (const name of this.names()) {
      this.servings()
        .get(name)
        ?.eventsOf?.('batch:end')
        .subscribe(({ runTime, error, revoked }) => {
          // A failure may be fast.
          if (error !== undefined || revoked) {
            return;
          }
          const average = this.runTimes.get(name) ?? runTime;
          this.runTimes.set(name, average + NEWEST * (runTime - average));
        });
    }
  }

  all(activeCalls: (name: string) => number): readonly ServingStatus[] {
    let room = SIGNATURE_ROOM;
    return this.names().map((name) => {
      const serving = this.servings().get(name)!;
      const { queued, partitions, isReady } = healthOf(name, serving);
      const { weight, idempotent } = distributionOf(serving);
      const signature = serving.signature;
      const size = this.sizeOf(signature);
      const isSent = size > 0 && size <= room;
      room -= isSent ? size : 0;
      const working = partitions.filter(({ state }) => state === 'up').length;
      return {
        name,
        weight,
        partitions: partitions.length === 0 ? 1 : working,
        activeCalls: activeCalls(name),
        queued,
        batchTime: this.runTimes.get(name) ?? 0,
        idempotent,
        isReady,
        ...(isSent && { signature }),
      };
    });
  }
}

/** A test's stand-in has no options. */
function distributionOf(serving: Serving): Partial<LocalPart['distribution']> & {
  readonly weight: number;
  readonly idempotent: boolean;
} {
  return serving.local?.distribution ?? { weight: 1, idempotent: false };
}

function isExported(serving: Serving): boolean {
  return serving.local?.distribution.enabled ?? !(serving instanceof RemoteServing);
}

export interface ExportedServing {
  readonly serving: Serving;
  readonly postprocess: ((output: unknown) => unknown) | undefined;
}

export type Method = 'batchedRun' | 'run' | 'stream';

export function outputOf(
  { serving, postprocess }: ExportedServing,
  method: Exclude<Method, 'stream'>,
  input: unknown,
  options: InternalCallOptions,
): Promise<unknown> {
  const output =
    method === 'run' ? serving.run(input, options) : serving.batchedRun(input, options);
  return postprocess ? output.then((value) => afterRun(() => postprocess(value))) : output;
}

export async function* eventsOf(
  { serving, postprocess }: ExportedServing,
  input: unknown,
  options: StreamOptions<string>,
): AsyncGenerator<unknown, void> {
  const events: AsyncIterable<StreamEvent<unknown, string>> = serving.stream(input, options);
  for await (const event of events) {
    yield 'output' in event && postprocess
      ? { ...event, output: await afterRun(() => postprocess(event.output)) }
      : event;
  }
}
