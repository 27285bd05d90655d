import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Batch, type Container, Tensor } from 'nestjs-serving';
import { RowReader } from '../../../lib/core/batch/batch.js';
import { isTensor } from '../../../lib/core/batch/tensor.js';

/** Names that look like paths, indices, quotes and descriptions of tensors. */
const name = fc.constantFrom(
  'a',
  'b',
  'a.b',
  'a.0',
  '0',
  '1',
  '',
  '"',
  '"a"',
  'a: float32[rows]',
  'ä',
  'a b',
  '\0',
);

const tensor = fc.constantFrom(
  new Tensor('float32', [1], [1]),
  new Tensor('int32', [1], [1]),
  new Tensor('float32', [1, 2], [1, 2]),
);

const { container } = fc.letrec<{ container: Container }>((tie) => ({
  container: fc.oneof(
    { maxDepth: 3 },
    tensor,
    fc.array(tie('container'), { minLength: 1, maxLength: 2 }),
    fc.dictionary(name, tie('container'), { minKeys: 1, maxKeys: 2 }),
  ),
}));

/** What is no container, although it looks like one at first. */
const lookAlike = fc.constantFrom<unknown>(
  { a: new Tensor('float32', [1], [1]), b: 1 },
  { a: 'a' },
  Object.defineProperty({ b: new Tensor('float32', [1], [1]) }, 'a', {
    value: new Tensor('float32', [1], [1]),
    enumerable: false,
  }),
  Object.create({ a: new Tensor('float32', [1], [1]) }),
  [],
  {},
  'a',
  null,
);

const t = new Tensor('float32', [1], [1]);
const lookAlikes: [string, Container, Container][] = [
  ['a path and a name with a dot', { a: { b: t } }, { 'a.b': t }],
  ['a tuple and a map of numbers', [t], { 0: t }],
  ['a tensor and a map with an empty name', t, { '': t }],
  ['a tuple in a map and a name with a number', { a: [t] }, { 'a.0': t }],
  ['a path and a name with quotes', { a: { b: t } }, { 'a."b"': t }],
  ['a name and one in quotes', { a: t }, { '"a"': t }],
  ['two names and one that describes both', { a: t, b: t }, { 'a: float32[rows], b': t }],
  ['tuples that are nested otherwise', [[t], t], [t, [t]]],
];

describe('The signature of a batch', () => {
  it('[2.3] [4.9] Two containers have equal signatures exactly when names, structures, types and inner shapes are equal', () => {
    fc.assert(
      fc.property(container, container, (one, other) => {
        const [mine, yours] = [one, other].map((rows) => Batch.ofContainer(rows).signature);
        expect(mine === yours).toBe(structureOf(one) === structureOf(other));
      }),
      { numRuns: 1000, examples: lookAlikes.map(([, one, other]) => [one, other]) },
    );
  });

  it('[2.3] Rows are read the same, whatever was read before them', () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(container, lookAlike), { minLength: 2 }), (values) => {
        const reader = new RowReader();
        for (const value of values) {
          const alone = new RowReader().read(value);
          const after = reader.read(value);
          expect(after?.signature).toBe(alone?.signature);
          expect(after?.release()).toEqual(alone?.release());
        }
      }),
      {
        numRuns: 1000,
        examples: lookAlikes.map(([, one, other]): [unknown[]] => [[one, other, one]]),
      },
    );
  });

  it('[2.3] The signature of tensors never equals that of plain values', () => {
    fc.assert(
      fc.property(container, (rows) => {
        expect(Batch.ofContainer(rows).signature).not.toBe(Batch.ofValues([rows]).signature);
      }),
    );
  });

  it.each(lookAlikes)(
    '[2.3] Containers that merely look alike do not merge: %s',
    (_, one, other) => {
      expect(() => Batch.concatenate([one]).merge(Batch.concatenate([other]))).toThrow(
        'Cannot merge rows of different templates',
      );
    },
  );
});

/** The structure that must be equal, written in another form than the signature. */
function structureOf(rows: Container): string {
  if (isTensor(rows)) {
    return JSON.stringify({ type: rows.type, inner: rows.dims.slice(1) });
  }
  const parts = Array.isArray(rows)
    ? (rows as readonly Container[]).map((part) => structureOf(part))
    : Object.entries(rows as Record<string, Container>)
        .toSorted(([a], [b]) => (a < b ? -1 : 1))
        .map(([key, part]) => [key, structureOf(part)]);
  return JSON.stringify([Array.isArray(rows), parts]);
}
