import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import {
  createServing,
  defineServing,
  type FetchedFile,
  InvalidServingError,
  type LocalServing,
  type RemoteModel,
  type ServingDefinition,
  Tensor,
} from 'nestjs-serving';
import { type LabelScore, textClassification, textGeneration } from 'nestjs-serving/tasks';
import { gainModel } from '../../fixtures/models/models.js';
import { silenceLog } from '../../fixtures/silent-log.js';
import { readTiny, tinyFiles } from '../../fixtures/tasks/tiny-models.js';
import { markedFiles, markOf } from '../../fixtures/tasks/written-models.js';

const ends: (() => unknown)[] = [];
beforeEach(() => silenceLog());
afterEach(async () => {
  for (const end of ends.splice(0).toReversed()) {
    await end();
  }
});

async function start<Input, Output, Result, Info>(
  definition: ServingDefinition<Input, Output, Result, Info>,
  ...others: [handlerOf?: undefined, provide?: Parameters<typeof createServing>[2]]
): Promise<LocalServing<Input, Output>> {
  const serving = createServing(definition, ...others);
  ends.push(() => serving.close());
  await serving.start();
  return serving;
}

/** Writes the files into a folder, by default into a new one. */
function write(files: Readonly<Record<string, Uint8Array | string>>, into?: string): string {
  const folder = into ?? mkdtempSync(join(tmpdir(), 'facts-'));
  if (into === undefined) {
    ends.push(() => rmSync(folder, { recursive: true }));
  }
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), content);
  }
  return folder;
}

const marked = (from: string) =>
  textClassification({ name: 'net', model: { from, isolation: 'none' } });

async function mark(serving: LocalServing<string, readonly LabelScore[]>): Promise<unknown> {
  return markOf(await serving.batchedRun('word'));
}

describe('What a task reads beside its model', () => {
  it('[FQ7] stays with the running version when a reload is rejected', async () => {
    const folder = write(markedFiles(5));
    const serving = await start(marked(folder));
    write({ ...markedFiles(7), 'onnx/model.onnx': 'no model' }, folder);

    await expect(serving.reload()).rejects.toThrow('Cannot load the model');
    expect(await mark(serving)).toBe(5);
    write(markedFiles(7), folder);
    await serving.reload();
    expect(await mark(serving)).toBe(7);
  });

  it.each<[string, (folder: string) => object | string]>([
    ['a folder', (folder) => folder],
    ['the ONNX file in a folder', (folder) => join(folder, 'onnx/model.onnx')],
    ['a folder as from', (from) => ({ from })],
    ['a folder and a file of it', (from) => ({ from, file: 'onnx/model.onnx' })],
    ['the options of a file', (folder) => ({ file: join(folder, 'onnx/model.onnx') })],
    ['files', () => ({ from: markedFiles(7) })],
  ])('[FQ7] comes from the place that a reload names: %s', async (_, model) => {
    const serving = await start(marked(write(markedFiles(5))));
    await serving.reload({ model: model(write(markedFiles(7))) as never });
    expect(await mark(serving)).toBe(7);
  });

  it.each<[string, () => unknown, string]>([
    ['bytes', () => markedFiles(7)['onnx/model.onnx'], 'was given an ONNX file alone'],
    ['code that fetches', () => ({ name: 'x', fetch: () => {} }), 'was given an ONNX file alone'],
    [
      'a file without its files',
      () => join(write({ 'x.onnx': markedFiles(7)['onnx/model.onnx']! }), 'x.onnx'),
      'has a config.json; give the folder of both',
    ],
    ['a web address', () => 'https://models.example.com/x.onnx', 'its model is a folder or a repo'],
    ['a folder that is not there', () => '/no/such/folder', 'there is no folder /no/such/folder'],
    ['another repository', () => 'hf:one', '"hf:one" is no repository of the Hub'],
  ])('[FQ7] keeps a reload from taking %s', async (_, model, message) => {
    const serving = await start(marked(write(markedFiles(5))));
    const reload = async () => serving.reload({ model: model() as never });
    await expect(reload()).rejects.toThrow(InvalidServingError);
    await expect(reload()).rejects.toThrow(message);
    expect(await mark(serving)).toBe(5);
  });

  it('[FQ7] belongs to each version of a definition, and to each of its servings', async () => {
    const folder = write(markedFiles(5));
    const definition = {
      ...marked(folder),
      rollout: { versions: { later: { model: write(markedFiles(6)) } } },
    };
    const one = await start(definition);
    write(markedFiles(7), folder);
    const other = await start({ ...definition, name: 'other' });
    await one.reload({ version: 'canary', canary: 0, model: write(markedFiles(8)) });

    const calls = [undefined, 'later', 'canary'].map((version) =>
      one.batchedRun('word', { version }).then(markOf),
    );
    expect(await Promise.all([...calls, mark(other)])).toEqual([5, 6, 8, 7]);
  });

  it('[FQ7] keeps generators with other weights from sharing the replies of a cache', async () => {
    const entries = new Set<string>();
    const store = {
      get: async () => undefined,
      set: async (key: string) => void entries.add(key),
    };
    const paths = [
      'config.json',
      'generation_config.json',
      'tokenizer.json',
      'tokenizer_config.json',
    ];
    for (const [model, count] of [
      ['model', 1],
      ['model_gqa', 2],
      ['model', 2],
    ] as const) {
      const graph = readTiny(`generator/onnx/${model}.onnx`);
      const folder = write(tinyFiles('generator', paths, { 'onnx/model.onnx': graph }));
      const definition = {
        ...textGeneration({ name: 'net', model: folder }),
        deduplication: { cache: { ttl: 60_000 } },
      };
      const serving = await start(definition, undefined, () => store);
      await serving.batchedRun({ prompt: 'a', maxTokens: 1, seed: 1 });
      expect(entries.size).toBe(count);
    }
  });

  it('[FQ7] decides with the weights which replies of a cache a version finds', async () => {
    const entries = new Map<string, string>();
    const store = {
      get: async (key: string) => entries.get(key),
      set: async (key: string, value: string) => entries.set(key, value),
    };
    const definition = {
      ...marked(write(markedFiles(5))),
      deduplication: { cache: { ttl: 60_000 } },
    };
    const serving = await start(definition, undefined, () => store);
    const before = await serving.batchedRun('word');
    await serving.batchedRun('word');
    expect(entries.size).toBe(1);

    // The same weights with another tokenizer.
    const { 'tokenizer.json': tokenizer } = markedFiles(7);
    await serving.reload({ model: write({ ...markedFiles(5), 'tokenizer.json': tokenizer! }) });
    expect(await serving.batchedRun('word')).not.toEqual(before);
    expect(entries.size).toBe(2);

    const same = await start(definition, undefined, () => store);
    expect(await same.batchedRun('word')).toEqual(before);
    expect(entries.size).toBe(2);
  });

  it('[FQ7] belongs to the version of a model that writes step by step, too', async () => {
    const paths = ['config.json', 'generation_config.json', 'tokenizer.json', 'onnx/model.onnx'];
    const files = (most: number) =>
      tinyFiles('generator', paths, { 'tokenizer_config.json': { model_max_length: most } });
    const folder = write(files(40));
    const serving = await start(textGeneration({ name: 'net', model: folder }));
    write({ ...files(16), 'onnx/model.onnx': 'no model' }, folder);
    await expect(serving.reload()).rejects.toThrow('Cannot load the model');
    await serving.reload({ version: 'short', canary: 0, model: write(files(16)) });

    const prompt = 'the '.repeat(20);
    expect((await serving.batchedRun(prompt)).usage!.completionTokens).toBeGreaterThan(0);
    await expect(serving.batchedRun(prompt, { version: 'short' })).rejects.toThrow(
      'reads texts of at most 16 tokens',
    );
    // Its thread starts now, and has the limit of its version.
    write(files(16), folder);
    expect((await serving.run(prompt)).usage!.completionTokens).toBeGreaterThan(0);
  });

  it('[FQ7] can belong to any model that code fetches', async () => {
    let unit = 'metres';
    const file: RemoteModel<{ readonly unit: string }> = {
      name: 'gain',
      fetch: async (): Promise<FetchedFile<{ readonly unit: string }>> => ({
        file: gainModel(2),
        facts: { unit },
      }),
    };
    const definition = defineServing({
      name: 'net',
      model: { file, isolation: 'none' },
      preprocess: (length: number) => ({
        batch: new Tensor('float32', new Float32Array(2), [1, 2]),
        info: length,
      }),
      postprocess: (_, { info, facts }) => `${info} ${facts.unit}`,
      postprocessStream: async function* (events, { facts }) {
        for await (const _ of events) {
          yield facts.unit;
        }
      },
    });
    const serving = await start(definition);
    unit = 'feet';
    const next = await serving.reload({ canary: 0 });
    const version = next.version;
    expect(await serving.batchedRun(7)).toBe('7 metres');
    expect(await serving.run(7, { version })).toBe('7 feet');
    const pieces: unknown[] = [];
    for await (const piece of serving.stream(7, { version })) {
      pieces.push(piece);
    }
    expect(pieces).toEqual(['feet']);
  });
});
