import type { Tensor } from 'onnxruntime-common';
import { InvalidBatchError } from '../errors.js';
import type { FlatContainer } from './container.js';
import type { Rows } from './list-rows.js';
import { type BatchAxes, type SharedLeaves, Template, templateOf } from './template.js';
import { blankLike, bytesOf, copyOf, copyRows, isIntact, rowsOf, zerosLike } from './tensor.js';

/** Consecutive rows in the leaves of one item. */
interface Chunk {
  readonly leaves: readonly Tensor[];
  readonly start: number;
  readonly count: number;
}

/** Rows that are tensors or containers of tensors: references to rows of the given items. */
export class TensorRows implements Rows {
  readonly size: number;
  /** The first row of each chunk; made for the first slice. */
  private starts: Uint32Array | undefined;

  private constructor(
    readonly template: Template,
    private readonly chunks: readonly Chunk[],
  ) {
    this.size = chunks.reduce((size, { count }) => size + count, 0);
  }

  /** The rows on the batch axes of one item. */
  static of(item: FlatContainer, axes?: BatchAxes, shared?: SharedLeaves): TensorRows {
    const { template, rows } = templateOf(item, axes, shared);
    const leaves = template.leaves.map(({ tensor }) => tensor);
    return new TensorRows(template, [{ leaves, start: 0, count: rows }]);
  }

  get signature(): string {
    return this.template.signature;
  }

  get isIntact(): boolean {
    return this.chunks.every(({ leaves }) => leaves.every(isIntact));
  }

  get bytes(): number {
    const { axes } = this.template;
    const bytesOfLeaf = (tensor: Tensor, leaf: number, rows: number): number => {
      const axis = axes[leaf]!;
      return axis === null || rows === tensor.dims[axis]
        ? bytesOf(tensor)
        : (bytesOf(tensor) * rows) / tensor.dims[axis]!;
    };
    return this.chunks.reduce(
      (sum, { leaves, count }) =>
        leaves.reduce((bytes, tensor, leaf) => bytes + bytesOfLeaf(tensor, leaf, count), sum),
      0,
    );
  }

  slice(start: number, end: number): TensorRows {
    if (start === 0 && end >= this.size) {
      return this;
    }
    const chunks: Chunk[] = [];
    const last = Math.min(end, this.size);
    for (let at = this.chunkAt(start), from = start; from < last; at++) {
      const chunk = this.chunks[at]!;
      const offset = from - this.starts![at]!;
      const count = Math.min(chunk.count - offset, last - from);
      chunks.push({ leaves: chunk.leaves, start: chunk.start + offset, count });
      from += count;
    }
    return new TensorRows(this.template, chunks);
  }

  concat(others: readonly TensorRows[]): TensorRows {
    if (others.length > 0 && this.isWhole) {
      throw new InvalidBatchError(
        'An item without a batch axis runs alone, and cannot be merged with others',
      );
    }
    const chunks = [...this.chunks];
    for (const other of others) {
      for (const chunk of other.chunks) {
        chunks.push(chunk);
      }
    }
    return new TensorRows(this.template, chunks);
  }

  gather(padding: number): FlatContainer {
    const { leaves, axes } = this.template;
    return this.template.with(
      leaves.map(({ tensor }, leaf) => this.gatherLeaf(leaf, tensor, axes[leaf]!, padding)),
    );
  }

  copy(): TensorRows {
    const { structure, signature, axes } = this.template;
    const { leaves } = this.gather(0);
    const chunk = { leaves: leaves.map(({ tensor }) => tensor), start: 0, count: this.size };
    return new TensorRows(new Template(structure, leaves, signature, axes), [chunk]);
  }

  release(): FlatContainer {
    const [chunk, ...others] = this.chunks;
    const isWholeItem =
      chunk && others.length === 0 && chunk.start === 0 && chunk.count === this.rowsIn(chunk);
    return isWholeItem ? this.template.with(chunk.leaves) : this.gather(0);
  }

  view(): FlatContainer {
    const [chunk, ...others] = this.chunks;
    const { axes } = this.template;
    if (!chunk || others.length > 0 || axes.some((axis) => axis !== 0 && axis !== null)) {
      return this.release();
    }
    const { leaves, start, count } = chunk;
    return this.template.with(
      leaves.map((tensor, leaf) => (axes[leaf] === 0 ? rowsOf(tensor, start, count) : tensor)),
    );
  }

  /**
   * The index of the chunk with the row, by binary search: a batch of many items has many chunks,
   * and may be cut into as many slices.
   */
  private chunkAt(row: number): number {
    const starts = (this.starts ??= startsOf(this.chunks));
    let low = 0;
    for (let high = starts.length - 1; low < high;) {
      const middle = (low + high + 1) >>> 1;
      if (starts[middle]! <= row) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  private gatherLeaf(leaf: number, like: Tensor, axis: number | null, padding: number): Tensor {
    if (axis === null) {
      return copyOf(like);
    }
    const dims = like.dims.with(axis, this.size + padding);
    const isFilled = padding === 0 && this.chunks.every(({ leaves }) => isIntact(leaves[leaf]!));
    const target = isFilled ? blankLike(like, dims) : zerosLike(like, dims);
    let at = 0;
    for (const { leaves, start, count } of this.chunks) {
      copyRows(target, at, leaves[leaf]!, start, count, axis);
      at += count;
    }
    return target;
  }

  /** True when its one row is an item without a batch axis. */
  get isWhole(): boolean {
    return this.template.axes.every((axis) => axis === null);
  }

  private rowsIn({ leaves }: Chunk): number | undefined {
    if (this.isWhole) {
      return this.size;
    }
    const leaf = this.template.axes.findIndex((axis) => axis !== null);
    return leaves[leaf]?.dims[this.template.axes[leaf]!];
  }
}

function startsOf(chunks: readonly Chunk[]): Uint32Array {
  const starts = new Uint32Array(chunks.length);
  chunks.forEach(({ count }, i) => (starts[i + 1] = starts[i]! + count));
  return starts;
}
