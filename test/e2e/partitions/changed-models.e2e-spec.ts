import { readFileSync } from 'node:fs';
import { appendFile, cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import {
  createServing,
  type LocalServing,
  type PartitionStatus,
  type ServingDefinition,
  ServingLoadError,
  type Tensor,
} from 'nestjs-serving';
import { textGeneration } from 'nestjs-serving/tasks';
import { filter, firstValueFrom } from 'rxjs';
import { itOnLinux } from '../../fixtures/describe-unless.js';
import { value, weightsApartModel } from '../../fixtures/models/models.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const x = floats([1, 2], [1, 2]);
const oneOf = (op: string, inner = 'inner'): Uint8Array =>
  onnxModel({
    inputs: { x: value('float32', 'batch', 2) },
    outputs: { y: value('float32', 'batch', 2) },
    nodes: [node('Identity', ['x'], [inner]), node(op, [inner], ['y'])],
  });
/** Models of more than 1 MiB are kept on disk, others in memory. The name makes the file long. */
const large = 'i'.repeat(2 << 20);

const needsProc = 'it reads the ids of child processes from /proc';

function killChildren(): void {
  const children = readFileSync(`/proc/self/task/${process.pid}/children`, 'utf8')
    .split(' ')
    .filter(Boolean);
  children.forEach((pid) => process.kill(Number(pid), 'SIGKILL'));
}

type Net = LocalServing<unknown, { y: Tensor }>;

/** Kills the process of the serving and waits until its partition is up again or lost. */
function restart(serving: Net): Promise<PartitionStatus> {
  const changes = serving.eventsOf('partition:change');
  const settled = firstValueFrom(changes.pipe(filter(({ state }) => state !== 'restarting')));
  killChildren();
  return settled;
}

describe('A model whose file changes while the application runs', () => {
  const serve = useServings();
  let folder: string;
  let model: string;

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'changed-'));
    model = join(folder, 'model.onnx');
  });

  afterEach(() => rm(folder, { recursive: true }));

  it.each([
    ['thread', undefined],
    ['process', undefined],
    ['thread', large],
    ['process', large],
  ] as const)(
    '[W8] A serving that starts after its first run() uses the model as it was, in a %s: %#',
    async (isolation, inner) => {
      await writeFile(model, oneOf('Identity', inner));
      const serving = createServing<unknown, { y: Tensor }, unknown, unknown>({
        name: 'net',
        model: { file: model, isolation },
      });
      expect((await serving.run({ x })).y).toEqual(x);
      await writeFile(model, oneOf('Neg'));

      await serving.start();
      expect((await serving.batchedRun({ x })).y).toEqual(x);
      await serving.close();
    },
  );

  for (const inner of ['inner', large]) {
    itOnLinux(
      needsProc,
      `[W8] A restarted partition uses the model as it was, also when the file has other inputs or is gone: ${inner.length} bytes`,
      async () => {
        await writeFile(model, oneOf('Identity', inner));
        const serving: Net = await serve({
          name: 'net',
          model: { file: model, isolation: 'process' },
          recovery: { restartDelay: 1 },
        });

        await writeFile(model, oneOf('Neg'));
        expect(await restart(serving)).toMatchObject({ state: 'up', restarts: 1 });
        expect((await serving.batchedRun({ x })).y).toEqual(x);
        await rm(model);
        expect(await restart(serving)).toMatchObject({ state: 'up', restarts: 2 });
        expect((await serving.batchedRun({ x })).y).toEqual(x);
      },
    );
  }

  itOnLinux(
    needsProc,
    '[FQ7] A model that writes step by step is not up after a restart if its file has changed, until it is reloaded',
    async () => {
      const from = join(folder, 'writer');
      await cp('test/fixtures/tasks/generator', from, { recursive: true });
      const file = join(from, 'onnx/model_gqa.onnx');
      const serving = await serve<{ tokens: readonly number[] }>({
        ...(textGeneration({
          name: 'writer',
          model: { from, file: 'onnx/model_gqa.onnx', isolation: 'process' },
          recovery: { restartDelay: 1, maxRestarts: 1 },
        }) as ServingDefinition<unknown, { tokens: readonly number[] }>),
      });
      const call = { prompt: 'a', maxTokens: 3 };
      const { tokens } = await serving.batchedRun(call);

      await appendFile(file, Buffer.alloc(1));
      expect(await restart(serving as never)).toMatchObject({
        state: 'lost',
        reason: expect.stringContaining(`The file ${file} has changed since the serving started`),
      });
      await writeFile(file, await readFile('test/fixtures/tasks/generator/onnx/model_gqa.onnx'));
      await serving.reload({ model: from });
      expect(await serving.batchedRun(call)).toMatchObject({ tokens });
    },
  );

  itOnLinux(
    needsProc,
    '[W8] A model whose external weights have changed is not up after a restart, with the reason',
    async () => {
      const weights = join(folder, 'weights.data');
      await writeFile(weights, Float32Array.of(10, 20));
      await writeFile(model, weightsApartModel('weights.data'));
      const serving: Net = await serve({
        name: 'net',
        model: { file: model, isolation: 'process' },
        recovery: { restartDelay: 1, maxRestarts: 1 },
      });

      expect((await serving.batchedRun({ x })).y).toEqual(floats([1, 2], [11, 22]));
      await writeFile(weights, Float32Array.of(0, 0));
      expect(await restart(serving)).toMatchObject({
        state: 'lost',
        reason: expect.stringContaining(
          `The file ${weights} has changed since the serving started`,
        ),
      });
      await expect(serving.batchedRun({ x })).rejects.toThrow(
        `The file ${weights} has changed since the serving started`,
      );
    },
  );

  it('[W8] The model is read again by the start after a failed one', async () => {
    await writeFile(model, 'no model');
    const serving = createServing({ name: 'net', model });
    await expect(serving.start()).rejects.toThrow(ServingLoadError);
    await writeFile(model, oneOf('Identity'));

    await serve(serving);

    expect(await serving.batchedRun({ x })).toEqual({ y: x });
  });
});
