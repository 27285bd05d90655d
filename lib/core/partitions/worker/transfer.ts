import * as threads from 'node:worker_threads';
import type { Batch } from '../../batch/batch.js';
import {
  asOutput,
  FlatContainer,
  type FlatRows,
  flatten,
  isPlainObject,
  type Leaf,
  MAX_DEPTH,
  rowsIn,
  type Structure,
} from '../../batch/container.js';
import {
  type Tensor,
  tensorOf,
  copyOfData,
  type MemoryOf,
  type TensorData,
  type TypedData,
} from '../../batch/tensor.js';
import {
  fromWire,
  InvalidInputError,
  InvalidOutputError,
  isError,
  messageOf,
  readable,
  toWire,
  type WireError,
} from '../../errors.js';
import { propertyOf, truncate } from '../../format.js';
import { TooLargeToSendError, RejectedRowsError } from '../partition.js';
import { DONE } from '../batch-function.js';
import type { ModelPort } from '../model/model-signature.js';

/** Omits the tensors' class, which cloning would lose. */
interface WireContainer {
  readonly structure: Structure;
  readonly leaves: readonly WireLeaf[];
}

type WireLeaf = Pick<Leaf, 'path' | 'label'> & Pick<Tensor, 'type' | 'dims' | 'data'>;

export type WireRows =
  WireContainer | { readonly list: readonly unknown[]; readonly packed: readonly PackedRow[] };

type PackedRow = readonly [index: number, form: PackedForm];

/** A list names the properties that hold containers. */
type PackedForm = 'container' | 'error' | 'done' | readonly string[];

export type WireOutput = WireRows | { readonly other: unknown };

/** Also returns the buffers to move instead of copy. */
export function packRows(rows: FlatRows): [WireRows, ArrayBuffer[]] {
  const transfer = new Set<ArrayBuffer>();
  const wire =
    rows instanceof FlatContainer ? packContainer(rows, transfer) : packList(rows, transfer);
  return [wire, [...transfer]];
}

/**
 * If a value fails the send, copies each row alone and sends again, so that it spoils no other row.
 *
 * @throws RejectedRowsError for plain values that can't be sent, such as functions
 */
export function sendRows(
  batch: Batch,
  send: (rows: WireRows, transfer: ArrayBuffer[]) => void,
): void {
  try {
    const [rows, transfer] = packRows(batch.gather());
    // Plain values, even tensors, still belong to the caller.
    send(rows, batch.isPlain ? [] : transfer);
  } catch (cause) {
    if (!batch.isPlain || cause instanceof TooLargeToSendError) {
      throw cause;
    }
    const copies = copiesOf(batch.consume() as unknown[]);
    try {
      send(copies, []);
    } catch (again) {
      // A row can be too deep to send, but not to copy alone.
      const deep = [...copies.list.entries()].filter(([, row]) => isTooDeep(row));
      rejectRows(new Map(deep.map(([index]) => [index, again])));
      throw again;
    }
  }
}

/**
 * Copies each row alone, too slow for each send.
 *
 * @throws RejectedRowsError for rows that can't be copied
 */
function copiesOf(rows: readonly unknown[]): WireRows & { readonly list: readonly unknown[] } {
  const list: unknown[] = [];
  const packed: PackedRow[] = [];
  const faults = new Map<number, unknown>();
  for (const [index, row] of rows.entries()) {
    try {
      const [value, form] = packRow(row, new Set());
      list.push(structuredClone(value));
      if (form) {
        packed.push([index, form]);
      }
    } catch (cause) {
      faults.set(index, readable(() => uncloneableIn(row, 'row'), undefined) ?? cause);
    }
  }
  rejectRows(faults);
  return { list, packed };
}

/** @throws RejectedRowsError if there are any */
function rejectRows(causes: ReadonlyMap<number, unknown>): void {
  if (causes.size > 0) {
    const errors = [...causes].map(([row, cause]) => [row, unsendable(cause)] as const);
    throw new RejectedRowsError(new Map(errors));
  }
}

/** Names the first function, symbol or promise in objects and lists: messages can't hold these. */
function uncloneableIn(value: unknown, path: string, met = new Set<unknown>()): Error | undefined {
  const kind = value instanceof Promise ? 'promise' : typeof value;
  if (['function', 'symbol', 'promise'].includes(kind)) {
    return new Error(
      `${path} is a ${kind}, and a thread or process gets only what structuredClone copies`,
    );
  }
  // A view may have millions of numbers.
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value) || met.has(value)) {
    return undefined;
  }
  met.add(value);
  for (const [key, part] of Object.entries(value)) {
    const name = propertyOf(key);
    const fault = uncloneableIn(part, path + (name === key ? `.${key}` : `[${name}]`), met);
    if (fault) {
      return fault;
    }
  }
  return undefined;
}

function unsendable(cause: unknown): Error {
  const reason = truncate(messageOf(cause));
  return new InvalidInputError(
    `The row cannot be sent to the partition that would run it: ${reason}`,
    { cause },
  );
}

export function unpackRows(wire: WireRows): FlatRows {
  if ('structure' in wire) {
    return unpackContainer(wire);
  }
  const list = [...wire.list];
  for (const [index, form] of wire.packed) {
    list[index] = unpackRow(list[index], form);
  }
  return list;
}

function unpackRow(row: unknown, form: PackedForm): unknown {
  switch (form) {
    case 'container':
      return unpackContainer(row as WireContainer).toContainer();
    case 'error':
      return fromWire(row as WireError);
    case 'done':
      return DONE;
    default: {
      const object = row as Record<string, unknown>;
      for (const name of form) {
        object[name] = unpackContainer(object[name] as WireContainer).toContainer();
      }
      return object;
    }
  }
}

/** Tensors become a FlatContainer unless they are rows of a list. */
export function unpackOutput(wire: WireOutput): unknown {
  return 'other' in wire ? wire.other : unpackRows(wire);
}

function packList(rows: readonly unknown[], transfer: Set<ArrayBuffer>): WireRows {
  const packed: PackedRow[] = [];
  const list = rows.map((row, index) => {
    const [value, form] = packRow(row, transfer);
    if (form) {
      packed.push([index, form]);
    }
    return value;
  });
  return { list, packed };
}

function packRow(row: unknown, transfer: Set<ArrayBuffer>): [value: unknown, form?: PackedForm] {
  if (row === DONE) {
    return [undefined, 'done'];
  }
  const container = flatten(row);
  if (container) {
    return [packContainer(container, transfer), 'container'];
  }
  if (isError(row)) {
    return [toWire(row), 'error'];
  }
  const parts = containersIn(row);
  if (parts.length === 0) {
    return [row];
  }
  const packed = parts.map(([name, part]) => [name, packContainer(part, transfer)] as const);
  return [{ ...(row as object), ...Object.fromEntries(packed) }, parts.map(([name]) => name)];
}

/** Doesn't search inner objects. */
function containersIn(row: unknown): [name: string, FlatContainer][] {
  const found: [string, FlatContainer][] = [];
  for (const [name, part] of isPlainObject(row) ? Object.entries(row as object) : []) {
    const container = flatten(part);
    if (container) {
      found.push([name, container]);
    }
  }
  return found;
}

function packContainer(
  { structure, leaves }: FlatContainer,
  transfer: Set<ArrayBuffer>,
): WireContainer {
  const packed = leaves.map(({ path, label, tensor: { type, dims, data } }): WireLeaf => ({
    path,
    label,
    type,
    dims,
    data: movable(data, transfer),
  }));
  return { structure, leaves: packed };
}

function unpackContainer({ structure, leaves }: WireContainer): FlatContainer {
  return new FlatContainer(
    structure,
    leaves.map(({ path, label, ...parts }) => ({ path, label, tensor: tensorOf(parts) })),
  );
}

/**
 * Replaces results that are nested too deeply by errors: the main thread has less stack.
 *
 * @throws InvalidOutputError for tensors that we can't use
 */
export function packOutput(output: unknown, plainRows: boolean): [WireOutput, ArrayBuffer[]] {
  const sendable =
    Array.isArray(output) && output.some(isTooDeep)
      ? output.map((row) => (isTooDeep(row) ? tooDeepError() : row))
      : output;
  return asOutput(() => {
    const rows = rowsIn(sendable, plainRows);
    return rows ? packRows(rows) : [{ other: output }, []];
  });
}

/** Puts an error in place of each such result; undefined if no result can be sent. */
export function sendableOutput(output: WireOutput): WireOutput | undefined {
  if (!('list' in output)) {
    return undefined;
  }
  const faults = new Map<number, WireError>();
  for (const [index, row] of output.list.entries()) {
    try {
      structuredClone(row);
    } catch (cause) {
      const message = `The result of a row cannot be sent back: ${truncate(messageOf(cause))}`;
      faults.set(index, toWire(new InvalidOutputError(message, { cause })));
    }
  }
  const packed = output.packed.filter(([index]) => !faults.has(index));
  return faults.size === output.list.length
    ? undefined
    : {
        list: output.list.map((row, index) => faults.get(index) ?? row),
        packed: [...packed, ...[...faults.keys()].map((index) => [index, 'error'] as const)],
      };
}

function tooDeepError(): Error {
  return new InvalidOutputError(
    `The result of a row is nested more than ${MAX_DEPTH} levels deep, and cannot be sent back`,
  );
}

function isTooDeep(row: unknown): boolean {
  return isDeeper(row, MAX_DEPTH, new Set());
}

/** Counts each object once, as the message does. */
function isDeeper(value: unknown, levels: number, met: Set<unknown>): boolean {
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
    if (typeof part === 'object' && isDeeper(part, levels - 1, met)) {
      return true;
    }
  }
  return false;
}

/** Both ends know names and types. */
export interface WireTensors {
  readonly data: readonly TensorData[];
  readonly dims: readonly (readonly number[])[];
}

export function packTensors(tensors: readonly Tensor[]): [WireTensors, ArrayBuffer[]] {
  const transfer = new Set<ArrayBuffer>();
  const data = tensors.map((tensor) => movable(tensor.data, transfer));
  return [{ data, dims: tensors.map(({ dims }) => dims) }, [...transfer]];
}

export function unpackTensors({ data, dims }: WireTensors, ports: readonly ModelPort[]): Tensor[] {
  return ports.map(({ type }, i) => tensorOf({ type, data: data[i]!, dims: dims[i]! }));
}

/** Larger memory is often new pages, which cost more than the copy into them. */
const LARGE = 16 * 1024;

export function spareOf(tensors: readonly Tensor[]): ArrayBuffer[] {
  const buffers: ArrayBuffer[] = [];
  for (const { data } of tensors) {
    if (ArrayBuffer.isView(data) && data.byteLength >= LARGE) {
      buffers.push(data.buffer as ArrayBuffer);
    }
  }
  return buffers;
}

export class SpareMemory {
  /** Weak, so that an idle partition keeps no memory. */
  private buffers: WeakRef<ArrayBuffer>[] = [];

  readonly memoryOf: MemoryOf = (bytes) => {
    for (let at = 0; at < this.buffers.length; at++) {
      const buffer = this.buffers[at]!.deref();
      if (buffer?.byteLength === bytes) {
        this.buffers.splice(at, 1);
        return buffer;
      }
    }
    return undefined;
  };

  /** Keeps two batches' memory: one runs while the next is made. */
  keep(buffers: readonly ArrayBuffer[]): void {
    const latest = buffers.map((buffer) => new WeakRef(buffer));
    this.buffers = [...latest, ...this.buffers].slice(0, 2 * buffers.length);
  }
}

/** Native code's memory can't move from Node 21 on; before, it is copied. */
export const { isMarkedAsUntransferable: isFixed } = threads as {
  isMarkedAsUntransferable?: (buffer: ArrayBufferLike) => boolean;
};

/** Copies what can't move; strings stay. */
function movable(data: TensorData, transfer: Set<ArrayBuffer>): TensorData {
  if (!ArrayBuffer.isView(data)) {
    return data;
  }
  const canMove = isWhole(data) && !transfer.has(data.buffer) && !isFixed?.(data.buffer);
  const own = canMove ? data : copyOfData(data);
  transfer.add(own.buffer as ArrayBuffer);
  return own;
}

/** False for a view of a part, whose whole buffer would move. */
function isWhole(data: TypedData): data is TypedData & { readonly buffer: ArrayBuffer } {
  return data.byteLength === data.buffer.byteLength && !(data.buffer instanceof SharedArrayBuffer);
}
