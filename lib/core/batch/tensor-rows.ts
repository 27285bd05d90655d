import type { Tensor } from 'onnxruntime-common';
import { InvalidBatchError } from '../errors.js';
import type { FlatContainer, FlatRows } from './container.js';
import {
  asBytes,
  blankOf,
  bytesOf,
  bytesOfNumbers,
  copyOf,
  copyOfRows,
  copyPadded,
  copyRows,
  type Elements,
  elementSize,
  filledTensor,
  isIntact,
  type MemoryOf,
  resize,
  rowsOf,
} from './tensor.js';
import {
  type BatchAxes,
  type LeafTemplate,
  type SharedLeaves,
  type Template,
  templateOf,
  type VariableAxes,
} from './template.js';

export class ListRows implements Rows {
  readonly signature = 'plain values';
  readonly isIntact = true;
  readonly bytes = 0;

  constructor(readonly values: readonly unknown[]) {}

  get size(): number {
    return this.values.length;
  }

  slice(start: number, end: number): ListRows {
    return start === 0 && end >= this.size ? this : new ListRows(this.values.slice(start, end));
  }

  join(all: readonly ListRows[]): ListRows {
    const values: unknown[] = [];
    for (const rows of all) {
      for (const value of rows.values) {
        values.push(value);
      }
    }
    return new ListRows(values);
  }

  gather(): unknown[] {
    return [...this.values];
  }

  copy(): this {
    return this;
  }

  release(): unknown[] {
    return this.values as unknown[];
  }

  view(): unknown[] {
    return this.release();
  }
}

/** Rows are copied only when gathered. */
export interface Rows {
  readonly size: number;
  readonly signature: string;
  readonly isIntact: boolean;
  readonly bytes: number;
  slice(start: number, end: number): Rows;
  /** These rows are the first. */
  join(all: readonly Rows[]): Rows;
  /** Adds `padding` zero rows. */
  gather(padding: number, memoryOf?: MemoryOf): FlatRows;
  copy(): Rows;
  /** Copies nothing if the rows are one whole item. */
  release(): FlatRows;
  /** Like release, but may return views of shared memory; copy before the next tick. */
  view(): FlatRows;
}

interface Chunk {
  readonly leaves: readonly Tensor[];
  readonly start: number;
  readonly count: number;
}

/** One leaf's tensor for all rows; its shape is known before they are copied. */
export class LeafRows {
  readonly dims: readonly number[];
  /** True if no element is padding. */
  private readonly isFilled: boolean;

  constructor(
    private readonly template: LeafTemplate,
    private readonly leaf: number,
    private readonly chunks: readonly Chunk[],
    size: number,
    padding: number,
  ) {
    const { axis, dims, variable } = template;
    const isWhole = chunks.every(({ leaves }) => isIntact(leaves[leaf]!));
    if (axis === null) {
      this.dims = chunks[0]!.leaves[leaf]!.dims;
      this.isFilled = isWhole;
      return;
    }
    const whole = [...dims];
    whole[axis] = size + padding;
    const lengths = variable && chunks.map(({ leaves }) => leaves[leaf]!.dims[variable.axis]!);
    if (lengths) {
      whole[variable.axis] = lengths.reduce((longest, length) => Math.max(longest, length), 0);
    }
    this.dims = whole;
    this.isFilled =
      isWhole && padding === 0 && !lengths?.some((length) => length < whole[variable!.axis]!);
  }

  get path(): string {
    return this.template.path;
  }

  get type(): Tensor.Type {
    return this.template.type;
  }

  gather(memoryOf?: MemoryOf): Tensor {
    const { chunks, dims, isFilled, leaf, type } = this;
    const { axis, variable } = this.template;
    const [first, ...others] = chunks;
    if (axis === null) {
      return copyOf(first!.leaves[leaf]!);
    }
    if (isFilled && axis === 0 && others.length === 0 && !memoryOf) {
      return copyOfRows(first!.leaves[leaf]!, first!.start, first!.count);
    }
    const target = isFilled
      ? blankOf(type, dims, memoryOf)
      : filledTensor(type, dims, variable?.padWith);
    this.copyTo(target, (tensor) => tensor, axis);
    return target;
  }

  /** Writes without alignment. */
  write(bytes: Buffer): void {
    const { chunks, dims, isFilled, leaf, type } = this;
    const { axis, variable } = this.template;
    if (!isFilled) {
      bytes.fill(bytesOfNumbers(filledTensor(type, [1], variable?.padWith).data));
    }
    if (axis === null) {
      bytes.set(bytesOfNumbers(chunks[0]!.leaves[leaf]!.data));
      return;
    }
    this.copyTo({ data: bytes, dims: [...dims, elementSize(type)] }, asBytes, axis);
  }

  private copyTo(target: Elements, elementsOf: (tensor: Tensor) => Elements, axis: number): void {
    const { chunks, isFilled, leaf } = this;
    const { variable } = this.template;
    let at = 0;
    for (const { leaves, start, count } of chunks) {
      const source = elementsOf(leaves[leaf]!);
      if (variable && !isFilled) {
        copyPadded(target, at, source, start, count, axis, variable.axis);
      } else {
        copyRows(target, at, source, start, count, axis);
      }
      at += count;
    }
  }
}

export class TensorRows implements Rows {
  readonly size: number;
  private starts: Uint32Array | undefined;

  private constructor(
    readonly template: Template,
    private readonly chunks: readonly Chunk[],
  ) {
    let size = 0;
    for (const { count } of chunks) {
      size += count;
    }
    this.size = size;
  }

  static of(
    item: FlatContainer,
    axes?: BatchAxes,
    shared?: SharedLeaves,
    known?: Template,
  ): TensorRows {
    const rows = known?.rowsIn(item);
    const { template, rows: count } =
      known && rows !== undefined ? { template: known, rows } : templateOf(item, axes, shared);
    const leaves = item.leaves.map(({ tensor }) => tensor);
    return new TensorRows(template, [{ leaves, start: 0, count }]);
  }

  get signature(): string {
    return this.template.signature;
  }

  vary(variable: VariableAxes, known?: Template): TensorRows {
    const { leaves } = this.template;
    const axes = Object.fromEntries(leaves.map(({ path, axis }) => [path, axis]));
    const item = this.template.with(this.chunks[0]!.leaves);
    const template = known ?? templateOf(item, axes, 'equal', variable).template;
    return new TensorRows(template, this.chunks);
  }

  cut(cuts: Readonly<Record<string, number>>, length: number): TensorRows {
    const { leaves } = this.view();
    const axes = Object.fromEntries(this.template.leaves.map(({ path, axis }) => [path, axis]));
    const tensors = leaves.map((leaf) => {
      const tensor = Object.hasOwn(cuts, leaf.path)
        ? resize(leaf.tensor, cuts[leaf.path]!, length)
        : leaf.tensor;
      return tensor === leaf.tensor ? copyOf(tensor) : tensor;
    });
    return TensorRows.of(this.template.with(tensors), axes, 'alike');
  }

  get isIntact(): boolean {
    for (const { leaves } of this.chunks) {
      if (!leaves.every(isIntact)) {
        return false;
      }
    }
    return true;
  }

  leafWith(character: string): string | undefined {
    return this.template.leaves.find(
      ({ type }, leaf) =>
        type === 'string' &&
        this.chunks.some(({ leaves }) =>
          (leaves[leaf]!.data as string[]).some((text) => text.includes(character)),
        ),
    )?.label;
  }

  get bytes(): number {
    const { leaves: known } = this.template;
    const bytesOfLeaf = (tensor: Tensor, leaf: number, rows: number): number => {
      const { axis } = known[leaf]!;
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
    if (chunks.length === 0 && this.chunks[0]) {
      // Keeps leaves without rows, which padding may follow.
      chunks.push({ ...this.chunks[0], count: 0 });
    }
    return new TensorRows(this.template, chunks);
  }

  join(all: readonly TensorRows[]): TensorRows {
    if (all.length > 1 && this.isWhole) {
      throw new InvalidBatchError(
        'An item without a batch axis runs alone, and cannot be merged with others',
      );
    }
    const chunks: Chunk[] = [];
    for (const rows of all) {
      for (const chunk of rows.chunks) {
        chunks.push(chunk);
      }
    }
    return new TensorRows(this.template, chunks);
  }

  leafRows(padding: number): LeafRows[] {
    return this.template.leaves.map(
      (known, leaf) => new LeafRows(known, leaf, this.chunks, this.size, padding),
    );
  }

  gather(padding: number, memoryOf?: MemoryOf): FlatContainer {
    return this.template.with(this.gatherLeaves(padding, memoryOf));
  }

  copy(): TensorRows {
    return new TensorRows(this.template, [
      { leaves: this.gatherLeaves(0), start: 0, count: this.size },
    ]);
  }

  release(): FlatContainer {
    const [chunk, ...others] = this.chunks;
    const isWholeItem =
      chunk && others.length === 0 && chunk.start === 0 && chunk.count === this.rowsIn(chunk);
    return isWholeItem ? this.template.with(chunk.leaves) : this.gather(0);
  }

  view(): FlatContainer {
    const [chunk, ...others] = this.chunks;
    const known = this.template.leaves;
    if (!chunk || others.length > 0 || known.some(({ axis }) => axis !== 0 && axis !== null)) {
      return this.release();
    }
    const { leaves, start, count } = chunk;
    return this.template.with(
      leaves.map((tensor, leaf) =>
        known[leaf]!.axis === 0 ? rowsOf(tensor, start, count) : tensor,
      ),
    );
  }

  /** Binary search, since a batch may have many chunks and slices. */
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

  private gatherLeaves(padding: number, memoryOf?: MemoryOf): Tensor[] {
    return this.leafRows(padding).map((rows) => rows.gather(memoryOf));
  }

  get isWhole(): boolean {
    return this.template.leafWithRows === undefined;
  }

  private rowsIn({ leaves }: Chunk): number | undefined {
    const { leafWithRows: leaf, leaves: known } = this.template;
    return leaf === undefined ? this.size : leaves[leaf]!.dims[known[leaf]!.axis!];
  }
}

function startsOf(chunks: readonly Chunk[]): Uint32Array {
  const starts = new Uint32Array(chunks.length);
  chunks.forEach(({ count }, i) => (starts[i + 1] = starts[i]! + count));
  return starts;
}
