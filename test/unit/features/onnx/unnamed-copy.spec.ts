import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { unnamedCopy } from '../../../../lib/features/onnx/model-source.js';
import { itOnLinux } from '../../../fixtures/describe-unless.js';

describe('unnamedCopy', () => {
  let folder: string;
  let path: string;

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'copy-'));
    path = join(folder, 'model.onnx');
    await writeFile(path, 'first');
  });

  afterEach(() => rm(folder, { recursive: true }));

  itOnLinux(
    'it opens files by their descriptors',
    '[W8] The copy keeps the content of a file that changes, and leaves nothing behind',
    async () => {
      const copy = await unnamedCopy(path, folder);
      await writeFile(path, 'second');

      expect(await readdir(folder)).toEqual(['model.onnx']);
      expect(await readFile(copy!.path, 'utf8')).toBe('first');
      await rm(path);
      expect(await readFile(copy!.path, 'utf8')).toBe('first');
      await copy!.close();
      await expect(readFile(copy!.path)).rejects.toThrow('ENOENT');
      await writeFile(path, '');
    },
  );

  it('[W8] Where the path of a descriptor leads to another file, or to none, there is none', async () => {
    const own = Object.getOwnPropertyDescriptor(process, 'pid')!;
    Object.defineProperty(process, 'pid', { ...own, value: 1 });

    expect(await unnamedCopy(path, folder)).toBeUndefined();
    Object.defineProperty(process, 'pid', own);
  });

  it('[W8] Without a folder to write to, or without the file, there is none', async () => {
    expect(await unnamedCopy(path, join(folder, 'missing'))).toBeUndefined();
    expect(await unnamedCopy(join(folder, 'missing'), folder)).toBeUndefined();
    expect(await readdir(folder)).toEqual(['model.onnx']);
  });
});
