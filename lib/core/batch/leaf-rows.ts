import type { Tensor } from 'onnxruntime-common';
import { filledTensor } from './resize.js';
import type { LeafTemplate } from './template.js';
import {
  asBytes,
  blankOf,
  bytesOfNumbers,
  copyOf,
  copyOfRows,
  copyPadded,
  copyRows,
  type Elements,
  elementSize,
  isIntact,
} from './tensor.js';

/** Consecutive rows in the leaves of one item. */
export interface Chunk {
  readonly leaves: readonly Tensor[];
  readonly start: number;
  readonly count: number;
}

/** The tensor that the rows of a batch make at one leaf. Its shape is known before a row is copied. */
export class LeafRows {
  readonly dims: readonly number[];
  /** Whether the rows have every element of the tensor; others get the element of padding. */
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

  /** The tensor in storage of its own. */
  gather(): Tensor {
    const { chunks, dims, isFilled, leaf, type } = this;
    const { axis, variable } = this.template;
    const [first, ...others] = chunks;
    if (axis === null) {
      return copyOf(first!.leaves[leaf]!);
    }
    if (isFilled && axis === 0 && others.length === 0) {
      return copyOfRows(first!.leaves[leaf]!, first!.start, first!.count);
    }
    const target = isFilled ? blankOf(type, dims) : filledTensor(type, dims, variable?.padWith);
    this.copyTo(target, (tensor) => tensor, axis);
    return target;
  }

  /** Copies the numbers of the tensor to these bytes, which need no alignment. */
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
