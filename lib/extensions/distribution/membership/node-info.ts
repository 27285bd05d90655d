import type { Address } from '../transport.js';
import { type ClusterNode, type ServingStatus } from '../../../doors/servings.js';
import { storageClasses } from '../../../doors/values.js';
import { FrameError } from '../wire/prelude.js';
import { flagIn, listIn, numberIn, oneOfIn, recordOf, stringIn, wholeIn } from '../wire/header.js';
import type { Tensor } from 'onnxruntime-common';
import type { ServingSignature, TensorSignature } from '../../../index.js';

export interface NodeInfo {
  /** Survives a restart if configured. */
  readonly id: string;
  /** Grows with each start. */
  readonly epoch: number;
  readonly address: Address;
  /** Its transport's outages, which may have lost calls. */
  readonly outages: number;
  /** Grows with each heartbeat. */
  readonly seq: number;
  readonly role: ClusterNode['role'];
  readonly state: 'up' | 'draining';
  readonly servings: readonly ServingStatus[];
}

/** Characters. */
export const LONGEST_NAME = 256;
const MOST_SERVINGS = 1024;
const MOST_PARTITIONS = 2 ** 16;

/** Keeps sums of weight × partitions precise. */
const LARGEST_WEIGHT = 1e6;

const NAME = new RegExp(`^[^]{1,${LONGEST_NAME}}$`);
const ADDRESS = /^[\w-]{1,256}$/;

/** @throws FrameError */
export function readNodeInfo(value: unknown): NodeInfo {
  const info = recordOf(value, 'A heartbeat');
  const role = oneOfIn(info, 'role', ['client', 'node']);
  const servings = listIn(info, 'servings', MOST_SERVINGS).map(readServingStatus);
  if (role === 'client' && servings.length > 0) {
    throw new FrameError(`The heartbeat of a client lists ${servings.length} servings`);
  }
  if (new Set(servings.map(({ name }) => name)).size < servings.length) {
    throw new FrameError('A heartbeat names a serving twice');
  }
  return {
    id: stringIn(info, 'id', NAME),
    epoch: wholeIn(info, 'epoch'),
    address: stringIn(info, 'address', ADDRESS),
    outages: wholeIn(info, 'outages'),
    seq: wholeIn(info, 'seq'),
    role,
    state: oneOfIn(info, 'state', ['up', 'draining']),
    servings,
  };
}

function readServingStatus(value: unknown): ServingStatus {
  const status = recordOf(value, 'A serving in a heartbeat');
  return {
    name: stringIn(status, 'name', NAME),
    weight: numberIn(status, 'weight', LARGEST_WEIGHT),
    partitions: wholeIn(status, 'partitions', MOST_PARTITIONS),
    activeCalls: wholeIn(status, 'activeCalls'),
    queued: wholeIn(status, 'queued'),
    batchTime: numberIn(status, 'batchTime'),
    idempotent: flagIn(status, 'idempotent'),
    isReady: flagIn(status, 'isReady'),
    signature: status['signature'] === undefined ? undefined : readSignature(status['signature']),
  };
}

const MOST_TENSORS = 256;
const MOST_AXES = 64;
const TYPES = [...storageClasses.keys(), 'string'] as Tensor.Type[];
const TENSOR_NAME = /^[^]{0,256}$/;

/** @throws FrameError */
function readSignature(value: unknown): ServingSignature {
  const signature = recordOf(value, 'A signature');
  const tensorsIn = (name: string): readonly TensorSignature[] =>
    listIn(signature, name, MOST_TENSORS).map(readTensor);
  return {
    inputs: tensorsIn('inputs'),
    outputs: signature['outputs'] === undefined ? undefined : tensorsIn('outputs'),
  };
}

function readTensor(value: unknown): TensorSignature {
  const tensor = recordOf(value, 'A tensor in a signature');
  const shape = listIn(tensor, 'shape', MOST_AXES).map(readSize);
  return {
    name: stringIn(tensor, 'name', TENSOR_NAME),
    type: oneOfIn(tensor, 'type', TYPES),
    shape,
    batchAxis: tensor['batchAxis'] === null ? null : wholeIn(tensor, 'batchAxis', shape.length - 1),
  };
}

function readSize(value: unknown): number | string | null {
  if (
    value === null ||
    (typeof value === 'string' && TENSOR_NAME.test(value)) ||
    (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0)
  ) {
    return value;
  }
  throw new FrameError('A shape in a signature holds sizes, names and null');
}
