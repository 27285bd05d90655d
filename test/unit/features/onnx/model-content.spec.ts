import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as later } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { createServing, type Fetching, ServingLoadError } from 'nestjs-serving';
import {
  contentForProcess,
  type ModelContent,
  sessionOf,
} from '../../../../lib/features/onnx/model-content.js';
import { ModelSource } from '../../../../lib/features/onnx/model-source.js';
import { until } from '../../../fixtures/async/awaited.js';
import { itOnLinux } from '../../../fixtures/describe-unless.js';
import {
  echoModel,
  quantisedModel,
  value,
  weightsApartModel,
} from '../../../fixtures/models/models.js';

const local: Fetching = { log: () => {}, warn: () => {}, signal: new AbortController().signal };
const model = echoModel({ x: value('float32', 'batch', 2) });
const other = echoModel({ x: value('float32', 'batch', 3) });

/** The source of the session: the path or the bytes. */
async function madeOf(
  content: ModelContent,
  meanwhile = async (): Promise<void> => {},
): Promise<unknown> {
  const releases: unknown[] = [];
  let made: unknown;
  await sessionOf(content, async (from) => {
    made = typeof from === 'string' ? from : Buffer.from(from);
    await meanwhile();
    return { session: { release: async () => void releases.push(from) } };
  });
  return releases.length > 0 ? { made, released: releases } : made;
}

describe('A model file', () => {
  it('[FR15] A folder in its place is refused as a folder', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'a-model-'));
    const serving = createServing({ name: 's', model: folder });
    const start = serving.start();

    await expect(start).rejects.toBeInstanceOf(ServingLoadError);
    await expect(start).rejects.toThrow(
      `Cannot read the model ${folder}: it is a folder; name the ONNX file in it`,
    );
    await serving.close();
    await rm(folder, { recursive: true });
  });
});

describe('The content of a model', () => {
  let folder: string;
  let path: string;

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'content-'));
    path = join(folder, 'model.onnx');
    await writeFile(path, model);
  });

  afterEach(() => rm(folder, { recursive: true }));

  it('[W8] The file of a model is read once, and again only after it was dropped', async () => {
    const source = new ModelSource({ file: path });
    const first = await source.read(local);
    await writeFile(path, other);

    expect(await source.read(local)).toBe(first);
    source.forget();
    expect(Buffer.from((await source.read(local)).bytes!)).toEqual(other);
  });

  it('[W8] A session is made from the file while it is unchanged, and from the bytes in memory after that', async () => {
    const content = await new ModelSource({ file: path }).read(local);

    expect(await madeOf(content)).toBe(path);
    await writeFile(path, other);
    expect(await madeOf(content)).toEqual(model);
    await rm(path);
    expect(await madeOf(content)).toEqual(model);
    await writeFile(path, model);
    expect(await madeOf(content)).toBe(path);
  });

  it('[W8] A session is made again from the bytes in memory when the file changes while it loads', async () => {
    const content = await new ModelSource({ file: path }).read(local);

    expect(await madeOf(content, () => writeFile(path, other))).toEqual({
      made: model,
      released: [path],
    });
  });

  describe('of a file older than the process', () => {
    beforeEach(() => {
      Object.defineProperty(performance, 'timeOrigin', {
        value: Date.now() + 60_000,
        configurable: true,
      });
    });

    afterEach(() => {
      Reflect.deleteProperty(performance, 'timeOrigin');
    });

    it('[W8] A session is made without reading the file again', async () => {
      const content = await new ModelSource({ file: path }).read(local);
      const unlike = { ...content, bytes: other };

      expect(await madeOf(unlike)).toBe(path);
      expect(await madeOf({ ...unlike, stamp: undefined })).toEqual(other);
    });

    it('[W8] The file is read again once it has been written', async () => {
      const content = await new ModelSource({ file: path }).read(local);
      await later(20);
      await writeFile(path, other);
      expect(await madeOf(content)).toEqual(model);
    });

    itOnLinux(
      'it opens files by their descriptors',
      '[W8] Servings share its copy until the last one closes',
      async () => {
        await writeFile(path, quantisedModel('i'.repeat(3 << 20)));
        const sources = [new ModelSource({ file: path }), new ModelSource({ file: path })];
        const [first, second] = await Promise.all(sources.map((source) => source.read(local)));

        expect(first!.copy).toBe(second!.copy);
        sources[0]!.forget();
        await later(20);
        expect(existsSync(second!.copy!)).toBe(true);
        sources[1]!.forget();
        await until(() => !existsSync(second!.copy!));
      },
    );

    it('[W8] Servings do not share it if it has been written between their reads', async () => {
      const first = await new ModelSource({ file: path }).read(local);
      await later(20);
      await writeFile(path, other);
      const second = await new ModelSource({ file: path }).read(local);

      expect([first, second].map(({ bytes }) => Buffer.from(bytes!))).toEqual([model, other]);
    });

    it('[W8] Servings do not share external weights, which may change alone', async () => {
      const weights = join(folder, 'w.data');
      await writeFile(path, weightsApartModel('w.data'));
      await writeFile(weights, 'weights');
      const first = await new ModelSource({ file: path }).read(local);
      await writeFile(weights, 'WEIGHTS');
      const second = await new ModelSource({ file: path }).read(local);

      expect(second.files.get(weights)).not.toBe(first.files.get(weights));
    });
  });

  it('[W8] A process receives the bytes of a model only when the file has changed', async () => {
    const content = await new ModelSource({ file: path }).read(local);

    expect((await contentForProcess(content)).bytes).toBeUndefined();
    await writeFile(path, Buffer.concat([model, Buffer.alloc(1)]));
    expect(await contentForProcess(content)).toBe(content);
  });

  it('[W8] The bytes of a model are copied, so that their owner can reuse them', async () => {
    const bytes = Uint8Array.from(model);
    const content = await new ModelSource(bytes).read(local);
    bytes.fill(0);

    expect(await madeOf(content)).toEqual(model);
    expect(await contentForProcess(content)).toBe(content);
  });

  describe('of more than 1 MiB', () => {
    const large = quantisedModel('i'.repeat(3 << 20));

    beforeEach(() => writeFile(path, large));

    itOnLinux(
      'it opens files by their descriptors',
      '[W8] It is kept as a copy that has no name, and not in memory, until the serving closes',
      async () => {
        const serving = new AbortController();
        const fetching = { ...local, signal: serving.signal };
        const content = await new ModelSource({ file: path }).read(fetching);

        expect(content).toMatchObject({ isDynamicallyQuantised: true });
        expect(content.bytes).toBeUndefined();
        expect(await madeOf(content)).toBe(path);
        expect((await contentForProcess(content)).copy).toBeUndefined();
        await writeFile(path, other);
        expect(await madeOf(content)).toBe(content.copy);
        expect(Buffer.compare(await readFile(content.copy!), large)).toBe(0);
        const sent = await contentForProcess(content);
        expect([sent.copy, Buffer.compare(large, sent.bytes!)]).toEqual([undefined, 0]);

        serving.abort();
        // The copy closes in the background.
        await until(() => !existsSync(content.copy!));
      },
    );

    itOnLinux(
      'it opens files by their descriptors',
      '[W8] The copy closes when the model is dropped, also while it is read',
      async () => {
        const source = new ModelSource({ file: path });
        const reading = source.read(local);
        source.forget();
        const { copy } = await reading;

        await until(() => !existsSync(copy!));
      },
    );
  });

  it.each(['weights.data', `${'w'.repeat(200)}.data`])(
    '[W8] A model with external weights is pinned to both files and refused when either has changed: %#',
    async (name) => {
      const weights = join(folder, name);
      await writeFile(path, weightsApartModel(name));
      await writeFile(weights, 'weights');
      const content = await new ModelSource({ file: path }).read(local);

      expect([...content.files.keys()]).toEqual([path, weights]);
      expect(content.bytes).toBeUndefined();
      expect(await madeOf(content)).toBe(path);
      await writeFile(weights, 'WEIGHTS');
      await expect(madeOf(content)).rejects.toThrow(ServingLoadError);
      await expect(madeOf(content)).rejects.toThrow(
        `The file ${weights} has changed since the serving started`,
      );
    },
  );

  it('[1.10] A file is refused when its SHA-256 is not the pinned one', async () => {
    const sha256 = createHash('sha256').update(model).digest('hex');

    expect((await new ModelSource({ file: path, sha256 }).read(local)).name).toBe(path);
    await writeFile(path, other);
    const found = createHash('sha256').update(other).digest('hex');
    await expect(new ModelSource({ file: path, sha256 }).read(local)).rejects.toThrow(
      `The model ${path} has the SHA-256 ${found}, and the definition says ${sha256}`,
    );
  });

  it('[1.10] A file with weights in another one is refused with a SHA-256, which pins only one', async () => {
    await writeFile(path, weightsApartModel('weights.data'));
    const weights = join(folder, 'weights.data');
    await writeFile(weights, 'weights');
    const sha256 = createHash('sha256')
      .update(await readFile(path))
      .digest('hex');

    await expect(new ModelSource({ file: path, sha256 }).read(local)).rejects.toThrow(
      `The model ${path} keeps weights in another file, ${weights}, whose content sha256 does not pin`,
    );
  });

  it('[W8] A missing model file is reported with its path and the reason', async () => {
    await rm(path);

    await expect(new ModelSource({ file: path }).read(local)).rejects.toThrow(
      `Cannot read the model ${path}: ENOENT`,
    );
  });
});
