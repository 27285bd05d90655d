import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Batch, type Container, Tensor } from 'nestjs-serving';
import type { BatchAxes } from '../../../lib/core/batch/template.js';
import { floats } from '../../fixtures/values/tensors.js';

describe('Batch', () => {
  it.each(Object.entries(kinds()))(
    '[2.1] [2.2] A batch holds the same rows as a list after the same operations: %s',
    (_, kind) => {
      fc.assert(
        fc.property(rowsOf, fc.array(operationOn(kind), { maxLength: 12 }), (rows, operations) => {
          let batch = Batch.concatenate([kind.item(rows)], kind.axes);
          let model: Model = { rows, padding: 0 };
          for (const operation of operations) {
            const before = batch;
            batch = operateOnBatch(kind, batch, operation);
            expect(before).toMatchObject({ size: model.rows.length, padding: model.padding });
            model = operateOnModel(model, operation);
          }
          expect(batch).toMatchObject({ size: model.rows.length, padding: model.padding });
          if (batch.size + batch.padding > 0) {
            expect(kind.read(batch.consume())).toEqual([
              ...model.rows,
              ...Array.from({ length: model.padding }, () => 0),
            ]);
          }
        }),
      );
    },
  );
});

/**
 * A kind of rows: each row is a whole number above 0, put into items and read back from them; a
 * zero row reads as 0.
 */
interface Kind {
  readonly item: (rows: readonly number[]) => unknown;
  /** One row as an item to stack, where all rows lie on axis 0. */
  readonly row?: (row: number) => unknown;
  readonly axes?: BatchAxes;
  readonly read: (consumed: Container | unknown[]) => number[];
  readonly padded: boolean;
}

const pairs = (rows: readonly number[]): number[] => rows.flatMap((row) => [row, -row]);
const firsts = ({ data }: Tensor): number[] =>
  Array.from(data as Float32Array, Number).filter((_, i) => i % 2 === 0);

function kinds(): Record<string, Kind> {
  return {
    'plain values': {
      item: (rows) => [...rows],
      row: (row) => row,
      read: (consumed) => consumed as number[],
      padded: false,
    },
    'tuples of strings on axis 0': {
      item: (rows) => [new Tensor('string', pairs(rows).map(String), [rows.length, 2])],
      row: (row) => [new Tensor('string', pairs([row]).map(String), [2])],
      read: (consumed) => firsts((consumed as [Tensor])[0]),
      padded: true,
    },
    'maps with rows on the axes 0 and 1, and a shared leaf': {
      item: (rows) => ({
        x: new Tensor('int64', pairs(rows), [rows.length, 2]),
        state: floats([3, rows.length, 1], [rows, rows, rows].flat()),
        rate: floats([], [16]),
      }),
      axes: { state: 1, rate: null },
      read: (consumed) => {
        const { x, state, rate } = consumed as Record<'x' | 'state' | 'rate', Tensor>;
        const rows = firsts(x);
        expect(state).toMatchObject({
          dims: [3, rows.length, 1],
          data: Float32Array.from([rows, rows, rows].flat()),
        });
        expect(rate).toMatchObject({ dims: [], data: Float32Array.of(16) });
        return rows;
      },
      padded: true,
    },
  };
}

const number = fc.integer({ min: 1, max: 999 });
const rowsOf = fc.array(number, { maxLength: 5 });
const count = fc.integer({ min: 1, max: 12 });

type Operation = ReturnType<typeof operationOn> extends fc.Arbitrary<infer T> ? T : never;

function operationOn({ padded, row }: Kind) {
  const stacks = row ? { minLength: 1, maxLength: 3 } : { maxLength: 0 };
  const padding = padded ? fc.nat({ max: 3 }) : fc.constant(0);
  return fc.oneof(
    fc.record({
      name: fc.constant('concatenate'),
      items: fc.array(rowsOf, { minLength: 1, maxLength: 3 }),
    }),
    fc.record({ name: fc.constant('stack'), rows: fc.array(number, stacks) }),
    fc.record({ name: fc.constant('merge'), rows: rowsOf, padding }),
    fc.record({ name: fc.constant('slice'), start: fc.nat({ max: 12 }), end: fc.nat({ max: 12 }) }),
    fc.record({ name: fc.constant('split'), count, half: fc.constantFrom<0 | 1>(0, 1) }),
    fc.record({ name: fc.constant('pad'), padding }),
    fc.record({ name: fc.constant('chunksOf'), count }),
  );
}

function operateOnBatch({ item, row, axes }: Kind, batch: Batch, operation: Operation): Batch {
  switch (operation.name) {
    case 'concatenate':
      return batch.concatenate(operation.items.map(item), axes);
    case 'stack':
      return row ? batch.stack(operation.rows.map(row)) : batch;
    case 'merge':
      return batch.merge(Batch.concatenate([item(operation.rows)], axes).pad(operation.padding));
    case 'slice':
      return batch.slice(operation.start, operation.end);
    case 'split':
      return batch.split(operation.count)[operation.half];
    case 'pad':
      return batch.pad(operation.padding);
    default:
      return Batch.merge([batch.slice(0, 0).pad(0), ...batch.chunksOf(operation.count)]);
  }
}

/** The list that a batch is compared with. */
interface Model {
  readonly rows: readonly number[];
  readonly padding: number;
}

function operateOnModel({ rows, padding }: Model, operation: Operation): Model {
  switch (operation.name) {
    case 'concatenate':
      return { rows: [...rows, ...operation.items.flat()], padding };
    case 'stack':
      return { rows: [...rows, ...operation.rows], padding };
    case 'merge':
      return { rows: [...rows, ...operation.rows], padding: padding + operation.padding };
    case 'slice':
      return {
        rows: rows.slice(operation.start, operation.end),
        padding: operation.end >= rows.length ? padding : 0,
      };
    case 'split': {
      const filling = Math.min(padding, Math.max(0, operation.count - rows.length));
      return operation.half === 0
        ? { rows: rows.slice(0, operation.count), padding: filling }
        : { rows: rows.slice(operation.count), padding: padding - filling };
    }
    case 'pad':
      return { rows, padding: operation.padding };
    default:
      // Padding stays with the last row, so no piece carries that of a batch without rows.
      return { rows, padding: rows.length === 0 ? 0 : padding };
  }
}
