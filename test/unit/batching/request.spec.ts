import { describe, expect, it } from '@jest/globals';
import { partsOf, sizeOf } from '../../../lib/batching/request.js';
import { namesOf } from '../../fixtures/held-batcher.js';
import { requestOf } from '../../fixtures/waiting-requests.js';

describe('partsOf', () => {
  it('[4.6] gives the rows of each request together, in the order in which they came', () => {
    const [a, b] = [requestOf('a', { size: 3 }), requestOf('b', { size: 2 })];
    const rows = [
      { request: a, index: 1 },
      { request: a, index: 2 },
      { request: b, index: 0 },
      { request: b, index: 1 },
    ];

    const parts = partsOf(rows);

    expect(parts.map((part) => namesOf([part]))).toEqual(['a1 a2', 'b0 b1']);
    expect(sizeOf(parts)).toBe(4);
    expect(partsOf([])).toEqual([]);
  });
});
