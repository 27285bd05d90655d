import { readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from '@jest/globals';
import { limitOf, slowSpecs } from '../slow-specs.js';

const specs = ['unit', 'e2e'].flatMap((folder) =>
  readdirSync(fileURLToPath(new URL(`../${folder}`, import.meta.url)), {
    recursive: true,
    encoding: 'utf8',
  }).map((path) => `test/${folder}/${path}`.replaceAll('\\', '/')),
);

describe('The time limit of a test', () => {
  it('is a minute, and that of a slow spec is in a table', () => {
    expect(limitOf('test/unit/errors.spec.ts', {})).toBe(60_000);
    expect(limitOf('test/unit/house.spec.ts', {})).toBe(300_000);
    expect(limitOf('test\\unit\\house.spec.ts', {})).toBe(300_000);
  });

  it('is multiplied for slow machines, and for more cases of property tests', () => {
    expect(limitOf('test/unit/errors.spec.ts', { TEST_TIMEOUT_FACTOR: '2.5' })).toBe(150_000);
    expect(limitOf('test/unit/errors.spec.ts', { SEED: '7' })).toBe(600_000);
    expect(() => limitOf('test/unit/errors.spec.ts', { TEST_TIMEOUT_FACTOR: 'no' })).toThrow(
      'TEST_TIMEOUT_FACTOR must be a positive number, not no',
    );
  });

  it('is set for this spec', () => {
    const limit = (globalThis as Record<symbol, unknown>)[Symbol.for('TEST_TIMEOUT_SYMBOL')];

    expect(limit).toBe(limitOf('test/unit/slow-specs.spec.ts', process.env));
  });
});

it.each(slowSpecs)('There is a slow spec %s, of at most %d minutes', (path, minutes) => {
  expect(specs.filter((spec) => spec.startsWith(path) && spec.endsWith('spec.ts'))).not.toEqual([]);
  expect(minutes).toBeGreaterThan(1);
});
