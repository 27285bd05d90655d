import { describe, expect, it } from '@jest/globals';
import { FunctionPartition } from '../../../lib/core/partitions/function.partition.js';

const keysOf = (count: number): string[] => Array.from({ length: count }, (_, i) => `key ${i}`);

function counted(): { functions: FunctionPartition; built: string[] } {
  const built: string[] = [];
  const factory = ({ key }: { key: string }) => {
    built.push(key);
    return (rows: unknown) => rows;
  };
  return { built, functions: new FunctionPartition(factory, 0, {}) };
}

describe('The batch functions of a partition', () => {
  it('[L5] The function of a declared key is built once, for any number of keys', async () => {
    const { functions, built } = counted();
    const keys = keysOf(1100);

    await functions.declare(keys);
    for (const key of [...keys, ...keys]) {
      await functions.get(key);
    }

    expect(built).toEqual(keys);
  });

  it('[L5] The functions of declared keys are kept while those of other keys are dropped', async () => {
    const { functions, built } = counted();
    await functions.declare(['declared']);

    for (const key of keysOf(1025)) {
      await functions.get(key);
    }
    await functions.get('declared');
    await functions.get('key 1');
    await functions.get('key 0');

    expect(built).toEqual(['declared', ...keysOf(1025), 'key 0']);
  });
});
