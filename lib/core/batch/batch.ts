import { InvalidBatchError } from '../errors.js';
import { truncate, formatList, formatValue } from '../format.js';
import { type Container, FlatContainer, type FlatRows, flatten, unreadable } from './container.js';
import { type LeafRows, ListRows, type Rows, TensorRows } from './tensor-rows.js';
import { type MemoryOf, rowOf } from './tensor.js';
import type { BatchAxes, Template, VariableAxes } from './template.js';

/** Key of rows without a key. */
export const DEFAULT_KEY = 'default';

const MAX_ITEMS = 2 ** 24;
const MAX_KEY_LENGTH = 1024;

/**
 * Rows that run together: an immutable value, after Nx.Batch. Nothing is copied until
 * {@link consume}.
 */
export class Batch {
  private constructor(
    private readonly rows: Rows | null,
    /** The rows' lane. */
    readonly key: string = DEFAULT_KEY,
    /** Zero rows that {@link consume} adds. */
    readonly padding: number = 0,
  ) {
    if (padding > 0 && this.isPlain) {
      throw new InvalidBatchError('Cannot pad plain values, which have no zero row; pad tensors');
    }
  }

  /** A batch without rows. */
  static empty(): Batch {
    return new Batch(null);
  }

  /** Makes each item one row: a plain value, or a tensor or container whose leaves gain an axis. */
  static stack(items: readonly unknown[]): Batch {
    return Batch.empty().stack(items);
  }

  /** The items' rows: along axis 0 of tensors (or `axes`), or a list's elements. */
  static concatenate(items: readonly unknown[], axes?: BatchAxes): Batch {
    return Batch.empty().concatenate(items, axes);
  }

  /**
   * One container's rows, or one row without a batch axis. `axes` may name leaves that it lacks;
   * `known` is a template for the same axes, if any.
   */
  static ofContainer(item: Container | FlatContainer, axes?: BatchAxes, known?: Template): Batch {
    return new Batch(TensorRows.of(flattened(item), axes, 'equal', known));
  }

  /** Makes each value one row, unchanged, even a tensor. */
  static ofValues(values: readonly unknown[]): Batch {
    return new Batch(new ListRows(itemsOf(values)));
  }

  /** One value as a row, unchanged. */
  static ofValue(value: unknown): Batch {
    return new Batch(new ListRows([value]));
  }

  /** An output's rows. Leaves without rows go to every caller and may differ in value. */
  static ofOutput(output: Container | FlatContainer, axes?: BatchAxes, known?: Template): Batch {
    return new Batch(TensorRows.of(flattened(output), axes, 'alike', known));
  }

  /** All rows in order; paddings add up. Keys and templates must be equal. */
  static merge(batches: readonly Batch[]): Batch {
    const [batch, ...others] = batches;
    if (!batch || others.length === 0) {
      return batch ?? Batch.empty();
    }
    const rows: Rows[] = [];
    let padding = 0;
    for (const { key, rows: more, padding: morePadding } of batches) {
      if (key !== batch.key) {
        throw new InvalidBatchError(
          `Cannot merge batches of different keys: ${formatValue(batch.key)} and ` +
            formatValue(key),
        );
      }
      if (more && rows[0] && more.signature !== rows[0].signature) {
        throw new InvalidBatchError(
          `Cannot merge rows of different templates: [${truncate(rows[0].signature)}] and ` +
            `[${truncate(more.signature)}]`,
        );
      }
      if (more) {
        rows.push(more);
      }
      padding += morePadding;
    }
    return new Batch(rows[0]?.join(rows) ?? null, batch.key, padding);
  }

  /** The same rows, batchable with other lengths on these axes. */
  vary(variable: VariableAxes, known?: Template): Batch {
    return this.rows instanceof TensorRows
      ? new Batch(this.rows.vary(variable, known), this.key, this.padding)
      : this;
  }

  /** Copies the rows, cut or padded to this length on the axes given by path. */
  cut(cuts: Readonly<Record<string, number>>, length: number): Batch {
    return this.rows instanceof TensorRows
      ? new Batch(this.rows.cut(cuts, length), this.key, this.padding)
      : this;
  }

  /** The number of rows without padding. */
  get size(): number {
    return this.rows?.size ?? 0;
  }

  /** Adds each item as one row. */
  stack(items: readonly unknown[]): Batch {
    const own = itemsOf(items);
    const containers = own.map(flatten);
    if (own.length > 0 && containers.every((item) => item === undefined)) {
      return this.extend([new ListRows(own)]);
    }
    return this.extend(
      containers.map((item, i) => (item ? TensorRows.of(asRow(item)) : new ListRows([own[i]]))),
    );
  }

  /** Adds each item's rows. */
  concatenate(items: readonly unknown[], axes?: BatchAxes): Batch {
    const rows = itemsOf(items).map((item) => {
      const container = flatten(item);
      if (container) {
        checkNames(container, axes);
        return withRows(TensorRows.of(container, axes));
      }
      if (Array.isArray(item)) {
        return new ListRows(itemsOf(item));
      }
      throw new InvalidBatchError(
        `Cannot concatenate ${item === null ? 'null' : `a ${typeof item}`}: it has no rows; give ` +
          'tensors with a leading axis or lists, or stack it as one row',
      );
    });
    return this.extend(rows);
  }

  /** Adds the other's rows; both paddings go to the end. */
  merge(other: Batch): Batch {
    return Batch.merge([this, other]);
  }

  /** The same rows in another lane. */
  withKey(key: string): Batch {
    if (typeof key !== 'string' || key.length > MAX_KEY_LENGTH) {
      throw new InvalidBatchError(
        `The key of a batch is a string of at most ${MAX_KEY_LENGTH} characters, and not ` +
          formatValue(key),
      );
    }
    return new Batch(this.rows, key, this.padding);
  }

  /** The same rows with `count` zero rows at the end, instead of earlier padding. */
  pad(count: number): Batch {
    if (!Number.isInteger(count) || count < 0) {
      throw new InvalidBatchError(
        `Cannot pad with ${formatValue(count)} rows; give a whole number of 0 or more`,
      );
    }
    return new Batch(this.rows, this.key, count);
  }

  /**
   * The first `count` rows and the rest. Padding goes with the rest, except what fills the first
   * part up to `count`.
   */
  split(count: number): [Batch, Batch] {
    if (!Number.isInteger(count) || count < 1) {
      throw new InvalidBatchError(
        `Cannot split after ${formatValue(count)} rows; give a whole number of 1 or more`,
      );
    }
    const middle = Math.min(count, this.size);
    const filling = Math.min(this.padding, count - middle);
    return [
      new Batch(this.rows?.slice(0, middle) ?? null, this.key, filling),
      new Batch(this.rows?.slice(middle, this.size) ?? null, this.key, this.padding - filling),
    ];
  }

  /** Rows from `start` to before `end`; the last row has the padding. */
  slice(start: number, end: number): Batch {
    if (start === 0 && end >= this.size) {
      return this;
    }
    return new Batch(
      this.rows?.slice(start, end) ?? null,
      this.key,
      end >= this.size ? this.padding : 0,
    );
  }

  /** Pieces of at most `size` rows. */
  chunksOf(size: number): Batch[] {
    const pieces: Batch[] = [];
    for (let start = 0; start < this.size; start += size) {
      pieces.push(this.slice(start, Math.min(start + size, this.size)));
    }
    return pieces;
  }

  /** Names, element types and inner shapes, as text. Rows in one batch have the same. */
  get signature(): string {
    return this.rows?.signature ?? 'no rows';
  }

  /** True if the rows are plain values. */
  get isPlain(): boolean {
    return this.rows instanceof ListRows;
  }

  /** The plain values; undefined for tensors. */
  get values(): readonly unknown[] | undefined {
    return this.rows instanceof ListRows ? this.rows.values : undefined;
  }

  /** False if a buffer of the rows was transferred or has shrunk since. */
  get isIntact(): boolean {
    return this.rows?.isIntact ?? true;
  }

  /** Bytes of its tensors, without padding. */
  get bytes(): number {
    return this.rows?.bytes ?? 0;
  }

  /** Label of a string tensor with this character. */
  leafWith(character: string): string | undefined {
    return this.rows instanceof TensorRows ? this.rows.leafWith(character) : undefined;
  }

  /** Structure and batch axes of tensors. */
  get template(): Template | undefined {
    return this.rows instanceof TensorRows ? this.rows.template : undefined;
  }

  /**
   * Copies all rows: a container with `size + padding` rows on its batch axes, or a list of plain
   * values. Rows are copied only here: once on the way into a batch, once on the way out.
   */
  consume(): Container | unknown[] {
    return valueOf(this.gather());
  }

  /** Like {@link consume}, for code that sends the rows on. */
  gather(memoryOf?: MemoryOf): FlatRows {
    return this.filled().gather(this.padding, memoryOf);
  }

  /** The tensors of {@link consume}, to copy to other memory. Undefined for plain values. */
  leafRows(): readonly LeafRows[] | undefined {
    const rows = this.filled();
    return rows instanceof TensorRows ? rows.leafRows(this.padding) : undefined;
  }

  /** Copies tensors and shares plain values. */
  copy(): Batch {
    return new Batch(this.rows?.copy() ?? null, this.key, this.padding);
  }

  /**
   * Like {@link consume}, without padding. A batch of one whole item isn't copied, and belongs to
   * the receiver.
   */
  release(): Container | unknown[] {
    return valueOf(this.filled().release());
  }

  /** Like {@link release}, but may return views of shared memory; copy before the next tick. */
  view(): Container | unknown[] {
    return valueOf(this.filled().view());
  }

  private filled(): Rows {
    if (!this.rows || this.size + this.padding === 0) {
      throw new InvalidBatchError('Cannot consume a batch without rows');
    }
    return this.rows;
  }

  private extend(rows: readonly Rows[]): Batch {
    if (rows.length === 0) {
      throw new InvalidBatchError('An empty list has no rows; give at least one item');
    }
    return Batch.merge([this, ...rows.map((more) => new Batch(more, this.key))]);
  }
}

function flattened(item: Container | FlatContainer): FlatContainer {
  const flat = flatten(item);
  if (!flat) {
    throw new InvalidBatchError(`${formatValue(item)} is no tensor or container of tensors`);
  }
  return flat;
}

function asRow(item: FlatContainer): FlatContainer {
  return item.with(item.leaves.map(({ tensor }) => rowOf(tensor)));
}

function valueOf(rows: FlatRows): Container | unknown[] {
  return rows instanceof FlatContainer ? rows.toContainer() : rows;
}

function checkNames({ leaves }: FlatContainer, axes: BatchAxes = {}): void {
  const paths = leaves.map(({ path }) => path);
  const unknown = Object.keys(axes).find((path) => !paths.includes(path));
  if (unknown !== undefined) {
    throw new InvalidBatchError(
      `The axes name "${unknown}", and the item has no such leaf; it has ` +
        (truncate(paths.join(', ')) || 'one without a name'),
    );
  }
}

function withRows(rows: TensorRows): TensorRows {
  if (rows.isWhole) {
    throw new InvalidBatchError(
      'No leaf of the item carries rows; at least one needs a batch axis',
    );
  }
  return rows;
}

function itemsOf(items: readonly unknown[]): unknown[] {
  if (!Array.isArray(items) || items.length > MAX_ITEMS) {
    throw new InvalidBatchError(
      `A batch is made of a list of at most ${MAX_ITEMS} items, and not of ${formatList(items)}`,
    );
  }
  return [...(items as unknown[])];
}

/** Makes batches of values; remembers the last template, which mostly fits again. */
export class RowReader {
  private last: Template | undefined;

  constructor(private readonly axes?: BatchAxes) {}

  /**
   * The value as a batch; undefined for one plain value.
   *
   * @throws InvalidBatchError for tensors that we can't use
   */
  read(value: unknown): Batch | undefined {
    if (typeof value !== 'object' || value === null) {
      return undefined;
    }
    try {
      return value instanceof Batch
        ? value
        : (this.readLikeLast(value) ?? this.add(flatten(value)));
    } catch (cause) {
      throw unreadable(cause);
    }
  }

  /**
   * Like {@link read}, only for tensors structured like the last ones, not for iterables.
   *
   * @throws InvalidBatchError for tensors that we can't use
   */
  readLikeLast(value: unknown): Batch | undefined {
    const { last } = this;
    if (!last || typeof value !== 'object' || value === null) {
      return undefined;
    }
    try {
      const isIterable = Symbol.asyncIterator in value || Symbol.iterator in value;
      const tensors = isIterable ? undefined : last.tensorsIn(value);
      return tensors && this.add(last.with(tensors));
    } catch (cause) {
      throw unreadable(cause);
    }
  }

  private add(item: FlatContainer | undefined): Batch | undefined {
    const batch = item && Batch.ofContainer(item, this.axes, this.last);
    this.last = batch?.template ?? this.last;
    return batch;
  }
}
