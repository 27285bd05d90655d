import { describe, expect, it } from '@jest/globals';
import { Batch, createServing, type LocalServing } from 'nestjs-serving';
import { useServings } from '../../fixtures/serving/use-servings.js';

const keysOf = (count: number): string[] => Array.from({ length: count }, (_, i) => `key ${i}`);

/** A serving that isn't started, and the keys that its batch functions were built for. */
function counted(batchKeys: readonly string[]): { serving: LocalServing; built: string[] } {
  const built: string[] = [];
  const useFactory = ({ key }: { key: string }) => {
    built.push(key);
    return (rows: unknown[]) => rows;
  };
  return { built, serving: createServing({ name: 'net', batchKeys, model: { useFactory } }) };
}

describe('The batch functions of a partition', () => {
  const start = useServings();

  it('[L5] The function of a declared key is built once, for any number of keys', async () => {
    const keys = keysOf(1100);
    const { serving, built } = counted(keys);
    await start(serving);

    for (const key of [...keys, ...keys]) {
      await serving.batchedRun(Batch.stack(['a']).withKey(key));
    }

    expect(built).toEqual(keys);
  });

  it('[L5] Before the start, functions are built when they are used, and the oldest of many are dropped', async () => {
    const { serving, built } = counted(keysOf(1025));
    const run = (key: string) => serving.run(Batch.stack(['a']).withKey(key));

    for (const key of keysOf(1025)) {
      await run(key);
    }
    await run('key 1');
    await run('key 0');

    expect(built).toEqual([...keysOf(1025), 'key 0']);
    await serving.close();
  });
});
