import { describe, expect, it } from '@jest/globals';
import { Tensor } from 'nestjs-serving';
import { turn, useVirtualTime } from '../../../fixtures/async/virtual-time.js';
import { LabelledVersions } from '../../../fixtures/serving/labelled-versions.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';
import { floats } from '../../../fixtures/values/tensors.js';

const halves = (...bits: number[]): Tensor =>
  Object.defineProperty(new Tensor('float16', Uint16Array.from(bits), [bits.length]), 'data', {
    value: Uint16Array.from(bits),
  });

describe('The reply of a shadow', () => {
  useVirtualTime();
  const start = useServings();

  /** Compares the reply of a shadow with that of the active version. */
  async function compared(shadow: unknown, active: unknown) {
    const serving = new LabelledVersions().serving({
      name: 'net',
      recovery: { idempotent: true },
      postprocess: (reply) => (String(reply).startsWith('1:') ? active : shadow),
    });
    await start(serving);
    await serving.reload({ shadow: 1 });
    await serving.batchedRun('a');
    await turn();
    return serving.versions().find(({ role }) => role === 'shadow')!.comparison;
  }

  it.each<[string, unknown, unknown, object]>([
    [
      'floats within 1e-5 + 1e-3 |b|',
      floats([3], [1, 100, 0]),
      floats([3], [1.0009, 100.09, 0.000009]),
      { differing: 0 },
    ],
    ['floats beyond it', floats([2], [1, 1]), floats([2], [1.1, 1]), { differing: 1 / 2 }],
    ['NaN and NaN', floats([2], [NaN, NaN]), floats([2], [NaN, 1]), { differing: 1 / 2 }],
    [
      'infinities',
      floats([2], [Infinity, Infinity]),
      floats([2], [Infinity, -Infinity]),
      { differing: 1 / 2 },
    ],
    ['halves within 1e-2', halves(0x3c00, 0xbc00), halves(0x3c05, 0xbc00), { differing: 0 }],
    [
      'halves beyond it',
      halves(0x3c00, 0x7e00, 0x0001),
      halves(0x4000, 0x7e00, 0x0001),
      { differing: 1 / 3, largestDifference: 1 },
    ],
    [
      'integers exactly',
      new Tensor('int64', [1n, 2n], [2]),
      new Tensor('int64', [1n, 3n], [2]),
      { differing: 1 / 2 },
    ],
    [
      'texts exactly',
      new Tensor('string', ['a', 'b'], [2]),
      new Tensor('string', ['a', 'b'], [2]),
      { differing: 0 },
    ],
    ['other shapes', floats([2], [1, 1]), floats([1, 2], [1, 1]), { differing: 1 }],
    ['other types', floats([1], [1]), new Tensor('int32', [1], [1]), { differing: 1 }],
    [
      'plain data',
      { label: 'a', scores: [0.5, 1], more: Float32Array.of(1) },
      { label: 'b', scores: [0.5, 1.5], more: Float32Array.of(1) },
      { differing: 2 / 4, largestDifference: 0.5 },
    ],
    ['a missing part', { a: 1 }, { a: 1, b: 2 }, { differing: 1 / 2 }],
    ['a list of another length', [1, 2], [1], { differing: 1 / 2 }],
    ['dates', new Date(0), new Date(1), { differing: 1 }],
  ])('[17.9] Replies are compared: %s', async (_, a, b, expected) => {
    expect(await compared(a, b)).toMatchObject({ compared: 1, ...expected });
  });

  it('[17.9] The largest difference of numbers is part of the result, also where they count as equal', async () => {
    const comparison = await compared(floats([1], [1000]), floats([1], [1000.5]));

    expect(comparison!.different).toBe(0);
    expect(comparison!.largestDifference).toBeCloseTo(0.5);
  });

  it('[17.9] Of a large tensor so many elements are compared that the event loop goes on', async () => {
    const values = new Float32Array(1_000_000);
    const large = new Tensor('float32', values, [1_000_000]);
    const other = new Tensor('float32', values.with(0, 1), [1_000_000]);

    const comparison = await compared(large, other);

    // One of the compared elements differs.
    expect(1 / comparison!.differing).toBeLessThanOrEqual(65_536);
  });
});
