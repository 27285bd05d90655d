import { setMaxListeners } from 'node:events';
import { InvalidServingError } from '../../errors.js';
import type { Engine, OpenedEngine } from '../engine.js';
import { SupervisedPartition, type Supervision } from '../worker/supervised.partition.js';
import { Endpoint, isSameModel } from './endpoint.js';
import { loadService } from './endpoint-connection.js';
import { placesOf, type RemoteModel, type ResolvedEndpoint } from './endpoint-options.js';

/**
 * Servers of the Open Inference Protocol: batches are formed here and run there. A partition per
 * batch that a server gets at once, and for `run` one per server.
 */
export function endpointEngine(endpoints: readonly ResolvedEndpoint[], model: RemoteModel): Engine {
  return async (kind, _options, _keys, supervision, end) => {
    // Each partition that opens listens to it.
    setMaxListeners(0, end);
    const loaded = await loadService();
    const opened = new Map(
      endpoints.map((options) => [options, new Endpoint(loaded, options, model)]),
    );
    const places = kind === 'inline' ? endpoints : placesOf(endpoints);
    return openAll(
      places.map((options) => ({ url: options.url, endpoint: opened.get(options)! })),
      supervision,
      end,
    );
  };
}

interface Place {
  readonly url: string;
  readonly endpoint: Endpoint;
}

/** Opens all at once; if one fails, the others close. */
async function openAll(
  places: readonly Place[],
  supervision: Supervision,
  end: AbortSignal,
): Promise<OpenedEngine> {
  const openings = await Promise.allSettled(places.map(({ endpoint }) => endpoint.open(end)));
  const failed = openings.find((opening) => opening.status === 'rejected');
  const workers = openings.flatMap((opening) =>
    opening.status === 'fulfilled' ? [opening.value] : [],
  );
  const signatures = workers.map(({ loaded }) => loaded.signature!);
  const [signature] = signatures;
  const other = signatures.findIndex((each) => !isSameModel(signature!, each));
  if (failed || other >= 0) {
    await Promise.all(workers.map((worker) => worker.close()));
    throw failed
      ? failed.reason
      : new InvalidServingError(
          `The endpoints ${places[0]!.url} and ${places[other]!.url} have models with different ` +
            'inputs or outputs; all endpoints of a serving run the same model',
        );
  }
  return {
    partitions: workers.map(
      (worker, index) =>
        new SupervisedPartition(
          index,
          worker,
          (signal) => places[index]!.endpoint.open(signal),
          supervision,
        ),
    ),
    signature,
    providers: workers.map(({ loaded }) => loaded.providers),
  };
}
