import { describe, expect, it } from '@jest/globals';
import { type Container, Tensor } from 'nestjs-serving';
import { type FlatContainer, flatten } from '../../../lib/core/batch/container.js';
import { floats } from '../../fixtures/values/tensors.js';

const x = floats([1], [1]);
const y = floats([1], [2]);
const z = floats([1], [3]);

const flat = (container: Container): FlatContainer => flatten(container)!;
const pathsOf = (container: Container): string[] => flat(container).leaves.map(({ path }) => path);

describe('flatten', () => {
  it.each([
    ['a tensor', x],
    ['a string tensor', new Tensor('string', ['a'], [1])],
    [
      'a tensor of another copy of onnxruntime-common',
      { type: 'float32', dims: [1], data: Float32Array.of(1), size: 1 },
    ],
    ['a named map', { x }],
    ['a map without prototype', Object.assign(Object.create(null) as object, { x })],
    ['a tuple', [x, y]],
    ['a nesting', { a: [x, { b: y }] }],
  ])('[1.7] isContainer is true for %s', (_, value) => {
    expect(flatten(value)?.leaves.length).toBeGreaterThan(0);
  });

  it.each([
    ['text', 'a'],
    ['null', null],
    ['undefined', undefined],
    ['an empty map', {}],
    ['an empty list', []],
    ['a map with anything beside tensors', { x, name: 'a' }],
    ['a list with anything beside tensors', [x, 1]],
    ['a typed array', Float32Array.of(1)],
    [
      'an instance of a class',
      new (class {
        readonly x = x;
      })(),
    ],
    ['an object that only looks like a tensor', { type: 'float32', dims: [1], data: [1] }],
  ])('[1.7] isContainer is false for %s', (_, value) => {
    expect(flatten(value)).toBeUndefined();
  });
});

describe('leavesOf', () => {
  it('Leaves are listed in the order of their names, in any order of the map', () => {
    expect(pathsOf({ b: x, a: { d: y, c: z } })).toEqual(['a.c', 'a.d', 'b']);
    expect(pathsOf({ a: { c: z, d: y }, b: x })).toEqual(['a.c', 'a.d', 'b']);
  });

  it('The leaves of a tuple are listed by position', () => {
    const tuple = Array.from({ length: 11 }, (_, i) => floats([1], [i]));

    expect(flat(tuple).leaves.map(({ tensor }) => tensor)).toEqual(tuple);
  });

  it('A bare tensor has an empty path', () => {
    expect(flat(x).leaves).toEqual([{ path: '', label: '', tensor: x }]);
  });
});

describe('A container that was taken apart', () => {
  it.each([
    ['a tensor', x],
    ['a map', { b: x, a: y }],
    ['a nesting', { b: [x, { d: y, c: z }], a: x }],
    ['a map with the names of what every object has', { constructor: x, ['__proto__']: y }],
  ])('The same structure is built again from its leaves: %s', (_, structure) => {
    const rebuilt = flat(structure).toContainer();

    expect(rebuilt).toEqual(structure);
    expect(pathsOf(rebuilt)).toEqual(pathsOf(structure));
  });
});
