import { Tensor } from 'onnxruntime-common';
import type { Batch } from '../../batch/batch.js';
import {
  type Container,
  isContainer,
  isPlainObject,
  type Leaf,
  leavesOf,
  withLeaves,
} from '../../batch/container.js';
import { copyOfData, soundTensor, type TypedData } from '../../batch/tensor.js';
import {
  fromWire,
  InvalidInputError,
  InvalidOutputError,
  isError,
  messageOf,
  toWire,
  type WireError,
} from '../../errors.js';
import { truncate } from '../../format.js';
import { TooLargeToSendError, RejectedRowsError } from '../partition.js';
import { DONE, endedRows } from '../batch-function.js';

/**
 * Rows or results as they cross to a worker and back: tensors by their parts, errors by their wire
 * form, the rest as it is.
 */
export type WireValue =
  | { readonly tensors: Container }
  | {
      readonly list: readonly unknown[];
      /** The places in `list` that hold a packed container or error. */
      readonly containers: readonly number[];
      readonly errors: readonly number[];
      /**
       * The places of objects that hold packed containers beside other things, and the names of
       * these.
       */
      readonly mixed: readonly (readonly [place: number, names: readonly string[]])[];
      /** The places of rows that are over. */
      readonly done: readonly number[];
    }
  | { readonly other: unknown };

/** True for one value per row; a tuple of tensors is no list where the rows are tensors. */
export function isRowList(value: unknown, plainRows: boolean): value is readonly unknown[] {
  return Array.isArray(value) && (plainRows || !isContainer(value));
}

/** The wire form of a value, and the buffers that move with it instead of being copied. */
export function pack(value: unknown, plainRows: boolean): [WireValue, ArrayBuffer[]] {
  const transfer = new Set<ArrayBuffer>();
  const wire = packValue(value, plainRows, transfer);
  return [wire, [...transfer]];
}

/**
 * Sends the rows of a batch to where they run.
 *
 * @throws UnfitRows for plain values that cannot be sent, such as functions
 * @throws TooLargeToSendError when the rows are too much for one message
 */
export function sendRows(
  batch: Batch,
  send: (rows: WireValue, transfer: ArrayBuffer[]) => void,
): void {
  try {
    const [rows, transfer] = pack(batch.consume(), batch.isPlain);
    // Plain values still belong to the caller, also where they are tensors.
    send(rows, batch.isPlain ? [] : transfer);
  } catch (cause) {
    throw batch.isPlain && !(cause instanceof TooLargeToSendError)
      ? (unfitRows(batch) ?? cause)
      : cause;
  }
}

/**
 * Which of the rows it is: each is tried by itself, as would cost too much for those that can be
 * sent.
 */
function unfitRows(batch: Batch): RejectedRowsError | undefined {
  const faults = new Map<number, Error>();
  for (const [index, row] of (batch.consume() as unknown[]).entries()) {
    try {
      structuredClone(pack([row], true)[0]);
    } catch (cause) {
      const reason = truncate(messageOf(cause));
      faults.set(
        index,
        new InvalidInputError(
          `The row cannot be sent to the partition that would run it: ${reason}`,
          { cause },
        ),
      );
    }
  }
  return faults.size > 0 ? new RejectedRowsError(faults) : undefined;
}

export function unpack(wire: WireValue): unknown {
  if ('other' in wire) {
    return wire.other;
  }
  if ('tensors' in wire) {
    return unpackTensors(wire.tensors);
  }
  const list = [...wire.list];
  for (const index of wire.containers) {
    list[index] = unpackTensors(list[index] as Container);
  }
  for (const index of wire.errors) {
    list[index] = fromWire(list[index] as WireError);
  }
  for (const [index, names] of wire.mixed) {
    const row = list[index] as Record<string, unknown>;
    names.forEach((name) => (row[name] = unpackTensors(row[name] as Container)));
  }
  for (const index of wire.done) {
    list[index] = DONE;
  }
  return list;
}

function packValue(value: unknown, plainRows: boolean, transfer: Set<ArrayBuffer>): WireValue {
  if (isRowList(value, plainRows)) {
    return packList(value, transfer);
  }
  return isContainer(value) ? { tensors: packTensors(value, transfer) } : { other: value };
}

function packList(rows: readonly unknown[], transfer: Set<ArrayBuffer>): WireValue {
  const containers: number[] = [];
  const errors: number[] = [];
  const mixed: [number, string[]][] = [];
  const done = endedRows(rows);
  const list = rows.map((row, index) => {
    if (isContainer(row)) {
      containers.push(index);
      return packTensors(row, transfer);
    }
    if (isError(row)) {
      errors.push(index);
      return toWire(row);
    }
    const names = tensorsIn(row);
    if (names.length > 0) {
      mixed.push([index, names]);
      return withPacked(row as Record<string, unknown>, names, transfer);
    }
    return row === DONE ? undefined : row;
  });
  return { list, containers, errors, mixed, done };
}

/**
 * The names of tensors, and of containers of them, that an object holds beside other things; deeper
 * down they are no longer looked for.
 */
function tensorsIn(row: unknown): string[] {
  return isPlainObject(row)
    ? Object.keys(row as object).filter((name) =>
        isContainer((row as Record<string, unknown>)[name]),
      )
    : [];
}

function withPacked(
  row: Record<string, unknown>,
  names: readonly string[],
  transfer: Set<ArrayBuffer>,
): object {
  return {
    ...row,
    ...Object.fromEntries(
      names.map((name) => [name, packTensors(row[name] as Container, transfer)]),
    ),
  };
}

function packTensors(container: Container, transfer: Set<ArrayBuffer>): Container {
  const leaves = leavesOf(container).map((leaf) => {
    const { type, dims, data } = returned(leaf);
    if (!ArrayBuffer.isView(data)) {
      return { type, dims, data };
    }
    const own = isWhole(data) && !transfer.has(data.buffer) ? data : copyOfData(data);
    transfer.add(own.buffer as ArrayBuffer);
    return { type, dims, data: own };
  });
  return withLeaves(container, leaves);
}

function returned({ path, tensor }: Leaf): Tensor {
  const name = path === '' ? 'A tensor' : `"${truncate(path)}"`;
  if (tensor.data.length !== tensor.size) {
    throw new InvalidOutputError(
      `${name} of shape [${truncate(tensor.dims.join(', '))}] holds ${tensor.data.length} ` +
        'elements: ' +
        'a tensor that was returned has moved to the caller; to return it again, keep it and ' +
        'return a copy',
    );
  }
  try {
    return soundTensor(tensor, name);
  } catch (cause) {
    throw new InvalidOutputError(messageOf(cause), { cause });
  }
}

/** A view of a part would move, or clone, all the rest of its buffer with it. */
function isWhole(data: TypedData): data is TypedData & { readonly buffer: ArrayBuffer } {
  return data.byteLength === data.buffer.byteLength && !(data.buffer instanceof SharedArrayBuffer);
}

function unpackTensors(container: Container): Container {
  const tensors = leavesOf(container).map(
    ({ tensor: { type, data, dims } }) => new Tensor(type, data, dims),
  );
  return withLeaves(container, tensors);
}

/**
 * A thread writes and reads deeper values than the main thread, which has less stack and would get
 * nothing at all.
 */
const DEEPEST = 500;

/** The results, with an error in place of each that could not be read on the other side. */
export function readableRows(output: unknown): unknown {
  return Array.isArray(output) && output.some((row) => isDeep(row))
    ? output.map((row) => (isDeep(row) ? tooDeep() : row))
    : output;
}

function tooDeep(): Error {
  return new InvalidOutputError(
    `The result of a row is nested more than ${DEEPEST} levels deep, and could not be read where ` +
      'it is to go',
  );
}

/** Each object counts where it is first met, as it is written. */
function isDeep(value: unknown, levels = DEEPEST, met = new Set<unknown>()): boolean {
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value) || met.has(value)) {
    return false;
  }
  if (levels === 0) {
    return true;
  }
  met.add(value);
  for (const part of value instanceof Map || value instanceof Set
    ? [...value].flat()
    : Object.values(value)) {
    if (typeof part === 'object' && isDeep(part, levels - 1, met)) {
      return true;
    }
  }
  return false;
}
