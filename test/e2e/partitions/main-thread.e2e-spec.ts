import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from '@jest/globals';
import {
  BatchFailedError,
  createServing,
  ServingClosedError,
  ServingLoadError,
  type BatchEndEvent,
  Tensor,
} from 'nestjs-serving';
import { forkChild } from '../../fixtures/partitions/fork-child.js';
import { ModelServer, sha256 } from '../../fixtures/http/model-server.js';
import { useModelCache } from '../../fixtures/http/use-model-cache.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';
import {
  echoModel,
  linearModel,
  recurrentModel,
  value,
  weightsApartModel,
} from '../../fixtures/models/models.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { iterated } from '../../fixtures/async/streams.js';
import { floats } from '../../fixtures/values/tensors.js';

const here = { name: 'net' };
const digits = fileURLToPath(
  new URL('../../../sample/01-digits/model/digits.onnx', import.meta.url),
);
const row = (n: number): { x: Tensor } => ({ x: floats([1, 3], [n, n + 1, n + 2]) });

const at = (index: bigint): { i: Tensor } => ({ i: new Tensor('int64', [index], [1]) });

describe("A model in the application's own thread", () => {
  const serve = useServings();
  useModelCache();

  it('[5.8] It gives the answers of a thread, in batches of concurrent calls', async () => {
    const model = linearModel('batch');
    const inline = await serve<{ y: Tensor }>({
      ...here,
      model: { file: model, isolation: 'none' },
      batchSize: 8,
    });
    const thread = await serve<{ y: Tensor }>({ name: 'other', model });
    const sizes: number[] = [];
    inline.eventsOf('batch:end').subscribe(({ rows }: BatchEndEvent) => void sizes.push(rows));

    const rows = Array.from({ length: 20 }, (_, n) => row(n));
    const replies = await Promise.all(rows.map((each) => inline.batchedRun(each)));

    expect(replies).toEqual(await Promise.all(rows.map((each) => thread.batchedRun(each))));
    expect(sizes.length).toBeLessThan(10);
    expect(sizes.reduce((sum, size) => sum + size, 0)).toBe(20);
    expect(inline.partitions()).toEqual([{ state: 'up', restarts: 0, provider: 'cpu' }]);
  });

  it('[5.8] [3.1] run() uses the same session, also while batches run', async () => {
    const serving = await serve<{ y: Tensor }>({
      ...here,
      model: { file: linearModel('batch'), isolation: 'none' },
    });

    const [first, ...others] = await Promise.all([
      serving.run(row(1)),
      serving.batchedRun(row(1)),
      serving.run(row(1)),
      serving.batchedRun(row(2)),
    ]);

    expect(others.slice(0, 2)).toEqual([first, first]);
    expect(others[2]).not.toEqual(first);
  });

  it('[5.8] Inputs of every axis, hooks, allowed sizes and fixed batches work as in a thread', async () => {
    const recurrent = await serve<Record<string, Tensor>>({
      ...here,
      model: { file: recurrentModel(2, 'n'), isolation: 'none' },
    });
    const x = floats([1, 3], [1, 2, 3]);
    const state = floats([2, 1, 3], [1, 2, 3, 4, 5, 6]);
    const rate = new Tensor('int64', [8n], []);
    expect((await recurrent.batchedRun({ x, state, rate })).next).toEqual(
      floats([2, 1, 3], [2, 4, 6, 5, 7, 9]),
    );

    const hooked = await serve({
      ...here,
      model: {
        file: onnxModel({
          inputs: { x: value('float32', 'batch', 2) },
          outputs: { y: value('float32', 'batch', 2), h: value('float32', 'batch', 2) },
          nodes: [node('Add', ['x', 'x'], ['h']), node('Mul', ['h', 'h'], ['y'])],
        }),
        fetches: ['y'],
        isolation: 'none',
      },
    });
    const stream = hooked.stream({ x: floats([1, 2], [1, 2]) }, { hooks: ['h'] });
    expect(await iterated(stream)).toEqual([
      expect.objectContaining({ hook: 'h', value: floats([1, 2], [2, 4]) }),
      expect.objectContaining({ output: { y: floats([1, 2], [4, 16]) } }),
    ]);

    const fixed = await serve<{ y: Tensor }>({
      ...here,
      model: { file: linearModel(2), inputs: { x: { batchAxis: 0 } }, isolation: 'none' },
    });
    const padded = await serve<{ y: Tensor }>({
      ...here,
      model: { file: linearModel('batch'), isolation: 'none' },
      batchSize: [4],
    });
    expect(await fixed.batchedRun(row(5))).toEqual(await padded.batchedRun(row(5)));
  });

  it('[5.8] Weights in other files are read', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'main-thread-'));
    const model = join(folder, 'model.onnx');
    await writeFile(join(folder, 'weights.data'), Float32Array.of(10, 20));
    await writeFile(model, weightsApartModel('weights.data'));

    const serving = await serve<{ y: Tensor }>({
      ...here,
      model: { file: model, isolation: 'none' },
    });

    expect((await serving.batchedRun({ x: floats([1, 2], [1, 2]) })).y).toEqual(
      floats([1, 2], [11, 22]),
    );
    await rm(folder, { recursive: true });
  });

  it('[5.8] A model is fetched by its address, once for batches and run()', async () => {
    const server = await new ModelServer().listen();
    const bytes = linearModel('batch');
    server.add('/linear.onnx', bytes);
    const local = await serve<{ y: Tensor }>({
      ...here,
      name: 'local',
      model: { file: bytes, isolation: 'none' },
    });

    const file = `${server.origin}/linear.onnx`;
    const serving = await serve<{ y: Tensor }>({
      ...here,
      model: { file, sha256: sha256(bytes), isolation: 'none' },
    });

    expect(await serving.batchedRun(row(1))).toEqual(await local.batchedRun(row(1)));
    expect(await serving.run(row(2))).toEqual(await local.batchedRun(row(2)));
    expect(server.requests).toEqual(['GET /linear.onnx']);
    await server.close();
  });

  it('[5.8] [6.1] A run that fails fails its calls alone', async () => {
    const gather = onnxModel({
      inputs: { i: value('int64', 'batch') },
      outputs: { y: value('float32', 'batch') },
      nodes: [node('Gather', ['table', 'i'], ['y'])],
      initializers: { table: { type: 'float32', dims: [2], data: Float32Array.of(1, 2) } },
    });
    const serving = await serve<{ y: Tensor }>({
      ...here,
      model: { file: gather, isolation: 'none' },
    });

    const outcomes = await Promise.allSettled([0n, 9n, 1n].map((i) => serving.batchedRun(at(i))));

    expect(outcomes).toEqual([
      { status: 'fulfilled', value: { y: floats([1], [1]) } },
      { status: 'rejected', reason: expect.any(BatchFailedError) },
      { status: 'fulfilled', value: { y: floats([1], [2]) } },
    ]);
  });

  it('[5.8] [9.3] Closing runs what is queued, and calls after it are refused', async () => {
    const serving = await serve<{ y: Tensor }>({
      ...here,
      model: { file: linearModel('batch'), isolation: 'none' },
    });
    const replies = [1, 2, 3].map((n) => serving.batchedRun(row(n)));

    await serving.close();

    expect(await Promise.all(replies)).toHaveLength(3);
    await expect(serving.batchedRun(row(1))).rejects.toThrow(ServingClosedError);
  });

  it('[5.8] A file that is no model fails the start, and a later start reads it again', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'main-thread-'));
    const model = join(folder, 'model.onnx');
    await writeFile(model, 'no model');
    const serving = createServing({ ...here, model: { file: model, isolation: 'none' } });
    await expect(serving.start()).rejects.toThrow(ServingLoadError);

    await writeFile(model, echoModel({ x: value('float32', 'batch', 3) }));
    await serve(serving);

    expect(await serving.batchedRun(row(1))).toEqual({ same_x: row(1).x });
    await rm(folder, { recursive: true });
  });

  it('[5.8] Runs above blockingLimit log one warning with figures', async () => {
    const warnings = recordWarnings();
    const model = linearModel('batch');
    const slow = await serve({
      ...here,
      model: { file: model, blockingLimit: 0, isolation: 'none' },
    });
    const fast = await serve({
      ...here,
      name: 'fast',
      model: { file: model, blockingLimit: 60_000, isolation: 'none' },
    });

    for (let n = 0; n < 5; n++) {
      await Promise.all([slow.batchedRun(row(n)), fast.batchedRun(row(n))]);
    }

    expect(warnings).toEqual([
      expect.stringMatching(
        /^Serving "net" held the event loop for [\d.]+ ms with a run of [12] rows?: .*isolation: 'thread'/,
      ),
    ]);
  });

  it('[5.8] onnxruntime-node is loaded by the start of such a serving, and not before', async () => {
    const { messages, code } = await forkChild('loaded-runtimes', [digits]);

    expect(messages).toEqual([false, false, false, false, true]);
    expect(code).toBe(0);
  });
});
