import type { Tensor } from 'onnxruntime-common';
import { Batch } from './batch.js';
import { type Container, type FlatContainer, flatten, type Leaf } from './container.js';
import { InvalidBatchError, InvalidInputError, InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import { type Fill, resize } from './resize.js';

/** The options of {@link lengthBuckets}. */
export interface LengthBucketsOptions {
  /**
   * Rows longer than the largest bucket are refused, or truncated to its length.
   *
   * @default 'refuse'
   */
  readonly tooLong?: 'refuse' | 'truncate';
}

/** The axis that counts as length, and the padding elements. */
export interface PaddingOptions {
  /**
   * The axis of the length; a negative one counts from the end. Leaves without this axis, and those
   * where it is axis 0, are not padded.
   *
   * @default -1
   */
  readonly axis?: number;
  /**
   * The padding element of each leaf, as the data of the tensor stores it, by path; the path of a
   * bare tensor is empty. Leaves without an entry are padded with zeros, or empty strings.
   *
   * @default {}
   */
  readonly fill?: Readonly<Record<string, Fill>>;
}

/** A length that rows are padded to, and the batch key of rows of this length. */
export interface LengthBucket {
  /** The batch key: the length as text. */
  readonly key: string;
  /** The length that rows are padded to. */
  readonly length: number;
}

/** Lanes for rows of similar length: each row is padded to the smallest bucket that holds it. */
export class LengthBuckets {
  /** The keys of the buckets, for `batchKeys` of the serving. */
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
   * The smallest bucket for rows of that length, for callers that make tensors in their final
   * length.
   *
   * @throws InvalidInputError when they are too long and `tooLong` is 'refuse'
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
          `shorten the input, add a larger bucket, or set tooLong: 'truncate'`,
      );
    }
    return bucket ?? this.largest;
  }

  /**
   * The rows of the item, on axis 0, padded or truncated to the length of their bucket, with the
   * key of the bucket.
   *
   * @throws InvalidBatchError when the leaves differ in length
   * @throws InvalidInputError when they are too long and `tooLong` is 'refuse'
   */
  batch(item: Container, { axis = -1, fill = {} }: PaddingOptions = {}): Batch {
    const rows = rowsOf(item);
    const { leaves } = rows;
    const fills = new Map(Object.entries(fill));
    const axes = leaves.map(({ tensor }) => axisIn(tensor, axis));
    const { key, length } = this.fit(commonLength(leaves, axes, axis));
    checkNames(fills, leaves);

    const padded = leaves.map((leaf, i) => {
      const at = axes[i];
      return at === undefined ? leaf.tensor : resize(leaf, at, length, fills.get(leaf.path));
    });
    return Batch.ofContainer(rows.with(padded)).withKey(key);
  }
}

/**
 * Buckets of these lengths, the smallest first.
 *
 * @throws InvalidServingError for a length that is not allowed
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

function rowsOf(item: Container): FlatContainer {
  const rows = flatten(Batch.concatenate([item]).release());
  if (!rows) {
    throw new InvalidBatchError(
      'Plain values have no length to pad; give a tensor or a container of tensors',
    );
  }
  return rows;
}

/** The axis of the length in this leaf, if it has one; axis 0 counts rows. */
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
