import { InvalidBatchError } from '../errors.js';
import { truncate } from '../format.js';
import { type Container, type Leaf, mapLeaves, read } from './container.js';
import { soundTensor } from './tensor.js';

/**
 * On which axis of each leaf the rows lie, by path; `null`: the leaf has no rows and is shared by
 * the batch. Default 0.
 */
export type BatchAxes = Readonly<Record<string, number | null>>;

/**
 * What the rows of one batch have in common.
 *
 * `signature` is equal for two templates exactly when their rows can share a batch: same names,
 * element types and inner shapes, same axes, and equal values in the leaves that are shared.
 */
export interface Template {
  readonly signature: string;
  /** One of the items that have it as it was when it came, and its leaves. */
  readonly structure: Container;
  readonly leaves: readonly Leaf[];
  /** The batch axis of each leaf. */
  readonly axes: readonly (number | null)[];
}

/**
 * A shared leaf is part of the signature, so it must be small enough to compare for every request.
 */
const LARGEST_SHARED_LEAF = 1024;

/** Rows without elements take no memory where they come from, and time for each where they go. */
const MOST_EMPTY_ROWS = 65_536;

/** Signatures are remembered, and callers decide on them. */
const LONGEST_SIGNATURE = 32_768;

/**
 * What rows must have in common in the leaves that they share: the value, or, of outputs, type and
 * shape.
 */
export type SharedLeaves = 'equal' | 'alike';

/**
 * The template of a container that carries rows, and how many. A container without a batch axis is
 * one row, which shares a batch with no other.
 */
export function templateOf(
  structure: Container,
  axes: BatchAxes = {},
  shared: SharedLeaves = 'equal',
): { template: Template; rows: number } {
  const leaves: Leaf[] = [];
  const own = read(() =>
    mapLeaves(structure, (leaf) => {
      const tensor = soundTensor(leaf.tensor, named(leaf.path));
      leaves.push({ ...leaf, tensor });
      return tensor;
    }),
  );
  const leafAxes = leaves.map(({ path }) => axisOf(path, axes));
  const isWhole = leafAxes.every((axis) => axis === null);
  const rows = isWhole ? 1 : countRows(leaves, leafAxes);
  if (
    rows > MOST_EMPTY_ROWS &&
    leaves.every(({ tensor }, i) => leafAxes[i] === null || tensor.size === 0)
  ) {
    throw new InvalidBatchError(
      `An item has ${rows} rows and no elements; at most ${MOST_EMPTY_ROWS} rows may be empty`,
    );
  }
  const signature = leaves
    .map((leaf, i) => describe(leaf, leafAxes[i]!, isWhole ? 'alike' : shared))
    .join(', ');
  if (signature.length > LONGEST_SIGNATURE) {
    throw new InvalidBatchError(
      `What the rows of an item have in common takes ${signature.length} characters to say, and ` +
        `at most ${LONGEST_SIGNATURE} are allowed: ${truncate(signature)}`,
    );
  }
  return { template: { signature, structure: own, leaves, axes: leafAxes }, rows };
}

/** The batch axis of the leaf at `path`. */
export function axisOf(path: string, axes: BatchAxes): number | null {
  return Object.hasOwn(axes, path) ? axes[path]! : 0;
}

function countRows(leaves: readonly Leaf[], axes: readonly (number | null)[]): number {
  let first: { path: string; rows: number } | undefined;
  for (const [i, { path, tensor }] of leaves.entries()) {
    const axis = axes[i];
    if (axis === null || axis === undefined) {
      continue;
    }
    const rows = tensor.dims[axis];
    if (rows === undefined) {
      throw new InvalidBatchError(
        `${named(path)} has the shape [${tensor.dims.join(', ')}] and so no axis ${axis} to ` +
          'count rows on; ' +
          `give it that axis (a scalar can be stacked, not concatenated)`,
      );
    }
    if (first && rows !== first.rows) {
      throw new InvalidBatchError(
        `Uneven rows: ${named(first.path)} has ${first.rows}, ${named(path)} has ${rows}; all ` +
          'leaves of one item need the same number',
      );
    }
    first ??= { path, rows };
  }
  return first?.rows ?? 0;
}

function describe(
  { path, label, tensor }: Leaf,
  axis: number | null,
  shared: SharedLeaves,
): string {
  const name = label === '' ? '' : `${label}: `;
  if (axis !== null) {
    const inner = tensor.dims.map((dim, i) => (i === axis ? 'rows' : dim));
    return `${name}${tensor.type}[${inner.join(', ')}]`;
  }
  const type = `${name}${tensor.type}[${tensor.dims.join(', ')}]`;
  if (shared === 'alike') {
    return type;
  }
  if (tensor.size > LARGEST_SHARED_LEAF) {
    throw new InvalidBatchError(
      `${named(path)} is shared by the rows of a batch and has ${tensor.size} elements; at most ` +
        `${LARGEST_SHARED_LEAF} are allowed, ` +
        'since rows are grouped by its value',
    );
  }
  const value = JSON.stringify(
    Array.from(tensor.data as ArrayLike<unknown>, (element) =>
      Object.is(element, -0) ? '-0' : String(element),
    ),
  );
  return `${type} = ${value}`;
}

function named(path: string): string {
  return path === '' ? 'The tensor' : `"${truncate(path)}"`;
}
