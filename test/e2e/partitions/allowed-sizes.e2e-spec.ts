import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { type INestApplication, Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import {
  Batch,
  createServing,
  InvalidServingError,
  type ServingDefinition,
  ServingLoadError,
  ServingModule,
  ServingService,
  Tensor,
} from 'nestjs-serving';
import { echoModel, value } from '../../fixtures/models/models.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { worker } from '../../fixtures/partitions/worker.js';

const rows = (count: number): Tensor =>
  floats(
    [count, 2],
    Array.from({ length: 2 * count }, (_, i) => i + 1),
  );
const columns = (count: number): Tensor =>
  floats(
    [2, count],
    [0, 1].flatMap((start) => Array.from({ length: count }, (_, i) => 2 * i + start + 1)),
  );
const shape = (...dims: number[]): Tensor => new Tensor('int64', dims.map(BigInt), [dims.length]);

/** Outputs its rows on axis 0 and on axis 1, and the shape of its input. */
function shapeModel(batch: number | string = 'batch', width: number | string = 2): Uint8Array {
  return onnxModel({
    inputs: { x: value('float32', batch, width) },
    outputs: {
      y: value('float32', batch, width),
      columns: value('float32', width, batch),
      seen: value('int64', 2),
    },
    nodes: [
      node('Identity', ['x'], ['y']),
      node('Transpose', ['x'], ['columns']),
      node('Shape', ['x'], ['seen']),
    ],
  });
}

/** Adds a table of 4 rows, which fits a batch of 4 rows and not of 6. */
const tableModel = (): Uint8Array =>
  onnxModel({
    inputs: { x: value('float32', 'batch', 2) },
    outputs: { y: value('float32', 'batch', 2) },
    nodes: [node('Add', ['x', 'table'], ['y'])],
    initializers: { table: { type: 'float32', dims: [4, 2], data: new Float32Array(8) } },
  });

describe('The allowed sizes of a model', () => {
  const serve = useServings();

  it.each([
    { count: 1, padded: 4 },
    { count: 4, padded: 4 },
    { count: 5, padded: 8 },
  ])(
    '[2.4] [1.8] $count rows are padded up to $padded, and the output is cut back on every axis',
    async ({ count, padded }) => {
      const serving = await serve({ name: 'shapes', model: shapeModel(), batchSize: [4, 8] });

      const reply = { y: rows(count), columns: columns(count), seen: shape(padded, 2) };
      expect(await serving.batchedRun({ x: rows(count) })).toEqual(reply);
      expect(await serving.run({ x: rows(count) })).toEqual(reply);
    },
  );

  it('[2.4] A batch that callers share is padded, and each gets its own rows', async () => {
    const serving = await serve({ name: 'shapes', model: shapeModel(), batchSize: [8] });

    const replies = await Promise.all(
      [1, 2, 3].map((count) => serving.batchedRun({ x: rows(count) })),
    );

    expect(replies).toEqual(
      [1, 2, 3].map((count) => ({ y: rows(count), columns: columns(count), seen: shape(8, 2) })),
    );
  });

  it('[2.4] Inputs of every kind are padded: strings, booleans, and rows on axis 1', async () => {
    const model = echoModel({
      s: value('string', 'batch'),
      b: value('bool', 'batch', 1),
      t: value('float32', 3, 'batch'),
    });
    const axes = { t: { batchAxis: 1 } };
    const serving = await serve({
      name: 'echo',
      model: { file: model, inputs: axes, outputs: { same_t: axes.t } },
      batchSize: [5],
    });
    const s = new Tensor('string', ['a', 'b'], [2]);
    const b = new Tensor('bool', [true, false], [2, 1]);
    const t = floats([3, 2], [1, 2, 3, 4, 5, 6]);

    expect(await serving.batchedRun({ s, b, t })).toEqual({ same_s: s, same_b: b, same_t: t });
  });

  it('[2.4] [9.1] Allowed sizes run with zeros before the serving is ready, and a failure fails the start with size and key', async () => {
    const serving = createServing({
      name: 'table',
      model: tableModel(),
      batchSize: [4, 6],
      batchKeys: ['only'],
    });

    const started = serving.start();

    await expect(started).rejects.toThrow(ServingLoadError);
    await expect(started).rejects.toThrow(
      /^Serving "table": The warm-up with 6 rows of key "only" failed: .*Add/s,
    );
    await serving.close();
  });

  it('[2.4] An inner axis of any size needs a warm-up example', async () => {
    const definition = { name: 'shapes', model: shapeModel('batch', 'width'), batchSize: [2] };

    await expect(serve(definition)).rejects.toThrow(
      new InvalidServingError(
        'Serving "shapes" is to run every allowed size before it is ready, but axis 1 of x: float32[batch, width] may have any size; ' +
          'give example inputs: warmUp: [...]',
      ),
    );

    const serving = await serve({ ...definition, warmUp: [{ x: rows(1) }] });
    expect(await serving.batchedRun({ x: rows(1) })).toMatchObject({
      y: rows(1),
      seen: shape(2, 2),
    });
  });

  it('[W1] [2.4] Allowed sizes are refused at boot for a model without a batch axis', async () => {
    const model = echoModel({ x: value('float32', 4, 2) });
    const serving = serve({
      name: 'echo',
      model: { file: model, inputs: { x: { batchAxis: null } } },
      batchSize: [8],
    });

    await expect(serving).rejects.toThrow(
      new InvalidServingError(
        'Serving "echo" is to pad the batches of key "default", and its model has no batch axis: each call is one run; ' +
          'give batchSize as a number',
      ),
    );
  });

  it('[2.4] [1.8] Allowed sizes work with a model of fixed batch size', async () => {
    const serving = await serve({
      name: 'echo',
      model: { file: echoModel({ x: value('float32', 4, 2) }), inputs: { x: { batchAxis: 0 } } },
      batchSize: [4, 8],
    });

    expect(await serving.batchedRun({ x: rows(5) })).toEqual({ same_x: rows(5) });
  });
});

const example = (key: string): Batch => Batch.concatenate([rows(1)]).withKey(key);
const runs = (partition: number): string[] =>
  ['a: 1', 'a: 3', 'b: 1', 'b: 3'].map((run) => `${partition} ${run} rows and 0`);

describe('The warm-up of threads', () => {
  let folder: string;
  let diary: string;

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'sizes-'));
    diary = join(folder, 'diary.txt');
  });

  afterEach(() => rm(folder, { recursive: true }));

  const definition = (fails?: string): ServingDefinition => ({
    name: 'sizes',
    model: { useFile: worker('sizes') },
    partitions: [{ diary }, { diary, fails }],
    batchKeys: ['a', 'b'],
    batchSize: [1, 3],
    warmUp: [example('a'), example('b')],
  });
  const entries = async (): Promise<string[]> => (await readFile(diary, 'utf8')).trim().split('\n');

  it('[2.4] [9.2] Every size of every key runs once on every partition before the application listens', async () => {
    const app = await create(definition());
    const servings = app.get(ServingService);

    await app.listen(0, '127.0.0.1');

    const written = await entries();
    expect(servings.isReady).toBe(true);
    for (const partition of [0, 1]) {
      const own = written.filter(
        (entry) => entry.startsWith(`${partition} `) && !entry.endsWith('started'),
      );
      expect(own).toEqual(runs(partition));
    }
    expect(await servings.batchedRun('sizes', example('a'))).toEqual(rows(1));
    await app.close();
  });

  it('[2.4] [9.1] A failed warm-up fails the boot with size and key and leaves no thread', async () => {
    const app = await create(definition('1 b: 3 rows and 0'));

    const listening = app.listen(0, '127.0.0.1');

    await expect(listening).rejects.toThrow(ServingLoadError);
    await expect(listening).rejects.toThrow(
      'Serving "sizes": The warm-up with 3 rows of key "b" failed: a batch of 3 rows failed: no such kernel',
    );

    const written = await entries();
    expect(written.filter((entry) => entry.endsWith('ended'))).toHaveLength(
      written.filter((entry) => entry.endsWith('started')).length,
    );
    expect(app.getHttpServer()).toMatchObject({ listening: false });
  });
});

function create(...servings: ServingDefinition[]): Promise<INestApplication> {
  @Module({ imports: [ServingModule.forRoot({ servings })] })
  class AppModule {}

  return NestFactory.create(AppModule, { logger: false, abortOnError: false });
}
