import { digits } from '../models/digits.js';
import { mlp } from '../models/mlp.js';
import { randomFloats, sizeOf } from '../models/weights.js';
import { BINARY, toBytes } from './binary.js';
import type { Post } from './post.js';

/** The floats of a row as bytes, so that JSON does not dominate. */
export const mlpPost: Post = {
  path: '/',
  type: BINARY,
  body: toBytes(randomFloats(sizeOf(mlp.rowShape), 1)),
};

/** A drawing as JSON: its pixels with two decimals, most of them blank. */
export const digitsPost: Post = {
  path: '/',
  type: 'application/json',
  body: Buffer.from(JSON.stringify({ image: drawing() })),
};

function drawing(): number[] {
  return Array.from(randomFloats(sizeOf(digits.rowShape), 1), (value) =>
    value > 0.6 ? Number(value.toFixed(2)) : 0,
  );
}
