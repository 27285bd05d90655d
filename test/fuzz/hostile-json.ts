import * as fc from 'fast-check';
import type { Arbitrary } from 'fast-check';

/** Any unit of a text, also halves of characters. */
const unit = fc.nat(0xff_ff).map((code) => String.fromCharCode(code));

/** A few of them. */
export const noise = fc.string({ unit, minLength: 1, maxLength: 8 });

/**
 * A name that means something to JavaScript, to this package, or to whoever glues names together.
 */
export const names: Arbitrary<string> = fc.oneof(
  fc.constantFrom(
    '__proto__',
    'constructor',
    'prototype',
    'toString',
    'valueOf',
    'then',
    'next',
    'length',
    'hasOwnProperty',
  ),
  fc.constantFrom(
    'dims',
    'data',
    'type',
    'size',
    'image',
    'pixels',
    'value',
    'batch',
    'key',
    'rows',
    'default',
    'location',
  ),
  fc.constantFrom('', '0', '-1', '1e9', 'a.b', ' ', '\0', '\ud800', 'ﷺ'.repeat(40)),
  noise,
);

/** Numbers as texts, also those that no value of JavaScript is written as. */
const numbers = fc.oneof(
  fc.constantFrom(
    '0',
    '-0',
    '1',
    '-1',
    '0.5',
    '1e400',
    '-1e400',
    '1e-400',
    '9007199254740993',
    '4294967296',
    '784',
    '1e9',
  ),
  fc.double({ noNaN: true, noDefaultInfinity: true }).map(String),
);

const levels = fc.constantFrom(2, 33, 500, 3000, 9000, 24_000);
const repeats = fc.constantFrom(2, 785, 2000, 20_000, 60_000);

/**
 * JSON, most of it well-formed, as a text: with names twice, numbers out of range, and nested or
 * wide without measure.
 */
export const jsonText: Arbitrary<string> = fc.letrec<{ text: string }>((tie) => ({
  text: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    { arbitrary: fc.constantFrom('null', 'true', 'false', '""', '[]', '{}'), weight: 24 },
    { arbitrary: numbers, weight: 24 },
    { arbitrary: noise.map((text) => JSON.stringify(text)), weight: 24 },
    { arbitrary: names.map((name) => JSON.stringify(name)), weight: 12 },
    {
      arbitrary: fc.array(tie('text'), { maxLength: 6 }).map((parts) => `[${parts.join()}]`),
      weight: 36,
    },
    {
      arbitrary: fc
        .array(fc.tuple(names, tie('text')), { maxLength: 6 })
        .map(
          (parts) => `{${parts.map(([name, part]) => `${JSON.stringify(name)}:${part}`).join()}}`,
        ),
      weight: 36,
    },
    { arbitrary: tensorText(tie('text')), weight: 36 },
    {
      arbitrary: fc
        .tuple(levels, tie('text'))
        .map(([n, text]) => `${'['.repeat(n)}${text}${']'.repeat(n)}`),
      weight: 1,
    },
    {
      arbitrary: fc
        .tuple(levels, tie('text'))
        .map(([n, text]) => `${'{"a":'.repeat(n)}${text}${'}'.repeat(n)}`),
      weight: 1,
    },
    {
      arbitrary: fc
        .tuple(repeats, numbers)
        .map(([n, number]) => `[${Array(n).fill(number).join()}]`),
      weight: 1,
    },
    { arbitrary: repeats.map((n) => JSON.stringify('x'.repeat(n))), weight: 1 },
  ),
})).text;

/** What could pass for a tensor. */
function tensorText(part: Arbitrary<string>): Arbitrary<string> {
  const small = fc.constantFrom('0', '1', '2', '3', '784');
  const dims = fc.oneof(
    fc.array(fc.oneof(small, numbers), { maxLength: 4 }).map((axes) => `[${axes.join()}]`),
    part,
  );
  const strings = fc
    .array(fc.oneof(fc.constant('"a"'), numbers, part), { maxLength: 4 })
    .map((all) => `[${all.join()}]`);
  const type = fc.oneof(
    fc.constantFrom('"string"', '"string"', '"float32"', '"int64"', '"constructor"'),
    part,
  );
  return fc
    .tuple(dims, type, fc.oneof(strings, part), fc.oneof(small, part))
    .map(
      ([dimsText, typeText, data, size]) =>
        `{"dims":${dimsText},"type":${typeText},"data":${data},"size":${size}}`,
    );
}
