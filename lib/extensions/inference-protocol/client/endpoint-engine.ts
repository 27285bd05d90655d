import { setMaxListeners } from 'node:events';
import { InvalidServingError, ServingLoadError } from '../../../index.js';
import {
  isA,
  messageOf,
  type Engine,
  type OpenedEngine,
  SupervisedPartition,
  type Supervision,
} from '../../../internal.js';
import { AbsentWorker } from './endpoint.partition.js';
import { Endpoint, isSameModel } from './endpoint.js';
import { loadService } from './endpoint-connection.js';
import { isDown } from './endpoint-errors.js';
import { placesOf, type RemoteModel, type ResolvedEndpoint } from './endpoint-options.js';

/** Runs batches on servers. Each has a partition per concurrent batch; for `run`, just one. */
export function endpointEngine(endpoints: readonly ResolvedEndpoint[], model: RemoteModel): Engine {
  return async (kind, _options, _keys, supervision, end, { warn }) => {
    // Each opening partition adds a listener.
    setMaxListeners(0, end);
    const loaded = await loadService();
    const opened = new Map(
      endpoints.map((options) => [
        options,
        new Endpoint(loaded, options, model, supervision.restartDelay),
      ]),
    );
    const places = kind === 'inline' ? endpoints : placesOf(endpoints);
    return openAll(
      places.map((options) => ({ url: options.url, endpoint: opened.get(options)! })),
      supervision,
      { end, warn },
    );
  };
}

interface Place {
  readonly url: string;
  readonly endpoint: Endpoint;
}

/** Retries a server that is down if another one is up; other failures close all. */
async function openAll(
  places: readonly Place[],
  supervision: Supervision,
  { end, warn }: { readonly end: AbortSignal; readonly warn: (line: string) => void },
): Promise<OpenedEngine> {
  const openings = await Promise.allSettled(places.map(({ endpoint }) => endpoint.open(end)));
  const workers = openings.flatMap((opening) =>
    opening.status === 'fulfilled' ? [opening.value] : [],
  );
  /** By address. */
  const failures = new Map(
    openings.flatMap((opening, index) =>
      opening.status === 'rejected'
        ? [[places[index]!.url, opening.reason as unknown] as const]
        : [],
    ),
  );
  const reasons = [...failures.values()];
  const fatal =
    workers.length === 0 ? reasons[0] : reasons.find((reason) => !isDownAtStart(reason));
  const [first] = workers;
  const signature = first?.loaded.signature;
  const other = workers.find(({ loaded }) => !isSameModel(signature!, loaded.signature!));
  if (fatal || other) {
    await Promise.all(workers.map((worker) => worker.close()));
    throw fatal ?? differentModels(first!.url, other!.url);
  }
  for (const [url, reason] of failures) {
    warn(`does not use the endpoint ${url} yet, and tries it again: ${messageOf(reason)}`);
  }
  places.forEach(({ endpoint }) => endpoint.expect(signature!));
  return {
    partitions: openings.map(
      (opening, index) =>
        new SupervisedPartition(
          index,
          opening.status === 'fulfilled' ? opening.value : new AbsentWorker(opening.reason),
          (signal) => places[index]!.endpoint.open(signal),
          supervision,
        ),
    ),
    signature,
    providers: workers.map(({ loaded }) => loaded.providers),
  };
}

function isDownAtStart(error: unknown): boolean {
  return isA(error, ServingLoadError) && isDown(error.cause);
}

function differentModels(one: string, other: string): InvalidServingError {
  return new InvalidServingError(
    `The endpoints ${one} and ${other} have models with different inputs or outputs; ` +
      'all endpoints of a serving run the same model',
  );
}
