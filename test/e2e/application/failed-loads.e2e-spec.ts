import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { type ServingDefinition, ServingModule } from 'nestjs-serving';
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { worker } from '../../fixtures/partitions/worker.js';
import { boot } from '../../fixtures/serving/text-servings.js';

describe('A serving that cannot load', () => {
  let folder: string;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'serving-'));
  });

  afterAll(() => rm(folder, { recursive: true }));

  it.each<[string, ServingDefinition, RegExp]>([
    [
      'a model',
      { name: 'wrong', model: worker('diary') },
      /^Serving "wrong": Cannot load the model \S+diary\.mjs: .*protobuf/i,
    ],
    [
      '[N4] a text in place of a model',
      { name: 'wrong', model: worker('diary') },
      /; it is not an ONNX file, or it is cut$/,
    ],
    [
      '[N4] a pointer of Git LFS',
      {
        name: 'wrong',
        model: new URL('../../fixtures/models/git-lfs-pointer.onnx', import.meta.url),
      },
      /^Serving "wrong": Cannot read the model \S+git-lfs-pointer\.onnx: it is a pointer of Git LFS, and not the file itself; run "git lfs pull" in its repository$/,
    ],
    [
      'bytes',
      { name: 'wrong', model: new Uint8Array(3) },
      /^Serving "wrong": Cannot load the model of 3 bytes: .*protobuf/i,
    ],
    [
      'a file',
      { name: 'wrong', model: { useFile: worker('no-default') } },
      /^Serving "wrong": \S+no-default\.mjs must have a default export/,
    ],
    [
      'a function',
      { name: 'wrong', model: { useFactory: () => Promise.reject(new Error('no weights')) } },
      /^Serving "wrong" could not start: no weights$/,
    ],
  ])(
    '[9.1] A failed load fails the boot and leaves no thread of another serving: %s',
    async (kind, wrong, message) => {
      const diary = join(folder, `${kind}.txt`);
      await writeFile(diary, '');
      const right: ServingDefinition = {
        name: 'right',
        model: { useFile: worker('diary') },
        partitions: [{ diary }, { diary }],
      };

      await expect(
        boot({ imports: [ServingModule.forRoot({ servings: [right, wrong] })] }),
      ).rejects.toThrow(message);

      const entries = (await readFile(diary, 'utf8')).trim().split('\n');
      expect(entries.toSorted()).toEqual(['ended', 'ended', 'started', 'started']);
    },
  );

  it('[N10] A failed start prints the message of each cause, and few frames', async () => {
    const path = join(folder, 'prints.mjs');
    const main = new URL('../../../dist/esm/index.js', import.meta.url).href;
    const file = join(folder, 'vocabulary.mjs');
    await writeFile(
      file,
      `const read = () => { throw new TypeError('no vocabulary', { cause: new Error('no file') }); };
      export default () => read();`,
    );
    await writeFile(
      path,
      `import { createServing } from '${main}';
      await createServing({ name: 'a', model: { useFile: ${JSON.stringify(file)} } }).start();`,
    );

    const { stderr } = await new Promise<{ readonly stderr: string }>((resolve) => {
      execFile(process.execPath, [path], (_error, _stdout, printed) =>
        resolve({ stderr: printed }),
      );
    });

    expect(stderr).toMatch(
      /ServingLoadError: Serving "a" could not start: no vocabulary[^]*TypeError\]?: no vocabulary\n +at read \(\S*vocabulary\.mjs[^]*Error: no file/,
    );
    expect(stderr.match(/^ +at /gm)?.length).toBeLessThan(10);
  });
});
