import type { Tensor } from 'onnxruntime-common';
import { Batch } from './batch.js';
import type { Container, Leaf } from './container.js';
import { type Fill, resize } from './resize.js';
import type { Template } from './template.js';
import { InvalidBatchError, InvalidInputError, InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';

export interface LengthBucketsOptions {
  /**
   * What becomes of rows longer than the largest bucket: they are refused, or lose what is beyond
   * it.
   *
   * @default 'refuse'
   */
  readonly tooLong?: 'refuse' | 'truncate';
}

/** Where the length of an item lies, and what fills it up. */
export interface PaddingOptions {
  /**
   * The axis of the length; a negative one counts from the end. Leaves that have no such axis
   * behind the rows stay as they are.
   *
   * @default -1
   */
  readonly axis?: number;
  /**
   * The element that fills up a leaf, as the tensor's data holds it; by path, which of a bare
   * tensor is empty.
   *
   * @default {} zeros, or empty strings
   */
  readonly fill?: Readonly<Record<string, Fill>>;
}

/** A length that rows are padded to, and the batch key of the rows that have it. */
export interface LengthBucket {
  readonly key: string;
  readonly length: number;
}

/** Lanes for rows of similar length: each row is padded to the smallest bucket that holds it. */
export class LengthBuckets {
  /** What `batchKeys` of the serving must be. */
  readonly keys: readonly string[];
  private readonly buckets: readonly LengthBucket[];
  private readonly largest: LengthBucket;

  constructor(
    lengths: readonly number[],
    private readonly tooLong: NonNullable<LengthBucketsOptions['tooLong']>,
  ) {
    this.buckets = lengths.map((length) => ({ key: String(length), length }));
    this.keys = this.buckets.map(({ key }) => key);
    this.largest = this.buckets.at(-1)!;
  }

  /**
   * The smallest bucket for rows of that length: for callers who make the tensor in its final
   * length at once.
   *
   * @throws InvalidInputError when they are too long, unless that is to be truncated
   */
  fit(length: number): LengthBucket {
    if (!Number.isInteger(length) || length < 0) {
      throw new InvalidInputError(
        `${formatValue(length)} is no length; give a whole number of 0 or more`,
      );
    }
    const bucket = this.buckets.find((candidate) => length <= candidate.length);
    if (!bucket && this.tooLong === 'refuse') {
      throw new InvalidInputError(
        `A length of ${length} is more than the largest bucket, ${this.largest.length}; ` +
          `shorten the input, add a larger bucket, or have it cut with tooLong: 'truncate'`,
      );
    }
    return bucket ?? this.largest;
  }

  /**
   * The rows of the item, which lie on axis 0, padded or truncated to their bucket and with its
   * key.
   *
   * @throws InvalidBatchError when the leaves differ in length
   * @throws InvalidInputError when they are too long, unless that is to be truncated
   */
  batch(item: Container, { axis = -1, fill = {} }: PaddingOptions = {}): Batch {
    const template = templateOf(item);
    const { leaves } = template;
    const fills = new Map(Object.entries(fill));
    const axes = leaves.map(({ tensor }) => axisIn(tensor, axis));
    const { key, length } = this.fit(commonLength(leaves, axes, axis));
    checkNames(fills, leaves);

    const padded = leaves.map((leaf, i) => {
      const at = axes[i];
      return at === undefined ? leaf.tensor : resize(leaf, at, length, fills.get(leaf.path));
    });
    return Batch.ofContainer(template.with(padded)).withKey(key);
  }
}

/**
 * Buckets of these lengths, the smallest first.
 *
 * @throws InvalidServingError naming the value that cannot be
 */
export function lengthBuckets(
  lengths: readonly number[],
  { tooLong = 'refuse' }: LengthBucketsOptions = {},
): LengthBuckets {
  const wrong = lengths.findIndex(
    (length, i) => !Number.isSafeInteger(length) || length <= (lengths[i - 1] ?? 0),
  );
  if (wrong >= 0 || lengths.length === 0) {
    const reason =
      wrong >= 0 ? `${formatValue(lengths[wrong])} cannot stand at ${wrong}` : 'there is none';
    throw new InvalidServingError(
      `Length buckets ${formatValue(lengths)}: ${reason}; give whole numbers above 0, each ` +
        'larger than the one before',
    );
  }
  if (tooLong !== 'refuse' && tooLong !== 'truncate') {
    throw new InvalidServingError(
      `Length buckets with tooLong: ${formatValue(tooLong)}; give 'refuse' or 'truncate'`,
    );
  }
  return new LengthBuckets(lengths, tooLong);
}

function templateOf(item: Container): Template {
  const { template } = Batch.concatenate([item]);
  if (!template) {
    throw new InvalidBatchError(
      'Plain values have no length to pad; give a tensor or a container of tensors',
    );
  }
  return template;
}

/** Where the leaf has its length: never on axis 0, which counts rows. */
function axisIn({ dims }: Tensor, axis: number): number | undefined {
  const index = axis < 0 ? dims.length + axis : axis;
  return index > 0 && dims[index] !== undefined ? index : undefined;
}

function commonLength(
  leaves: readonly Leaf[],
  axes: readonly (number | undefined)[],
  axis: number,
): number {
  const measured = leaves.flatMap(({ path, tensor }, i) => {
    const at = axes[i];
    return at === undefined ? [] : [{ path, length: tensor.dims[at]! }];
  });
  const [first] = measured;
  if (!first) {
    throw new InvalidBatchError(
      `No leaf has a length on axis ${axis}; axis 0 counts rows, so give at least one leaf ` +
        'another axis',
    );
  }
  const other = measured.find(({ length }) => length !== first.length);
  if (other) {
    throw new InvalidBatchError(
      `Uneven lengths: "${first.path}" has ${first.length} on axis ${axis}, "${other.path}" has ` +
        `${other.length}; ` +
        'all leaves that have this axis need the same',
    );
  }
  return first.length;
}

function checkNames(fills: ReadonlyMap<string, Fill>, leaves: readonly Leaf[]): void {
  const unknown = [...fills.keys()].find((name) => leaves.every(({ path }) => path !== name));
  if (unknown !== undefined) {
    throw new InvalidBatchError(
      `There is no leaf "${unknown}" to fill; there are: ` +
        leaves.map(({ path }) => `"${path}"`).join(', '),
    );
  }
}
