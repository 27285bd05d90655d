import { type ExternalModel, InvalidServingError } from '../../../index.js';
import { type DeclaredAxes } from '../../../doors/models.js';
import {
  checkOptions,
  groupOf,
  isRecord,
  portRules,
  type Rule,
  type Rules,
  whole,
} from '../../../doors/options.js';
import { formatValue } from '../../../doors/text.js';
import { endpointEngine, placesOf } from './endpoint.js';

/** One batch is sent while the other runs. */
const DEFAULT_CONCURRENCY = 2;

const pem: Rule = {
  check: (value) => (typeof value === 'string' && value !== '') || ArrayBuffer.isView(value),
  allowed: 'certificates or a key in the PEM format, as a string or bytes',
};

const ofOne: Rules = {
  url: {
    check: (value) => typeof value === 'string' && targetOf(value) !== undefined,
    allowed: 'grpc://host:port, or with TLS grpcs://host:port',
    isRequired: true,
  },
  concurrency: whole(1, 1024),
  tls: {
    ...groupOf({ ca: pem, cert: pem, key: { ...pem, isSecret: true } }),
    isSecret: true,
  },
  metadata: {
    isSecret: true,
    check: (value) =>
      typeof value === 'function' ||
      (isRecord(value) && Object.values(value).every((entry) => typeof entry === 'string')),
    allowed: 'an object of strings by name, or a function that returns one',
  },
};

/** A server or several: their addresses, or their options. */
export type Endpoints = string | EndpointOptions | readonly (string | EndpointOptions)[];

/**
 * A model on one or several Open Inference Protocol servers, as a serving's `model`.
 *
 * @param servers an address, `grpc://host:port` or with TLS `grpcs://host:port`, or options; or a
 * list of servers with the same model
 * @param model its name on the server, or options; by default the serving's name
 */
export function endpoint(servers: Endpoints, model: string | EndpointModel = {}): ExternalModel {
  return {
    engineFor({ name, rollout: { version = '' } = {} }) {
      const owner = `Serving ${formatValue(name)}`;
      checkOptions(owner, { endpoint: servers, model }, ofBoth);
      const endpoints = resolveEndpoints(owner, servers);
      const remote = { name, ...resolveModel(owner, model), version };
      return {
        engine: endpointEngine(endpoints, remote),
        partitions: placesOf(endpoints).map(({ url }) => ({ url })),
      };
    },
  };
}

/** @throws InvalidServingError naming the endpoint and option */
function resolveEndpoints(owner: string, endpoints: Endpoints): readonly ResolvedEndpoint[] {
  const given = isList(endpoints) ? endpoints : [endpoints];
  const resolved = given.map((one) => resolveEndpoint(owner, one));
  const targets = resolved.map(({ target }) => target);
  const twice = resolved.find(({ target }, i) => targets.indexOf(target) !== i);
  if (twice) {
    throw new InvalidServingError(
      `${owner}: the endpoint ${twice.url} is there twice; raise its concurrency instead`,
    );
  }
  return resolved;
}

const ofModel: Rules = {
  name: { check: (value) => typeof value === 'string' && value !== '', allowed: 'a name' },
  ...portRules,
};

/** @throws InvalidServingError naming the option */
function resolveModel(owner: string, model: string | EndpointModel): EndpointModel {
  const options = typeof model === 'string' ? { name: model } : model;
  checkOptions(owner, options, ofModel, 'model.');
  return options;
}

const isTextOrRecord = (value: unknown): boolean => typeof value === 'string' || isRecord(value);

const ofBoth: Rules = {
  endpoint: {
    check: (value) => {
      const servers: readonly unknown[] = Array.isArray(value) ? value : [value];
      return servers.length > 0 && servers.every(isTextOrRecord);
    },
    allowed: `an address, an object of ${Object.keys(ofOne).join(', ')}, or a list of these`,
    isRequired: true,
  },
  model: {
    check: isTextOrRecord,
    allowed: `its name on the server, or an object of ${Object.keys(ofModel).join(', ')}`,
  },
};

function resolveEndpoint(owner: string, given: string | EndpointOptions): ResolvedEndpoint {
  const options = typeof given === 'string' ? { url: given } : given;
  checkOptions(owner, options, ofOne, 'endpoint.');
  const { url, concurrency = DEFAULT_CONCURRENCY, tls, metadata = {} } = options;
  const isSecure = /^grpcs:/i.test(url);
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

/** Undefined for an invalid address. */
function targetOf(url: string): string | undefined {
  const [, target] = /^grpcs?:\/\/((?:\[[\da-f:.]+\]|[\w.-]+):\d{1,5})\/?$/i.exec(url) ?? [];
  const port = Number(target?.slice(target.lastIndexOf(':') + 1));
  return port > 0 && port < 65_536 ? target : undefined;
}

function isList(value: Endpoints): value is readonly (string | EndpointOptions)[] {
  return Array.isArray(value);
}

/** A TLS connection's certificates, in PEM format. */
export interface EndpointTls {
  /**
   * Certificate authorities for servers.
   *
   * @default the system's
   */
  readonly ca?: string | Uint8Array;
  /**
   * The client certificate for the server; needs `key`.
   *
   * @default none
   */
  readonly cert?: string | Uint8Array;
  /**
   * The private key of `cert`.
   *
   * @default none
   */
  readonly key?: string | Uint8Array;
}

/** Metadata of calls (gRPC headers) by name. */
export type EndpointMetadata = Readonly<Record<string, string>>;

/** An Open Inference Protocol server. */
export interface EndpointOptions {
  /** `grpc://host:port`, or `grpcs://host:port` with TLS. */
  readonly url: string;
  /**
   * The server's concurrent batches, and so its share. With two, one is in transit while the other
   * runs.
   *
   * @default 2
   */
  readonly concurrency?: number;
  /**
   * The certificates for a `grpcs:` address.
   *
   * @default servers are checked against the certificates of the system
   */
  readonly tls?: EndpointTls;
  /**
   * Metadata of each call, such as `{ authorization: 'Bearer ...' }`. A function runs for each call
   * and may return a promise.
   *
   * @default {}
   */
  readonly metadata?: EndpointMetadata | (() => EndpointMetadata | Promise<EndpointMetadata>);
}

/** An endpoint's model and its axes. */
export interface EndpointModel {
  /**
   * The model's name on the server.
   *
   * @default the name of the serving
   */
  readonly name?: string;
  /**
   * Batch axes if the server's are wrong (`null` for no axis), and axes where rows may differ in
   * length.
   *
   * @default read from the server; rows of different lengths share no batch
   */
  readonly inputs?: DeclaredAxes;
  /**
   * Batch axes if the server's are wrong, and axes where rows are cut back to their own inputs'
   * length.
   *
   * @default read from the server
   */
  readonly outputs?: DeclaredAxes;
  /**
   * The outputs in the reply. Other outputs are fetched only for calls with hooks on them.
   *
   * @default all outputs
   */
  readonly fetches?: readonly string[];
}

export interface RemoteModel extends EndpointModel {
  readonly name: string;
  /** The server chooses if it is ''. */
  readonly version: string;
}

export interface ResolvedEndpoint extends Omit<EndpointOptions, 'metadata'> {
  readonly target: string;
  readonly concurrency: number;
  readonly isSecure: boolean;
  readonly metadata: () => EndpointMetadata | Promise<EndpointMetadata>;
}
