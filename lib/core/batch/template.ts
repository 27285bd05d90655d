import { InvalidBatchError } from '../errors.js';
import { truncate } from '../format.js';
import { FlatContainer, isPlainObject, type Leaf, type Structure } from './container.js';
import { checkTensor, describePath, type Fill, isTensor, type Tensor } from './tensor.js';

/** Each leaf's batch axis by path; 0 by default. `null`: the batch's rows share the leaf. */
export type BatchAxes = Readonly<Record<string, number | null>>;

/** Axis where rows may differ in length, and the element that pads shorter rows. */
export interface VariableAxis {
  readonly axis: number;
  readonly padWith?: Fill | undefined;
}

export type VariableAxes = Readonly<Record<string, VariableAxis>>;

export interface LeafTemplate extends Omit<Leaf, 'tensor'> {
  readonly type: Tensor.Type;
  /** First item's shape. */
  readonly dims: readonly number[];
  readonly axis: number | null;
  readonly variable?: VariableAxis | undefined;
}

/**
 * Two templates have the same `signature` exactly when their rows can share a batch: same names,
 * element types, axes and inner shapes (except variable axes), and equal values in shared leaves.
 */
export class Template {
  readonly leafWithRows: number | undefined;

  constructor(
    private readonly structure: Structure,
    readonly leaves: readonly LeafTemplate[],
    readonly signature: string,
  ) {
    const leaf = leaves.findIndex(({ axis }) => axis !== null);
    this.leafWithRows = leaf < 0 ? undefined : leaf;
  }

  get axes(): readonly (number | null)[] {
    return this.leaves.map(({ axis }) => axis);
  }

  with(tensors: readonly Tensor[]): FlatContainer {
    return new FlatContainer(
      this.structure,
      this.leaves.map(({ path, label }, i) => ({ path, label, tensor: tensors[i]! })),
    );
  }

  /**
   * The tensors in the leaves' order. Undefined unless the value is a tensor or map of tensors with
   * these names.
   *
   * @throws InvalidBatchError for an invalid tensor
   */
  tensorsIn(value: object): readonly Tensor[] | undefined {
    const { structure } = this;
    if (typeof structure === 'number') {
      return isTensor(value) ? [checkTensor(value)] : undefined;
    }
    const { names, parts } = structure;
    if (!names || !isPlainObject(value) || Object.keys(value).length !== names.length) {
      return undefined;
    }
    const tensors: Tensor[] = [];
    for (let i = 0; i < names.length; i++) {
      const name = names[i]!;
      const isOwn = Object.prototype.propertyIsEnumerable.call(value, name);
      const tensor = isOwn ? (value as Record<string, unknown>)[name] : undefined;
      if (parts[i] !== i || !isTensor(tensor)) {
        return undefined;
      }
      tensors.push(checkTensor(tensor, this.leaves[i]!.path));
    }
    return tensors;
  }

  /**
   * Undefined for another template. Compares no signatures, whose text would take most of a call's
   * time.
   */
  rowsIn({ leaves }: FlatContainer): number | undefined {
    let rows: number | undefined;
    for (let i = 0; i < leaves.length; i++) {
      const { label, tensor } = leaves[i]!;
      const known = this.leaves[i];
      if (
        known?.label !== label ||
        known.axis === null ||
        tensor.size === 0 ||
        !isAlike(tensor, known) ||
        (rows ??= tensor.dims[known.axis]) !== tensor.dims[known.axis]
      ) {
        return undefined;
      }
    }
    return leaves.length === this.leaves.length ? rows : undefined;
  }
}

function isAlike({ type, dims }: Tensor, known: LeafTemplate): boolean {
  if (type !== known.type || dims.length !== known.dims.length) {
    return false;
  }
  for (let axis = 0; axis < dims.length; axis++) {
    if (dims[axis] !== known.dims[axis] && axis !== known.axis) {
      return false;
    }
  }
  return true;
}

/** Limited, because they are in each request's signature. */
const MAX_SHARED_ELEMENTS = 1024;

/** Empty rows cost the caller nothing, but the serving time. */
const MAX_EMPTY_ROWS = 65_536;

/** Callers choose signatures, and servings keep them. */
const MAX_SIGNATURE_LENGTH = 32_768;

/** Leaves without rows have the same value, or only type and shape. */
export type SharedLeaves = 'equal' | 'alike';

/** A container without a batch axis is one row, which runs alone. */
export function templateOf(
  { structure, leaves }: FlatContainer,
  axes: BatchAxes = {},
  shared: SharedLeaves = 'equal',
  variable: VariableAxes = {},
): { template: Template; rows: number } {
  const leafAxes = leaves.map(({ path }) => axisOf(path, axes));
  const isWhole = leafAxes.every((axis) => axis === null);
  const rows = isWhole ? 1 : countRows(leaves, leafAxes);
  if (
    rows > MAX_EMPTY_ROWS &&
    leaves.every(({ tensor }, i) => leafAxes[i] === null || tensor.size === 0)
  ) {
    throw new InvalidBatchError(
      `An item has ${rows} rows and no elements; at most ${MAX_EMPTY_ROWS} rows may be empty`,
    );
  }
  const signature = leaves
    .map((leaf, i) =>
      describe(leaf, leafAxes[i]!, isWhole ? 'alike' : shared, variableOf(leaf.path, variable)),
    )
    .join(', ');
  if (signature.length > MAX_SIGNATURE_LENGTH) {
    throw new InvalidBatchError(
      `The signature of an item has ${signature.length} characters, and at most ` +
        `${MAX_SIGNATURE_LENGTH} are allowed: ${truncate(signature)}`,
    );
  }
  const known = leaves.map(({ path, label, tensor: { type, dims } }, i) => ({
    path,
    label,
    type,
    dims,
    axis: leafAxes[i]!,
    variable: variableOf(path, variable),
  }));
  return { template: new Template(structure, known, signature), rows };
}

export function axisOf(path: string, axes: BatchAxes): number | null {
  return Object.hasOwn(axes, path) ? axes[path]! : 0;
}

function variableOf(path: string, variable: VariableAxes): VariableAxis | undefined {
  return Object.hasOwn(variable, path) ? variable[path] : undefined;
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
        `${describePath(path)} has the shape [${tensor.dims.join(', ')}] and so no axis ` +
          `${axis} to count rows on; give it that axis (a scalar can be stacked, not concatenated)`,
      );
    }
    if (first && rows !== first.rows) {
      throw new InvalidBatchError(
        `Uneven rows: ${describePath(first.path)} has ${first.rows}, ${describePath(path)} has ` +
          `${rows}; all leaves of one item need the same number`,
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
  variable?: VariableAxis,
): string {
  const name = label === '' ? '' : `${label}: `;
  if (axis !== null) {
    const inner = tensor.dims.map((dim, i) =>
      i === axis ? 'rows' : i === variable?.axis ? '*' : dim,
    );
    return `${name}${tensor.type}[${inner.join(', ')}]`;
  }
  const type = `${name}${tensor.type}[${tensor.dims.join(', ')}]`;
  if (shared === 'alike') {
    return type;
  }
  if (tensor.size > MAX_SHARED_ELEMENTS) {
    throw new InvalidBatchError(
      `${describePath(path)} is shared by the rows of a batch and has ${tensor.size} elements; ` +
        `at most ${MAX_SHARED_ELEMENTS} are allowed, since rows are grouped by its value`,
    );
  }
  const value = JSON.stringify(
    Array.from(tensor.data as ArrayLike<unknown>, (element) =>
      Object.is(element, -0) ? '-0' : String(element),
    ),
  );
  return `${type} = ${value}`;
}
