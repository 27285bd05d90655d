import type { Tensor } from 'onnxruntime-common';
import { InvalidInputError, InvalidOutputError } from '../../../index.js';
import { type BatchTerms, TooLargeToSendError } from '../../../doors/engine.js';
import { type ModelPort, type ModelSignature } from '../../../doors/models.js';
import { isA } from '../../../doors/text.js';
import { elementSize, type LeafRows } from '../../../doors/values.js';
import { datatypeOf } from '../../../encoding/json-tensor.js';
import { ReadContext } from '../../../encoding/json.js';
import type { GrpcInferRequest, GrpcInferResponse, GrpcParameters } from '../wire/grpc-service.js';
import { fromGrpcTensors } from '../wire/grpc-tensors.js';
import type { RemoteModel } from './endpoint-rules.js';
import { swapOnBigEndian } from '../../../encoding/element-types.js';
import { sizeOfStrings, writeStringElements } from '../wire/tensor-bytes.js';

/** The level for priority 0; level 1 is the highest. */
const MIDDLE_LEVEL = 3;

/** The answer is in memory; a tensor has at most a batch's axes. */
const LIMITS = { bytes: Infinity, tensors: 1024, rank: 32, depth: Infinity, nodes: Infinity };

export function requestHead(
  { name, version }: RemoteModel,
  inputs: readonly ModelPort[],
  feeds: readonly LeafRows[],
  outputs: readonly string[],
  parameters: GrpcParameters,
): Omit<GrpcInferRequest, 'raw_input_contents'> {
  return {
    model_name: name,
    model_version: version,
    parameters,
    inputs: feeds.map(({ type, dims }, i) => ({
      name: inputs[i]!.name,
      datatype: datatypeOf(type),
      shape: dims,
    })),
    outputs: outputs.map((output) => ({ name: output })),
  };
}

/** Timeout in microseconds; the server applies its own defaults. */
export function parametersOf({ deadline, priority }: BatchTerms): GrpcParameters {
  const left = Math.max(1, Math.ceil((deadline - performance.now()) * 1000));
  return {
    ...(deadline < Infinity && { timeout: { int64_param: left } }),
    ...(priority !== 0 && {
      priority: { int64_param: Math.max(1, MIDDLE_LEVEL - priority) },
    }),
  };
}

/** @throws InvalidOutputError naming the endpoint and the output */
export function outputsOf(
  { outputs, raw_output_contents: raw }: GrpcInferResponse,
  names: readonly string[],
  { outputs: ports }: Pick<ModelSignature, 'outputs'>,
  url: string,
): Record<string, Tensor> {
  const context = new ReadContext({
    limits: LIMITS,
    name: 'outputs',
    source: `the answer of ${url}`,
  });
  try {
    const tensors = fromGrpcTensors({ tensors: outputs, raw }, context);
    const entries = names.map((name) => {
      const tensor = tensors.get(name) ?? context.fail('is missing', name);
      const port = ports.find((each) => each.name === name)!;
      if (tensor.type !== port.type) {
        return context.fail(`is ${tensor.type} and must be ${port.type}`, name);
      }
      return isOfShape(tensor, port)
        ? ([name, tensor] as const)
        : context.fail(
            `has the shape [${tensor.dims.join(', ')}], and the server stated [${port.shape
              .map((size) => (typeof size === 'number' ? size : -1))
              .join(', ')}]`,
            name,
          );
    });
    return Object.fromEntries(entries);
  } catch (cause) {
    throw isA(cause, InvalidInputError) ? new InvalidOutputError(cause.message, { cause }) : cause;
  }
}

/** Leaves the number of rows to the batch's check. */
function isOfShape({ dims }: Tensor, { shape, batchAxis }: ModelPort): boolean {
  const isOfSize = (size: number | string, axis: number): boolean =>
    axis === batchAxis || typeof size !== 'number' || dims[axis] === size;
  return shape.length === 0 || (dims.length === shape.length && shape.every(isOfSize));
}

export function isOwnMemory(tensors: readonly Tensor[]): boolean {
  return tensors.every(
    ({ data }) => Array.isArray(data) || data.byteLength === data.buffer.byteLength,
  );
}

/** Largest gRPC message in bytes: its length has 4 bytes. */
const LARGEST = 2 ** 32 - 1;

/** Bytes; we don't keep larger messages' memory. */
const LARGEST_KEPT = 16 * 2 ** 20;

/**
 * Allocating costs more than the copy: Node collects its whole heap for about every 30 MB of
 * buffers.
 */
export class MessageMemory {
  private spare: Buffer | undefined;

  /** @throws TooLargeToSendError */
  take(length: number): Buffer {
    if (length > LARGEST) {
      throw new TooLargeToSendError(
        `The rows take ${length} bytes in a gRPC message, which has at most ${LARGEST}; ` +
          'give fewer or smaller rows, or lower batchSize',
      );
    }
    const { spare } = this;
    this.spare = undefined;
    return spare && spare.length >= length
      ? spare.subarray(0, length)
      : Buffer.allocUnsafeSlow(length);
  }

  /** Nothing may read the message any more. */
  give(message: Buffer): void {
    if (message.buffer.byteLength <= LARGEST_KEPT) {
      this.spare = Buffer.from(message.buffer);
    }
  }
}

/**
 * Key of `raw_input_contents`, field 7 with a length:
 * https://protobuf.dev/programming-guides/encoding/
 */
const RAW_CONTENTS = (7 << 3) | 2;

interface Content {
  readonly byteLength: number;
  write(room: Buffer): void;
}

/**
 * Copies rows only once.
 *
 * @param head the message without `raw_input_contents`, its last field
 * @param inputs in the head's order
 */
export function requestBytes(
  head: Uint8Array,
  inputs: readonly LeafRows[],
  allocate: (length: number) => Buffer,
): Buffer {
  const contents = inputs.map(contentOf);
  const length = contents.reduce(
    (sum, { byteLength }) => sum + 1 + lengthOfVarint(byteLength) + byteLength,
    head.length,
  );
  const message = allocate(length);
  message.set(head);
  let at = head.length;
  for (const content of contents) {
    message[at] = RAW_CONTENTS;
    at = writeVarint(message, at + 1, content.byteLength);
    content.write(message.subarray(at, (at += content.byteLength)));
  }
  return message;
}

function contentOf(rows: LeafRows): Content {
  if (rows.type === 'string') {
    const strings = rows.gather().data as string[];
    return {
      byteLength: sizeOfStrings(strings),
      write: (room) => writeStringElements(strings, room),
    };
  }
  const size = elementSize(rows.type);
  return {
    byteLength: rows.dims.reduce((product, dim) => product * dim, size),
    write(room) {
      rows.write(room);
      swapOnBigEndian(room, size);
    },
  };
}

function lengthOfVarint(value: number): number {
  let length = 1;
  for (let rest = value; rest > 0x7f; rest = Math.floor(rest / 0x80)) {
    length++;
  }
  return length;
}

/** Encodes 7 bits per byte, lowest first. */
function writeVarint(message: Buffer, start: number, value: number): number {
  let at = start;
  let rest = value;
  for (; rest > 0x7f; rest = Math.floor(rest / 0x80)) {
    message[at++] = (rest % 0x80) | 0x80;
  }
  message[at++] = rest;
  return at;
}
