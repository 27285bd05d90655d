import { InvalidBatchError } from '../errors.js';
import { type Container, isContainer, leavesOf, withLeaves } from './container.js';
import { asRow, copyRows, isTensor, zerosLike } from './tensor.js';
import { type BatchAxes, type Template, templateOf } from './template.js';
import type { Tensor } from 'onnxruntime-common';

/** The key of rows that name none. */
export const DEFAULT_KEY = 'default';

/** A run of rows inside one source: leaves that hold them on their batch axes, or a list of plain values. */
interface Chunk {
  readonly source: readonly Tensor[] | readonly unknown[];
  readonly start: number;
  readonly count: number;
}

/** What all batches of plain values have in common: nothing but being plain. */
const PLAIN: Template = { signature: 'plain values', structure: [], axes: [] };

/**
 * Rows that run together: an immutable value, after Nx.Batch.
 *
 * Nothing is copied until {@link consume}: a batch only remembers which rows of which sources it is made of.
 */
export class Batch {
  /** The lane the rows batch in. */
  readonly key: string;
  /** The number of rows, padding not counted. */
  readonly size: number;
  /** The number of zero rows that {@link consume} adds at the end. */
  readonly padding: number;

  private constructor(
    private readonly template: Template | null,
    private readonly chunks: readonly Chunk[],
    { key = DEFAULT_KEY, padding = 0 }: { key?: string | undefined; padding?: number } = {},
  ) {
    this.key = key;
    this.padding = padding;
    this.size = chunks.reduce((size, { count }) => size + count, 0);
  }

  /** A batch without rows, to be extended. */
  static empty(): Batch {
    return new Batch(null, []);
  }

  /** Each item becomes one row: a plain value, or a tensor or container whose leaves gain an axis. */
  static stack(items: readonly unknown[]): Batch {
    return Batch.empty().stack(items);
  }

  /** The rows of each item count: axis 0 of its tensors (`axes` for others), or the elements of a list of plain values. */
  static concatenate(items: readonly unknown[], axes?: BatchAxes): Batch {
    return Batch.empty().concatenate(items, axes);
  }

  /** All rows in the order of the batches; sizes and paddings add up. The batches must agree in key and template. */
  static merge(batches: readonly Batch[]): Batch {
    const [first] = batches;
    const template = batches.find((batch) => batch.template)?.template ?? null;
    for (const batch of batches) {
      if (batch.key !== first?.key) {
        throw new InvalidBatchError(`Cannot merge batches of different keys: "${first?.key}" and "${batch.key}"`);
      }
      if (batch.template && batch.template.signature !== template?.signature) {
        throw new InvalidBatchError(
          `Cannot merge rows of different templates: [${template?.signature}] and [${batch.template.signature}]`,
        );
      }
    }
    const chunks = batches.flatMap((batch) => batch.chunks);
    const padding = batches.reduce((sum, batch) => sum + batch.padding, 0);
    return new Batch(template, chunks, { key: first?.key, padding });
  }

  /** This batch with each item as one more row. */
  stack(items: readonly unknown[]): Batch {
    if (items.length > 0 && !items.some(isContainer)) {
      return this.extend([this.fromList([...items])]);
    }
    const rows = items.map((item) => {
      if (!isContainer(item)) {
        return this.fromList([item]);
      }
      const leaves = leavesOf(item).map(({ tensor }) => asRow(tensor));
      return this.fromContainer(withLeaves(item, leaves), {});
    });
    return this.extend(rows);
  }

  /** This batch with the rows of each item added. */
  concatenate(items: readonly unknown[], axes: BatchAxes = {}): Batch {
    const batches = items.map((item) => {
      if (isContainer(item)) {
        return this.fromContainer(item, axes);
      }
      if (Array.isArray(item)) {
        return this.fromList([...item]);
      }
      throw new InvalidBatchError(
        `Cannot concatenate ${describe(item)}: it has no rows; give tensors with a leading axis or lists, or stack it as one row`,
      );
    });
    return this.extend(batches);
  }

  /** This batch followed by the rows of the other; both paddings go to the end. */
  merge(other: Batch): Batch {
    return Batch.merge([this, other]);
  }

  /** The same rows in another lane. */
  withKey(key: string): Batch {
    return new Batch(this.template, this.chunks, { key, padding: this.padding });
  }

  /** The same rows with `count` zero rows at the end of what {@link consume} gives; replaces an earlier padding. */
  pad(count: number): Batch {
    if (!Number.isInteger(count) || count < 0) {
      throw new InvalidBatchError(`Cannot pad with ${count} rows; give a whole number of 0 or more`);
    }
    if (count > 0 && this.template === PLAIN) {
      throw new InvalidBatchError('Cannot pad plain values: there is no zero row of an unknown kind; pad tensors');
    }
    return new Batch(this.template, this.chunks, { key: this.key, padding: count });
  }

  /**
   * The first `count` rows and the rest.
   *
   * All padding goes with the rest; but when the rows do not reach `count`, padding fills the first half up to it.
   */
  split(count: number): [Batch, Batch] {
    if (!Number.isInteger(count) || count < 1) {
      throw new InvalidBatchError(`Cannot split after ${count} rows; give a whole number of 1 or more`);
    }
    const first = this.slice(0, Math.min(count, this.size));
    const rest = this.slice(first.size, this.size);
    const filling = Math.min(this.padding, count - first.size);
    return [first.withPadding(filling), rest.withPadding(this.padding - filling)];
  }

  /** The rows from `start` up to and without `end`; the padding stays with the last row. */
  slice(start: number, end: number): Batch {
    const chunks: Chunk[] = [];
    let offset = 0;
    for (const chunk of this.chunks) {
      const from = Math.max(start, offset);
      const to = Math.min(end, offset + chunk.count);
      if (from < to) {
        chunks.push({ source: chunk.source, start: chunk.start + from - offset, count: to - from });
      }
      offset += chunk.count;
    }
    return new Batch(this.template, chunks, { key: this.key, padding: end >= this.size ? this.padding : 0 });
  }

  /** Consecutive pieces of at most `size` rows. */
  chunksOf(size: number): Batch[] {
    const pieces: Batch[] = [];
    for (let start = 0; start < this.size; start += size) {
      pieces.push(this.slice(start, Math.min(start + size, this.size)));
    }
    return pieces;
  }

  /** What rows must share to run in one batch, in words: element types, inner shapes and names. */
  get signature(): string {
    return this.template?.signature ?? 'no rows';
  }

  /** True when the rows are plain values and not tensors. */
  get isPlain(): boolean {
    return this.template === PLAIN;
  }

  /** The structure of the items, with the tensors of one of them as examples; undefined for plain values. */
  get structure(): Container | undefined {
    return this.template === PLAIN ? undefined : this.template?.structure;
  }

  /** The batch axis of each leaf, in the order of `leavesOf`. */
  get axes(): readonly (number | null)[] {
    return this.template?.axes ?? [];
  }

  /**
   * All rows in storage of their own: a container with `size + padding` rows on its batch axes, or a list of plain values.
   *
   * This is the one copy that a row makes on its way into a batch, and the one on its way out.
   */
  consume(): Container | unknown[] {
    if (!this.template || this.size + this.padding === 0) {
      throw new InvalidBatchError('Cannot consume a batch without rows');
    }
    if (this.template === PLAIN) {
      return this.chunks.flatMap(({ source, start, count }) => source.slice(start, start + count));
    }
    const { structure, axes } = this.template;
    return withLeaves(
      structure,
      leavesOf(structure).map(({ tensor }, leaf) => this.gather(leaf, tensor, axes[leaf]!)),
    );
  }

  /** As {@link consume}, but without a copy where the batch is the whole of one source, which then belongs to the taker. */
  release(): Container | unknown[] {
    const [chunk, ...others] = this.chunks;
    if (this.template && chunk && others.length === 0 && this.padding === 0 && this.isWhole(chunk)) {
      return this.isPlain ? (chunk.source as unknown[]) : withLeaves(this.template.structure, chunk.source as Tensor[]);
    }
    return this.consume();
  }

  private gather(leaf: number, like: Tensor, axis: number | null): Tensor {
    if (axis === null) {
      return like;
    }
    const dims = like.dims.with(axis, this.size + this.padding);
    const target = zerosLike(like, dims);
    let at = 0;
    for (const { source, start, count } of this.chunks) {
      copyRows(target, at, source[leaf] as Tensor, start, count, axis);
      at += count;
    }
    return target;
  }

  private isWhole({ source, start, count }: Chunk): boolean {
    if (start !== 0) {
      return false;
    }
    const leaf = this.axes.findIndex((axis) => axis !== null);
    const rows = leaf < 0 ? source.length : (source[leaf] as Tensor).dims[this.axes[leaf]!];
    return rows === count;
  }

  private fromContainer(container: Container, axes: BatchAxes): Batch {
    const { template, rows } = templateOf(container, axes);
    const source = leavesOf(container).map(({ tensor }) => tensor);
    return new Batch(template, [{ source, start: 0, count: rows }], { key: this.key });
  }

  private fromList(source: readonly unknown[]): Batch {
    return new Batch(PLAIN, [{ source, start: 0, count: source.length }], { key: this.key });
  }

  private extend(batches: readonly Batch[]): Batch {
    if (batches.length === 0) {
      throw new InvalidBatchError('An empty list has no rows; give at least one item');
    }
    return Batch.merge([this, ...batches]);
  }

  private withPadding(padding: number): Batch {
    return new Batch(this.template, this.chunks, { key: this.key, padding });
  }
}

function describe(value: unknown): string {
  if (isTensor(value)) {
    return `a ${value.type} tensor of shape [${value.dims.join(', ')}]`;
  }
  return value === null ? 'null' : `a ${typeof value}`;
}
