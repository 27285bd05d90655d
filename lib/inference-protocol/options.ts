import type { CanActivate, ExecutionContext, Type } from '@nestjs/common';
import {
  checkOptions,
  groupOf,
  isRecord,
  type Rule,
  type Rules,
  whole,
} from '../definition/option-rules.js';
import { InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import { guardList } from '../module-guards.js';
import { parsePort } from './declared-port.js';

/** A guard as Nest's `@UseGuards` takes it. */
export type ProtocolGuard = Type<CanActivate> | CanActivate;

/**
 * The tensors of a model by name. `'FP32[3, 224]'` is the datatype and the shape of one row, with -1
 * for a size that varies; `'BYTES'` without a shape is one element per row.
 */
export type DeclaredTensors = Readonly<Record<string, string>>;

/** A serving that is offered as a model. */
export interface OfferedServing {
  /** The name of the serving. */
  readonly serving: string;
  /**
   * The name of the model. It has no slash, which clients do not encode.
   *
   * @default the name of the serving
   */
  readonly model?: string;
  /**
   * The inputs, where the serving has no signature, or its `preprocess` takes something else. Where
   * each has one element per row, a row is that element, or with several inputs an object of them;
   * else callers' tensors are given to the serving as they are.
   *
   * @default those of the signature; else one input `input` of type BYTES, of which each element is
   * a row in JSON
   */
  readonly inputs?: DeclaredTensors;
  /**
   * The outputs, where the serving has no signature, or its `postprocess` returns something else.
   *
   * @default those of the signature; else one output `output` of type BYTES, of which each element
   * is the result of a row in JSON
   */
  readonly outputs?: DeclaredTensors;
  /**
   * Whether a request may have several replies, for a serving whose batch function is a generator.
   * Its calls are then streams.
   *
   * @default true for a serving of sequences, else false
   */
  readonly decoupled?: boolean;
}

/** The calls that change which models are offered. */
export interface RepositoryOptions {
  /** Guards of `load` and `unload`, after those of the module. At least one. */
  readonly guards: readonly ProtocolGuard[];
}

/** The certificates of a server with TLS, in the PEM format. */
export interface GrpcDoorTls {
  /** The certificate of the server. */
  readonly cert: string | Uint8Array;
  /** The private key of `cert`. */
  readonly key: string | Uint8Array;
  /**
   * The certificates that sign those of clients; then clients need one.
   *
   * @default clients need no certificate
   */
  readonly ca?: string | Uint8Array;
}

/** The address of the gRPC server of the protocol. */
export interface GrpcDoorOptions {
  /** The port, usually 8001; 0 for any free one. */
  readonly port: number;
  /**
   * The address of the network interface.
   *
   * @default '0.0.0.0'
   */
  readonly host?: string;
  /**
   * The certificates of the server.
   *
   * @default connections are not encrypted
   */
  readonly tls?: GrpcDoorTls;
}

/** Options of `InferenceProtocolModule.forRoot`. */
export interface InferenceProtocolOptions {
  /**
   * The servings that are offered, by name or with more to say about them.
   *
   * @default all servings of the application
   */
  readonly servings?: readonly (string | OfferedServing)[];
  /**
   * Guards of all calls but `health/live` and `health/ready`, which probes make. The application's
   * global guards run before them, for every call.
   *
   * @default none
   */
  readonly guards?: readonly ProtocolGuard[];
  /**
   * The bytes of a request, also after decompression.
   *
   * @default 67108864
   */
  readonly bodyLimit?: number;
  /**
   * The bytes of the JSON in a request. Reading JSON holds the event loop, about a second for
   * 64 MiB; binary tensors do not.
   *
   * @default 8388608
   */
  readonly jsonLimit?: number;
  /**
   * The tenant of a call, of which each has sequences of its own and its share of the queue.
   *
   * @default the tenant of the serving's `queue.tenant`, else none
   */
  readonly tenant?: (context: ExecutionContext) => string | undefined;
  /**
   * Lets clients load and unload models.
   *
   * @default off: these calls are answered with 501
   */
  readonly repository?: RepositoryOptions;
  /**
   * Serves gRPC too, on a port of its own.
   *
   * @default HTTP alone
   */
  readonly grpc?: GrpcDoorOptions;
}

/** An entry of `servings` with every default filled in. */
export type Offer = Required<Pick<OfferedServing, 'serving' | 'model'>> & OfferedServing;

/** The options with every default filled in. */
export interface ResolvedProtocol {
  /** Undefined where all servings are offered. */
  readonly offers: readonly Offer[] | undefined;
  readonly guards: readonly ProtocolGuard[];
  readonly bodyLimit: number;
  readonly jsonLimit: number;
  readonly tenant: ((context: ExecutionContext) => string | undefined) | undefined;
  readonly repository: RepositoryOptions | undefined;
  readonly grpc: GrpcDoorOptions | undefined;
}

const OWNER = 'InferenceProtocolModule';
const LARGEST_BODY = 2 ** 31 - 1;

const aName: Rule = {
  check: (value) => typeof value === 'string' && value !== '',
  allowed: 'a name',
};
const aList: Rule = { check: Array.isArray, allowed: 'a list' };

const pem: Rule = {
  check: (value) => (typeof value === 'string' && value !== '') || ArrayBuffer.isView(value),
  allowed: 'certificates or a key in the PEM format, as a string or bytes',
};

const rules: Rules = {
  servings: aList,
  guards: guardList,
  bodyLimit: whole(1, LARGEST_BODY),
  jsonLimit: whole(1, LARGEST_BODY),
  tenant: { check: (value) => typeof value === 'function', allowed: 'a function' },
  repository: {
    check: (value) =>
      isRecord(value) && guardList.check(value['guards']) && !isEmpty(value['guards']),
    allowed: 'an object of guards, a list of at least one: whoever may call load takes models away',
    group: { guards: guardList },
  },
  grpc: groupOf({
    port: { ...whole(0, 65_535), isRequired: true },
    host: aName,
    tls: groupOf({
      cert: { ...pem, isRequired: true },
      key: { ...pem, isRequired: true },
      ca: pem,
    }),
  }),
};

const tensors: Rule = {
  check: (value) => isRecord(value) && Object.keys(value).length > 0,
  allowed: "an object of at least one tensor, such as { text: 'BYTES' }",
};

const ofServing: Rules = {
  serving: { ...aName, isRequired: true },
  model: {
    check: (value) => aName.check(value) && !(value as string).includes('/'),
    allowed: 'a name without a slash',
  },
  inputs: tensors,
  outputs: tensors,
  decoupled: { check: (value) => typeof value === 'boolean', allowed: 'true or false' },
};

/** @throws InvalidServingError for unknown options and invalid values */
export function resolveProtocol(options: InferenceProtocolOptions): ResolvedProtocol {
  checkOptions(OWNER, options, rules);
  const offers = options.servings?.map(resolveOffer);
  const models = offers?.map(({ model }) => model) ?? [];
  const twice = models.find((model, i) => models.indexOf(model) !== i);
  if (twice !== undefined) {
    throw new InvalidServingError(`${OWNER}: two servings are offered as the model "${twice}"`);
  }
  return {
    offers,
    guards: options.guards ?? [],
    bodyLimit: options.bodyLimit ?? 64 * 2 ** 20,
    jsonLimit: options.jsonLimit ?? 8 * 2 ** 20,
    tenant: options.tenant,
    repository: options.repository,
    grpc: options.grpc,
  };
}

function resolveOffer(given: string | OfferedServing): Offer {
  const offer = typeof given === 'string' ? { serving: given } : given;
  if (!isRecord(offer)) {
    throw new InvalidServingError(
      `${OWNER}: option "servings" has ${formatValue(given)}; give the name of a serving, or ` +
        '{ serving, model, inputs, outputs }',
    );
  }
  const { serving } = offer;
  const owner = `${OWNER}, serving ${formatValue(serving)}`;
  checkOptions(owner, offer, ofServing);
  for (const kind of ['inputs', 'outputs'] as const) {
    for (const [name, declared] of Object.entries(offer[kind] ?? {})) {
      parsePort(name, declared, `${owner}, ${kind}`);
    }
  }
  return withName(offer, OWNER);
}

/** @throws InvalidServingError for a name that no client can ask for */
export function withName(offer: OfferedServing, owner: string): Offer {
  const { model = offer.serving } = offer;
  if (model.includes('/')) {
    throw new InvalidServingError(
      `${owner}: the name of serving "${offer.serving}" has a slash, which clients do not encode; ` +
        `offer it by another: { serving: '${offer.serving}', model: '...' }`,
    );
  }
  return { ...offer, model };
}

function isEmpty(value: unknown): boolean {
  return Array.isArray(value) && value.length === 0;
}
