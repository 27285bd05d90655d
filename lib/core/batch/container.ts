import type { Tensor } from 'onnxruntime-common';
import { InvalidBatchError, InvalidOutputError, isServingError, messageOf } from '../errors.js';
import { truncate } from '../format.js';
import { checkTensor, isTensor } from './tensor.js';

/** A tensor, or a named map, tuple or nesting of tensors. */
export type Container = Tensor | readonly Container[] | { readonly [name: string]: Container };

/** A bare tensor's path is empty; others are like `encoder.0.state`. */
export interface Leaf {
  readonly path: string;
  /** Like the path, but unique to a structure: quotes names that look like a path or an index. */
  readonly label: string;
  readonly tensor: Tensor;
}

export type Structure = number | StructureNode;

interface StructureNode {
  readonly names: readonly string[] | undefined;
  readonly parts: readonly Structure[];
}

/**
 * A container taken apart: its leaves (names sorted, tuples in order), and the structure that joins
 * them. Rows have this form on their whole way.
 */
export class FlatContainer {
  constructor(
    readonly structure: Structure,
    readonly leaves: readonly Leaf[],
  ) {}

  with(tensors: readonly Tensor[]): FlatContainer {
    return new FlatContainer(
      this.structure,
      this.leaves.map(({ path, label }, i) => ({ path, label, tensor: tensors[i]! })),
    );
  }

  toContainer(): Container {
    return this.build(this.structure);
  }

  private build(structure: Structure): Container {
    if (typeof structure === 'number') {
      return this.leaves[structure]!.tensor;
    }
    const { names } = structure;
    const parts = structure.parts.map((part) => this.build(part));
    return names ? Object.fromEntries(parts.map((part, i) => [names[i]!, part])) : parts;
  }
}

/** Deepest value that the main thread can still read from a worker. */
export const MAX_DEPTH = 500;

const MAX_LEAVES = 1024;
const MAX_LABEL_LENGTH = 32_768;

/** Stops at cyclic values. */
const MAX_PARTS = 16_384;

/**
 * Undefined unless the value holds only tensors. Reads each part once.
 *
 * @throws InvalidBatchError when the value is unreadable, too large, or holds an invalid tensor
 */
export function flatten(value: unknown): FlatContainer | undefined {
  if (typeof value !== 'object' || value === null) {
    return undefined;
  }
  try {
    return takeApart(value);
  } catch (cause) {
    throw unreadable(cause);
  }
}

export type FlatRows = FlatContainer | unknown[];

/**
 * Tensors with rows, or a list with one entry per row; undefined for other values. A list of
 * tensors is a tuple, unless the rows are plain values.
 *
 * @throws InvalidBatchError for tensors that we can't use
 */
export function rowsIn(value: unknown, plainRows: boolean): FlatRows | undefined {
  const list = Array.isArray(value) ? (value as unknown[]) : undefined;
  return plainRows && list ? list : (flatten(value) ?? list);
}

export function read<T>(of: () => T): T {
  try {
    return of();
  } catch (cause) {
    throw unreadable(cause);
  }
}

export function unreadable(cause: unknown): unknown {
  return isServingError(cause)
    ? cause
    : new InvalidBatchError(`A value cannot be read: ${truncate(messageOf(cause))}`, { cause });
}

/** An invalid batch is the caller's fault, an invalid output the function's. */
export function asOutput<T>(make: () => T): T {
  try {
    return make();
  } catch (cause) {
    throw unusable(cause);
  }
}

export function unusable(cause: unknown): unknown {
  return cause instanceof InvalidBatchError
    ? new InvalidOutputError(`Unusable output: ${cause.message}`, { cause })
    : cause;
}

interface OpenNode {
  readonly node: StructureNode & { readonly parts: Structure[] };
  readonly values: readonly unknown[];
  readonly path: string;
  readonly label: string;
}

/** Not recursive, since values may have any depth. */
function takeApart(value: object): FlatContainer | undefined {
  if (value instanceof FlatContainer) {
    return value;
  }
  if (isTensor(value)) {
    return new FlatContainer(0, [{ path: '', label: '', tensor: checkTensor(value) }]);
  }
  const leaves: Leaf[] = [];
  const open: OpenNode[] = [];
  let [tensors, depth, labelLength] = [0, 0, 0];

  const enterNode = (part: unknown, path: string, label: string): Structure | undefined => {
    const inner = partsOf(part);
    const node = inner && { names: inner.names, parts: [] };
    depth = node ? Math.max(depth, open.push({ node, values: inner.values, path, label })) : depth;
    return node;
  };
  const enterLeaf = (tensor: Tensor, path: string, label: string): Structure => {
    labelLength += label.length;
    if (++tensors <= MAX_LEAVES && labelLength <= MAX_LABEL_LENGTH) {
      leaves.push({ path, label, tensor });
    }
    return tensors - 1;
  };

  const structure = enterNode(value, '', '');
  for (let visited = 0, top = open.at(-1); top; top = open.at(-1)) {
    const { node, values } = top;
    const index = node.parts.length;
    if (index === values.length) {
      open.pop();
      continue;
    }
    const name = node.names?.[index] ?? String(index);
    const path = top.path + name;
    const label = top.label + (!node.names || PLAIN_NAME.test(name) ? name : JSON.stringify(name));
    const part = values[index];
    const inner = isTensor(part)
      ? enterLeaf(part, path, label)
      : enterNode(part, `${path}.`, `${label}.`);
    if (inner === undefined) {
      return undefined;
    }
    node.parts.push(inner);
    if (++visited > MAX_PARTS) {
      throw new InvalidBatchError(
        `A value has more than ${MAX_PARTS} parts and no end of them; does it hold itself?`,
      );
    }
  }
  if (structure === undefined) {
    return undefined;
  }
  checkLimits(tensors, depth, labelLength);
  return new FlatContainer(
    structure,
    leaves.map(({ path, label, tensor }) => ({ path, label, tensor: checkTensor(tensor, path) })),
  );
}

/** Matches neither paths nor tuple indexes. */
const PLAIN_NAME = /^[\p{L}_$][\p{L}\p{N}_$-]*$/u;

function partsOf(
  value: unknown,
): { readonly names?: readonly string[]; readonly values: readonly unknown[] } | undefined {
  if (Array.isArray(value)) {
    return typeof value[0] === 'object' ? { values: value } : undefined;
  }
  const entries: [string, unknown][] = [];
  for (const name of isPlainObject(value) ? Object.keys(value as object) : []) {
    const part = (value as Record<string, unknown>)[name];
    if (typeof part !== 'object') {
      return undefined;
    }
    entries.push([name, part]);
  }
  if (entries.length > 1) {
    entries.sort(([a], [b]) => (a < b ? -1 : 1));
  }
  return entries.length > 0
    ? { names: entries.map(([name]) => name), values: entries.map(([, part]) => part) }
    : undefined;
}

function checkLimits(tensors: number, depth: number, labelLength: number): void {
  if (tensors > MAX_LEAVES || depth > MAX_DEPTH) {
    throw new InvalidBatchError(
      `${tensors} tensors, ${depth} levels deep, are more than one item may hold: at most ` +
        `${MAX_LEAVES} and ${MAX_DEPTH}; stack or concatenate the rows of many items to a Batch`,
    );
  }
  if (labelLength > MAX_LABEL_LENGTH) {
    throw new InvalidBatchError(
      `The names of an item's tensors are too long: together at most ${MAX_LABEL_LENGTH} ` +
        'characters',
    );
  }
}

/** True for object literals of any realm. */
export function isPlainObject(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) {
    return false;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}
