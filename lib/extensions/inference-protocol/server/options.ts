import type { CanActivate, ExecutionContext, Type } from '@nestjs/common';
import { InvalidServingError } from '../../../index.js';
import {
  checkOptions,
  flag,
  groupOf,
  isRecord,
  milliseconds,
  type Rule,
  type Rules,
  whole,
} from '../../../doors/options.js';
import { guardList } from '../../../doors/servings.js';
import { formatValue } from '../../../doors/text.js';
import { typeOfDatatype } from '../../../encoding/json-tensor.js';
import type { Tensor } from 'onnxruntime-common';

/** A guard, as in Nest's `@UseGuards`. */
export type ProtocolGuard = Type<CanActivate> | CanActivate;

/**
 * Tensors by name. `'FP32[3, 224]'` is the datatype and a row's shape, with -1 for any size;
 * `'BYTES'` means one element per row.
 */
export type DeclaredTensors = Readonly<Record<string, string>>;

/** A serving offered as a model. */
export interface OfferedServing {
  /** Name of the serving. */
  readonly serving: string;
  /**
   * Name of the model; no slashes, because clients don't encode them.
   *
   * @default the name of the serving
   */
  readonly model?: string;
  /**
   * Inputs, if the serving has no signature or its `preprocess` takes something else. If every
   * input has one element per row, a row is that element, or an object of them for several inputs.
   * Otherwise the serving receives the tensors as they are.
   *
   * @default the signature's; else one input `input` of type BYTES, whose elements are rows in JSON
   */
  readonly inputs?: DeclaredTensors;
  /**
   * Outputs, if the serving has no signature or its `postprocess` returns something else.
   *
   * @default the signature's; else one output `output` of type BYTES, whose elements are the rows'
   * results in JSON
   */
  readonly outputs?: DeclaredTensors;
  /**
   * True if a request may have several replies, as with a generator. Calls are then streams.
   *
   * @default true for a serving of sequences, and otherwise false
   */
  readonly decoupled?: boolean;
}

/** Options for the calls that load and unload models. */
export interface RepositoryOptions {
  /** Guards for `load` and `unload`, after the module's guards. At least one. */
  readonly guards: readonly ProtocolGuard[];
}

/** A TLS server's certificates, as PEM. */
export interface GrpcDoorTls {
  /** The server's certificate. */
  readonly cert: string | Uint8Array;
  /** Private key for `cert`. */
  readonly key: string | Uint8Array;
  /**
   * CA certificates for client certificates. If set, clients must present one.
   *
   * @default clients need no certificate
   */
  readonly ca?: string | Uint8Array;
}

/** Address of the protocol's gRPC server. */
export interface GrpcDoorOptions {
  /** The port, usually 8001; 0 picks a free one. */
  readonly port: number;
  /**
   * Address of the network interface.
   *
   * @default '0.0.0.0'
   */
  readonly host?: string;
  /**
   * The server's certificates.
   *
   * @default connections are not encrypted
   */
  readonly tls?: GrpcDoorTls;
  /**
   * Milliseconds without calls until a client must answer a ping, within 2 seconds; if it doesn't,
   * its connection ends. Clients that answer keep theirs.
   *
   * @default 20000
   */
  readonly idleTimeout?: number;
  /**
   * Maximum size in bytes of a request without its raw contents. Elements in lists hold the event
   * loop, 20 to 40 ms for each MiB.
   *
   * @default 262144
   */
  readonly listLimit?: number;
  /**
   * Describes the services to clients such as `grpcurl`, behind the guards of other calls.
   *
   * @default false
   */
  readonly reflection?: boolean;
}

/** Options of `InferenceProtocolModule.forRoot`. */
export interface InferenceProtocolOptions {
  /**
   * Servings to offer, by name or with options.
   *
   * @default all servings of the application
   */
  readonly servings?: readonly (string | OfferedServing)[];
  /**
   * Guards for all calls except `health/live` and `health/ready`. The application's global guards
   * run first, for every call.
   *
   * @default none
   */
  readonly guards?: readonly ProtocolGuard[];
  /**
   * Maximum request size in bytes, before and after decompression.
   *
   * @default 67108864
   */
  readonly bodyLimit?: number;
  /**
   * Maximum size in bytes of a body's JSON, and of the sum of rows that are JSON. A thread parses a
   * body of more than 256 KiB of JSON.
   *
   * @default 8388608
   */
  readonly jsonLimit?: number;
  /**
   * Returns the call's tenant, which has its own sequences and share of the queue.
   *
   * @default what the serving's `queue.tenant` returns, if it has one
   */
  readonly tenant?: (context: ExecutionContext) => string | undefined;
  /**
   * Lets clients load and unload models.
   *
   * @default off: these calls are answered with 501
   */
  readonly repository?: RepositoryOptions;
  /**
   * Also serves gRPC, on its own port.
   *
   * @default HTTP alone
   */
  readonly grpc?: GrpcDoorOptions;
}

export type Offer = Required<Pick<OfferedServing, 'serving' | 'model'>> & OfferedServing;

export interface ResolvedProtocol {
  /** Undefined for all servings. */
  readonly offers: readonly Offer[] | undefined;
  readonly guards: readonly ProtocolGuard[];
  readonly bodyLimit: number;
  readonly jsonLimit: number;
  readonly tenant: ((context: ExecutionContext) => string | undefined) | undefined;
  readonly repository: RepositoryOptions | undefined;
  readonly grpc: ResolvedGrpcDoor | undefined;
}

export type ResolvedGrpcDoor = Required<Omit<GrpcDoorOptions, 'tls'>> & {
  readonly tls: GrpcDoorTls | undefined;
};

export const OWNER = 'InferenceProtocolModule';
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

export const rules: Rules = {
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
    tls: {
      ...groupOf({
        cert: { ...pem, isRequired: true },
        key: { ...pem, isRequired: true, isSecret: true },
        ca: pem,
      }),
      isSecret: true,
    },
    idleTimeout: milliseconds(1),
    listLimit: whole(1, LARGEST_BODY),
    reflection: flag,
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
  decoupled: flag,
};

/** @throws InvalidServingError */
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
    grpc: options.grpc && resolveGrpc(options.grpc),
  };
}

function resolveGrpc(options: GrpcDoorOptions): ResolvedGrpcDoor {
  const { host = '0.0.0.0', tls, idleTimeout = 20_000, listLimit = 2 ** 18 } = options;
  return {
    port: options.port,
    host,
    tls,
    idleTimeout,
    listLimit,
    reflection: options.reflection ?? false,
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

/** @throws InvalidServingError for a name with a slash */
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

export interface Port {
  readonly name: string;
  readonly type: Tensor.Type;
  /** Includes the row axis; -1 for any size. */
  readonly shape: readonly number[];
  /** `null` for a tensor that a request's rows share. */
  readonly batchAxis: number | null;
  /** True unless the rows are an object of named tensors. */
  readonly isBare?: boolean;
}

const DECLARED = /^([A-Z0-9]+)(?:\[((?:-1|\d+)(?:, *(?:-1|\d+))*)\])?$/;

/** @throws InvalidServingError for invalid text */
export function parsePort(name: string, declared: unknown, owner: string): Port {
  const match = typeof declared === 'string' ? DECLARED.exec(declared) : null;
  const type = typeOfDatatype(match?.[1]);
  if (!match || !type) {
    throw new InvalidServingError(
      `${owner}: "${name}" is ${formatValue(declared)}; give a datatype of the protocol and the ` +
        "shape of a row, such as 'FP32[3, 224]', or 'BYTES' for one element per row",
    );
  }
  const row = match[2]?.split(',').map(Number) ?? [];
  return { name, type, shape: [-1, ...row], batchAxis: 0 };
}

export function isColumn({ shape }: Port): boolean {
  return shape.length === 1;
}
