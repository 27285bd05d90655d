import { InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import type {
  EndpointModel,
  EndpointOptions,
  RemoteModel,
  ResolvedEndpoint,
} from '../partitions/endpoint/endpoint-options.js';
import { checkOptions, groupOf, isRecord, type Rule, type Rules, whole } from './option-rules.js';
import type { EndpointRunner, ModelRunner, ServingOptions } from './serving-definition.js';
import type { ModelSignature } from '../partitions/onnx/model-signature.js';
import type { ResolvedServing } from './resolved-serving.js';

/** Batches on the way to an endpoint and in it: one is sent while the other runs. */
const DEFAULT_CONCURRENCY = 2;

const nothing = (why: string): Rule => ({ check: () => false, allowed: `nothing here: ${why}` });

/** The options that only servings with an endpoint have, and those that they cannot have. */
export const ofEndpoint: Rules = {
  endpoint: {
    check: (value) => !Array.isArray(value) || value.length > 0,
    allowed: 'an address, its options, or a list of them',
  },
  version: {
    check: (value) => typeof value === 'string' && value !== '',
    allowed: 'a string that is not empty',
  },
  partitions: nothing('concurrency of the endpoint is the number of batches that run at once'),
  sessions: nothing('an endpoint keeps no state of sessions'),
  sequence: nothing('an endpoint runs batches as a whole'),
  isolation: nothing('the server runs the model'),
};

const pem: Rule = {
  check: (value) => (typeof value === 'string' && value !== '') || ArrayBuffer.isView(value),
  allowed: 'certificates or a key in the PEM format, as a string or bytes',
};

/** The options of one endpoint. */
const ofOne: Rules = {
  url: {
    check: (value) => typeof value === 'string' && targetOf(value) !== undefined,
    allowed: 'grpc://host:port, or with TLS grpcs://host:port',
    isRequired: true,
  },
  concurrency: whole(1, 1024),
  tls: groupOf({ ca: pem, cert: pem, key: pem }),
  metadata: {
    check: (value) =>
      typeof value === 'function' ||
      (isRecord(value) && Object.values(value).every((entry) => typeof entry === 'string')),
    allowed: 'an object of strings by name, or a function that returns one',
  },
};

/** Whether servers run the batches of the serving. */
export function isEndpoint(definition: object): definition is ServingOptions & EndpointRunner {
  return 'endpoint' in definition && definition.endpoint !== undefined;
}

/** Whether a model runs here. */
export function isModel(definition: object): definition is ServingOptions & ModelRunner {
  return 'model' in definition && !isEndpoint(definition);
}

/**
 * The endpoints of a definition, with their defaults.
 *
 * @throws InvalidServingError naming the endpoint and the option
 */
export function endpointsOf(
  owner: string,
  { endpoint }: EndpointRunner,
): readonly ResolvedEndpoint[] {
  const given: readonly (string | EndpointOptions)[] = isList(endpoint) ? endpoint : [endpoint];
  const endpoints = given.map((one) => resolveEndpoint(owner, one));
  const targets = endpoints.map(({ target }) => target);
  const twice = endpoints.find(({ target }, i) => targets.indexOf(target) !== i);
  if (twice) {
    throw new InvalidServingError(
      `${owner}: the endpoint ${twice.url} is there twice; raise its concurrency instead`,
    );
  }
  return endpoints;
}

/** The model of an endpoint, which may be given by its name alone. */
export function endpointModelOf({ model = {} }: Pick<EndpointRunner, 'model'>): EndpointModel {
  return typeof model === 'string' ? { name: model } : model;
}

/** The model that the endpoints of a serving run. */
export function remoteModelOf(definition: ServingOptions & EndpointRunner): RemoteModel {
  const { version = '' } = definition;
  return { name: definition.name, ...endpointModelOf(definition), version };
}

function resolveEndpoint(owner: string, given: string | EndpointOptions): ResolvedEndpoint {
  const options = typeof given === 'string' ? { url: given } : given;
  if (!isRecord(options)) {
    throw new InvalidServingError(
      `${owner}: option "endpoint" has ${formatValue(given)}; allowed are addresses and objects ` +
        `of ${Object.keys(ofOne).join(', ')}`,
    );
  }
  checkOptions(owner, options, ofOne, 'endpoint.');
  const { url, concurrency = DEFAULT_CONCURRENCY, tls, metadata = {} } = options;
  const isSecure = url.startsWith('grpcs:');
  if (tls && !isSecure) {
    throw new InvalidServingError(
      `${owner}: endpoint.tls has no effect on ${url}; write the address with grpcs:, or leave ` +
        'tls out',
    );
  }
  if (tls && (tls.cert === undefined) !== (tls.key === undefined)) {
    throw new InvalidServingError(
      `${owner}: endpoint.tls of ${url} has one of cert and key; a client certificate needs both`,
    );
  }
  return {
    url,
    target: targetOf(url)!,
    concurrency,
    isSecure,
    ...(tls && { tls }),
    metadata: typeof metadata === 'function' ? () => metadata() : () => metadata,
  };
}

/** The host and port of an address; undefined for any other text. */
function targetOf(url: string): string | undefined {
  const [, target] = /^grpcs?:\/\/((?:\[[\da-f:.]+\]|[\w.-]+):\d{1,5})\/?$/i.exec(url) ?? [];
  const port = Number(target?.slice(target.lastIndexOf(':') + 1));
  return port > 0 && port < 65_536 ? target : undefined;
}

function isList(value: EndpointRunner['endpoint']): value is readonly (string | EndpointOptions)[] {
  return Array.isArray(value);
}

/** @throws InvalidServingError for batches larger than the server of the model takes */
export function checkMostRows(
  { name, keys }: Pick<ResolvedServing, 'name' | 'keys'>,
  { mostRows = Infinity }: Pick<ModelSignature, 'mostRows'>,
): void {
  for (const [key, { runSize, allowedSizes = [] }] of keys) {
    // Without a size of its own, a serving takes that of the server.
    const given = runSize === Infinity ? [] : [runSize];
    const largest = Math.max(0, ...given, ...allowedSizes);
    if (largest > mostRows) {
      throw new InvalidServingError(
        `Serving "${name}", key "${key}": batches of ${largest} rows are more than the ` +
          `max_batch_size of the model on its server, ${mostRows}; lower batchSize or allowedSizes`,
      );
    }
  }
}
