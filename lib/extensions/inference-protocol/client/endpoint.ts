import { InvalidServingError, isServingError, ServingLoadError } from '../../../index.js';
import { type Engine, SupervisedPartition, type Supervision } from '../../../doors/engine.js';
import {
  type DeclaredAxes,
  type DeclaredPorts,
  type ModelSignature,
  signatureOf,
  withVariableAxes,
} from '../../../doors/models.js';
import { formatValue, isA, messageOf } from '../../../doors/text.js';
import { typeOfDatatype } from '../../../encoding/json-tensor.js';
import {
  type EndpointCall,
  EndpointConnection,
  type GrpcService,
  loadService,
  READY_TIMEOUT,
} from './endpoint-connection.js';
import { isDown, isUnimplemented } from './endpoint-errors.js';
import type { EndpointModel, RemoteModel, ResolvedEndpoint } from './endpoint-rules.js';
import { AbsentWorker, EndpointPartition } from './endpoint.partition.js';
import type { InferenceSession } from 'onnxruntime-common';
import { setMaxListeners } from 'node:events';

export class Endpoint {
  private connection: EndpointConnection | undefined;
  /** Other servers must have the same model. */
  private known: ModelSignature | undefined;

  constructor(
    private readonly loaded: GrpcService,
    private readonly options: ResolvedEndpoint,
    private readonly model: RemoteModel,
    /** Longest first pause, in milliseconds. */
    private readonly pause: number,
  ) {}

  /** @throws ServingLoadError unless the model is ready */
  async open(end: AbortSignal): Promise<EndpointPartition> {
    const { options, model } = this;
    const connection = this.connect();
    connection.acquire();
    try {
      const signature = await describe(connection, model, end);
      this.check(signature);
      return new EndpointPartition(connection, options.url, model, signature, this.pause);
    } catch (cause) {
      connection.release();
      throw isServingError(cause)
        ? cause
        : new ServingLoadError(
            `The model ${formatValue(model.name)} of the endpoint ${options.url} cannot be used: ` +
              `${messageOf(cause)}; check the address, and the name and version of the model there`,
            { cause },
          );
    }
  }

  expect(signature: ModelSignature): void {
    this.known = signature;
  }

  private connect(): EndpointConnection {
    const { connection } = this;
    return connection && !connection.lost
      ? connection
      : (this.connection = new EndpointConnection(this.loaded, this.options));
  }

  private check(signature: ModelSignature): void {
    const { known } = this;
    if (known && !isSameModel(known, signature)) {
      throw new ServingLoadError(
        `The model ${formatValue(this.model.name)} of the endpoint ${this.options.url} has other ` +
          'inputs or outputs than at the start; start the application again to use it',
      );
    }
  }
}

export function isSameModel(one: ModelSignature, other: ModelSignature): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

async function describe(
  connection: EndpointConnection,
  model: RemoteModel,
  signal: AbortSignal,
): Promise<ModelSignature> {
  const { name, version } = model;
  const options: EndpointCall = { signal, deadline: new Date(Date.now() + READY_TIMEOUT) };
  const ask = <Reply>(method: string): Promise<Reply> =>
    connection.call<Reply>(method, { name, version }, options);
  await connection.ready(model, options);
  const metadata = await ask<EndpointMetadataReply>('ModelMetadata');
  return signatureOfEndpoint(metadata, await configOf(ask), model);
}

/** Only servers with Triton's extension have one. */
async function configOf(ask: <Reply>(method: string) => Promise<Reply>): Promise<BatchConfig> {
  try {
    const { config } = await ask<{ readonly config?: BatchConfig | null }>('ModelConfig');
    return config ?? undefined;
  } catch (error) {
    if (isUnimplemented(error)) {
      return undefined;
    }
    throw error;
  }
}

/** A size of -1 is dynamic. */
interface EndpointPort {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly string[];
}

interface EndpointMetadataReply {
  readonly inputs: readonly EndpointPort[];
  readonly outputs: readonly EndpointPort[];
}

type BatchConfig = { readonly max_batch_size: number } | undefined;

/** @throws InvalidServingError if the server's description is missing or contradicts ours */
function signatureOfEndpoint(
  { inputs, outputs }: EndpointMetadataReply,
  config: BatchConfig,
  { inputs: ownInputs = {}, outputs: ownOutputs = {}, fetches }: EndpointModel,
): ModelSignature {
  if (inputs.length === 0 || outputs.length === 0) {
    throw new InvalidServingError(
      'The server states no inputs or no outputs of the model, whose names and types are needed; ' +
        'add them to its metadata on the server',
    );
  }
  const declared: DeclaredPorts = {
    inputs: withBatchAxes(inputs, ownInputs, config),
    outputs: withBatchAxes(outputs, ownOutputs, config),
    fetches,
  };
  const described = {
    inputMetadata: inputs.map((port) => metadataOf('input', port)),
    outputMetadata: outputs.map((port) => metadataOf('output', port)),
  };
  const mostRows = config?.max_batch_size ?? 0;
  return withVariableAxes(
    {
      ...signatureOf(described, declared),
      states: [],
      dynamicallyQuantised: false,
      ...(mostRows > 0 && { mostRows }),
    },
    declared,
  );
}

/**
 * A configuration's largest batch size makes every first axis count rows; without it, no axis does.
 * Declared axes take precedence.
 */
function withBatchAxes(
  ports: readonly EndpointPort[],
  declared: DeclaredAxes,
  config: BatchConfig,
): DeclaredAxes {
  if (!config) {
    return declared;
  }
  const stated = ports.map(({ name, shape }) => {
    const batchAxis = config.max_batch_size > 0 && shape.length > 0 ? 0 : null;
    return [name, { batchAxis, ...declared[name] }] as const;
  });
  return { ...declared, ...Object.fromEntries(stated) };
}

function metadataOf(
  kind: string,
  { name, datatype, shape }: EndpointPort,
): InferenceSession.ValueMetadata {
  // BF16 outputs are read as float32; onnxruntime can't send BF16.
  const type = typeOfDatatype(kind === 'output' && datatype === 'BF16' ? 'FP32' : datatype);
  if (!type) {
    throw new InvalidServingError(
      `The ${kind} "${name}" of the model has the datatype ${datatype}, which no tensor has here; ` +
        (datatype === 'BF16' ? 'let the server take FP32' : 'change it on the server'),
    );
  }
  return { name, isTensor: true, type, shape: shape.map(sizeOf) };
}

function sizeOf(size: string): number | string {
  const number = Number(size);
  return number < 0 ? '' : number;
}

/** Each server has a partition per concurrent batch. */
export function endpointEngine(endpoints: readonly ResolvedEndpoint[], model: RemoteModel): Engine {
  return async (_kind, _options, _keys, supervision, end, { warn }) => {
    // Each opening partition adds a listener.
    setMaxListeners(0, end);
    const loaded = await loadService();
    const opened = new Map(
      endpoints.map((options) => [
        options,
        new Endpoint(loaded, options, model, supervision.restartDelay),
      ]),
    );
    return openAll(
      placesOf(endpoints).map((options) => ({ url: options.url, endpoint: opened.get(options)! })),
      supervision,
      { end, warn },
    );
  };
}

interface Place {
  readonly url: string;
  readonly endpoint: Endpoint;
}

/** Retries a server that is down if another is up; other failures close all. */
async function openAll(
  places: readonly Place[],
  supervision: Supervision,
  { end, warn }: { readonly end: AbortSignal; readonly warn: (line: string) => void },
): ReturnType<Engine> {
  const openings = await Promise.allSettled(places.map(({ endpoint }) => endpoint.open(end)));
  const workers = openings.flatMap((opening) =>
    opening.status === 'fulfilled' ? [opening.value] : [],
  );
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

/** Endpoints alternate, so idle ones take turns. */
export function placesOf(endpoints: readonly ResolvedEndpoint[]): readonly ResolvedEndpoint[] {
  const rounds = Math.max(...endpoints.map(({ concurrency }) => concurrency));
  return Array.from({ length: rounds }, (_, round) =>
    endpoints.filter(({ concurrency }) => round < concurrency),
  ).flat();
}
