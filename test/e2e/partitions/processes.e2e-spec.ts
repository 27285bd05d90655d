import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  DONE,
  InvalidOutputError,
  type Isolation,
  type LocalServing,
  PartitionLostError,
  ServingLoadError,
  type ServingDefinition,
  type ServingOptions,
  Tensor,
} from 'nestjs-serving';
import { useAppProcesses } from '../../fixtures/http/app-process.js';
import { forkChild } from '../../fixtures/partitions/fork-child.js';
import { useGates } from '../../fixtures/batching/gate.js';
import { echoModel, recurrentModel, value } from '../../fixtures/models/models.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { floats, sixOfEachType } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { worker } from '../../fixtures/partitions/worker.js';

const model = fileURLToPath(
  new URL('../../../sample/01-digits/model/digits.onnx', import.meta.url),
);
/** Without restarts, so that the other process must answer. */
const mortal = { recovery: { maxRestarts: 0 } };

const step = (n: number) => ({
  x: floats([1, 3], [n, n, n]),
  state: floats([2, 1, 3], [1, 2, 3, 4, 5, 6]),
  rate: new Tensor('int64', [8n], []),
});

const digits = (isolation: Isolation): ServingDefinition => ({
  name: 'digits',
  model: { file: model, session: { intraOpNumThreads: 1 }, isolation },
  batchSize: 8,
  partitions: 2,
});

describe('The processes of a serving', () => {
  const gate = useGates();
  const serve = useServings();
  const run = useAppProcesses();

  /** Processes that end at some rows, and answer others with their ids. */
  const serveDying = (options: Partial<ServingOptions> = {}) =>
    serve<number>({
      name: 'dying',
      model: { useFile: worker('dying'), isolation: 'process' },
      batchSize: 1,
      ...mortal,
      ...options,
    });

  /** A process that answers a row with as many steps as it asks for. */
  const serveSteps = () =>
    serve({
      name: 'steps',
      model: { useFile: worker('steps'), isolation: 'process' },
      batchTimeout: 1,
    });

  it('[5.2] Processes give the same answers as threads, alone and in batches', async () => {
    const [thread, process] = [await serve(digits('thread')), await serve(digits('process'))];
    const images = Array.from({ length: 40 }, (_, n) =>
      floats(
        [1, 784],
        Array.from({ length: 784 }, (__, i) => ((i * n) % 256) / 255),
      ),
    );
    const ask = (serving: LocalServing): Promise<unknown[]> =>
      Promise.all([
        ...images.map((image) => serving.batchedRun({ image })),
        serving.batchedRun(Batch.concatenate(images)),
        serving.run(images[7]),
      ]);

    expect(await ask(process)).toEqual(await ask(thread));
  });

  it('[1.3] [1.8] Processes accept a model as bytes, and rows on any axis', async () => {
    const serving = await serve({
      name: 'net',
      model: { file: recurrentModel(2, 'batch'), isolation: 'process' },
    });

    const [one, two] = await Promise.all([
      serving.batchedRun(step(1)),
      serving.batchedRun(step(2)),
    ]);

    expect(one).toEqual({
      y: floats([1, 3], [8, 8, 8]),
      next: floats([2, 1, 3], [2, 3, 4, 5, 6, 7]),
      used: step(1).rate,
    });
    expect(two).toMatchObject({ y: floats([1, 3], [16, 16, 16]) });
  });

  it('[1.7] Processes run tensors of every element type and give each caller memory of its own', async () => {
    const serving = await serve<Tensor>({
      name: 'echo',
      model: { useFile: worker('echo'), isolation: 'process' },
      batchSize: 4,
    });

    const replies = await Promise.all(
      [...sixOfEachType, ...sixOfEachType].map((rows) => serving.batchedRun(rows)),
    );

    expect(replies).toEqual([...sixOfEachType, ...sixOfEachType]);
    for (const { data } of replies) {
      expect(ArrayBuffer.isView(data) && data.buffer.byteLength).toBe(
        ArrayBuffer.isView(data) && data.byteLength,
      );
    }
  });

  it('[1.7] Processes run strings and booleans through a model', async () => {
    const types = {
      s: value('string', 'batch'),
      b: value('bool', 'batch'),
      i: value('int64', 'batch'),
    };
    const serving = await serve({
      name: 'echo',
      model: { file: echoModel(types), isolation: 'process' },
    });
    const [s, b, i] = [
      new Tensor('string', ['größer', ''], [2]),
      new Tensor('bool', [true, false], [2]),
      new Tensor('int64', [2n ** 63n - 1n, -1n], [2]),
    ];

    expect(await serving.batchedRun({ s, b, i })).toEqual({ same_s: s, same_b: b, same_i: i });
  });

  it('[8.4] Processes run generators step by step, each row until it is done, with their metadata', async () => {
    const serving = await serveSteps();
    const rows = ['a', 'b', 'c'].map((name, i) => ({ name, steps: i + 1 }));

    const streams = await Promise.all(rows.map((row) => iterated(serving.stream(row))));

    expect(streams.map(outputsOf)).toEqual([['a0'], ['b0', 'b1'], ['c0', 'c1', 'c2']]);
    expect(streams[2]!.map((event) => (event as { metadata: unknown }).metadata)).toEqual([
      { step: 0 },
      { step: 1 },
      { step: 2 },
    ]);
    expect(outputsOf(streams[0]!)).not.toContain(DONE);
  });

  it('[8.4] Processes send more steps than may be in transit at a time', async () => {
    const serving = await serveSteps();

    const outputs = outputsOf(await iterated(serving.stream({ name: 'a', steps: 500 })));

    expect(outputs).toEqual(Array.from({ length: 500 }, (_, i) => `a${i}`));
  });

  it('[7.3] [8.4] Processes are notified of a caller that leaves, and end a generator when the last has left', async () => {
    const serving = await serve<string[]>({
      name: 'watched',
      model: { useFile: worker('watched'), isolation: 'process' },
      batchTimeout: 1,
    });
    const [leaving, staying] = ['leaves', 'stays'].map((row) =>
      serving.stream(row)[Symbol.asyncIterator](),
    );
    const next = async (stream: typeof leaving): Promise<unknown> =>
      ((await stream!.next()).value as { output: unknown }).output;
    expect(await Promise.all([next(leaving), next(staying)])).toEqual([
      ['leaves', 'stays'],
      ['leaves', 'stays'],
    ]);

    await leaving!.return!();
    let callers = await next(staying);
    while ((callers as string[]).length > 1) {
      callers = await next(staying);
    }
    expect(callers).toEqual(['stays']);

    await staying!.return!();
    // The generator goes on while a caller waits, and shutdown waits for it.
    await serving.close();
  });

  it.each([
    ['is killed', 'was killed by SIGKILL'],
    ['aborts', 'was killed by SIGABRT'],
    ['exits', 'ended with code 7'],
  ])('[5.6] A process that %s fails only the batch that it runs', async (end, message) => {
    const serving = await serveDying({ partitions: 2 });

    const [failure, other] = await Promise.all([
      failureOf(serving.batchedRun(end)),
      serving.batchedRun('other'),
    ]);

    expect(failure).toBeInstanceOf(PartitionLostError);
    expect(failure).toMatchObject({ code: 'SERVING_PARTITION_LOST', statusCode: 503 });
    expect((failure as Error).message).toContain(`The process of partition 0 ${message}`);
    expect(await Promise.all([1, 2, 3].map((row) => serving.batchedRun(row)))).toEqual([
      other,
      other,
      other,
    ]);
  });

  it('[5.6] A process can be killed from outside while it runs', async () => {
    const serving = await serveDying();
    const held = gate();
    const pid = await serving.batchedRun('which');
    const running = failureOf(serving.batchedRun(held.row));
    await held.entered();

    process.kill(pid, 'SIGKILL');

    expect(await running).toMatchObject({
      message: 'Serving "dying": The process of partition 0 was killed by SIGKILL',
    });
  });

  it('[5.6] A process can be killed from outside while it is idle', async () => {
    const serving = await serveDying({ partitions: 2 });
    const [first, second] = await Promise.all([1, 2].map((row) => serving.batchedRun(row)));
    expect(new Set([first, second, process.pid]).size).toBe(3);

    process.kill(first!, 'SIGKILL');

    // One of two concurrent calls may go to the process that has ended.
    await Promise.allSettled([1, 2].map((row) => serving.batchedRun(row)));
    expect(await Promise.all([1, 2, 3].map((row) => serving.batchedRun(row)))).toEqual([
      second,
      second,
      second,
    ]);
  });

  it('[5.6] A process that fills its memory ends alone', async () => {
    const end = await forkChild('full-memory', [], { NODE_OPTIONS: '--max-old-space-size=64' });

    expect(end).toMatchObject({
      code: 0,
      messages: [
        {
          code: 'SERVING_PARTITION_LOST',
          message: expect.stringMatching(
            /^Serving "dying": The process of partition 0 (ended with|was killed by)/,
          ),
        },
        'number',
      ],
    });
  });

  it('[9.1] A process that ends while it loads a module fails the start with the cause', async () => {
    const starting = serve({
      name: 'dying',
      model: { useFile: worker('dies-at-load'), isolation: 'process' },
      partitions: 2,
    });

    await expect(starting).rejects.toThrow(ServingLoadError);
    await expect(starting).rejects.toThrow(
      `Serving "dying": The process of partition 0 was killed by SIGKILL while it loaded ${worker('dies-at-load').href}`,
    );
  });

  it("[9.1] A process that ends while it loads a model fails the start with the model's path", async () => {
    const preload = fileURLToPath(
      new URL('../../fixtures/children/dying-model.cjs', import.meta.url),
    );

    const end = await forkChild('killed-at-load', [model], {
      NODE_OPTIONS: `--require=${preload}`,
    });

    const message = `Serving "dying": The process of partition 0 was killed by SIGKILL while it loaded ${model}`;
    expect(end).toMatchObject({ code: 0, messages: [{ code: 'SERVING_LOAD_FAILED', message }] });
  });

  it('[9.1] An invalid model fails the start of a process with its path', async () => {
    const path = fileURLToPath(import.meta.url);

    await expect(
      serve({ name: 'wrong', model: { file: path, isolation: 'process' } }),
    ).rejects.toThrow(`Cannot load the model ${path}`);
  });

  it('[9.3] Processes ignore signals to the whole group, which the application handles', async () => {
    const serving = await serve<number>({
      name: 'dying',
      model: { useFile: worker('dying'), isolation: 'process' },
    });
    const pid = await serving.batchedRun('which');

    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT']) {
      process.kill(pid, signal);
      expect(await serving.batchedRun('which')).toBe(pid);
    }
  });

  it('[5.3] [9.3] Processes do not outlive an application that is killed, also during a run', async () => {
    const held = gate();
    const app = run('parted', { gate: held.row.gate });
    const [pids] = await app.messages<number[]>('processes');
    await held.entered();
    expect(new Set(pids).size).toBe(2);

    app.kill('SIGKILL');

    // The output closes when no process can write to it any more. Child processes inherit it.
    expect(await app.ended).toEqual({ code: null, signal: 'SIGKILL', output: '' });
    expect(held.isLeft).toBe(true);
  });

  describe('messages of 2 GiB or more', () => {
    // Memory that is never written takes no space.
    const half = 2 ** 30;
    const isTyped = expect.objectContaining({ code: 'SERVING_TOO_LARGE', statusCode: 413 });

    it('[H7] A row that is too large for one message fails alone, also by the sum of its parts', async () => {
      const serving = await serve({
        name: 'lengths',
        model: { useFile: worker('lengths'), isolation: 'process' },
      });
      const changes: unknown[] = [];
      serving.eventsOf('partition:change').subscribe((change) => changes.push(change));
      const parts = [new Uint8Array(half), new Uint8Array(half)];

      const large = serving.batchedRun({ held: parts });
      const small = [1, 2, 3].map((length) =>
        serving.batchedRun({ held: [new Uint8Array(length)] }),
      );

      await expect(large).rejects.toEqual(isTyped);
      await expect(large).rejects.toThrow(
        /^A batch of 214748\d{4} bytes is more than a process can be sent in one message, 2147483647 bytes/,
      );
      expect(await Promise.all(small)).toEqual([1, 2, 3]);
      await expect(serving.run({ held: parts })).rejects.toEqual(isTyped);
      expect(changes).toEqual([]);
    });

    it('[H7] A batch whose output is too large for one message fails alone', async () => {
      const serving = await serve({
        name: 'lengths',
        model: { useFile: worker('lengths'), isolation: 'process' },
        batchSize: 1,
      });

      const replies = [
        serving.batchedRun({ asked: [half, half] }),
        serving.batchedRun({ held: [new Uint8Array(7)] }),
      ];

      await expect(replies[0]).rejects.toThrow(InvalidOutputError);
      await expect(replies[0]).rejects.toThrow(
        /^Serving "[^"]+": An output of 214748[34]\d{3} bytes is more than a process can send in one message/,
      );
      expect(await replies[1]).toBe(7);
      expect(serving.partitions()).toEqual([{ state: 'up', restarts: 0 }]);
    });
  });

  it('[5.3] [9.3] Processes leave nothing after five cycles of opening and closing, and keep no idle process alive', async () => {
    const end = await forkChild('open-and-close', [model, 'process', '5']);

    expect(end).toMatchObject({ code: 0, messages: [0, 1, 2, 3, 4], stderr: '' });
  });

  it('[9.3] Processes end with app.close(), after the batches that they hold', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'processes-'));
    const diary = join(folder, 'diary.txt');
    const app = run('http', { platform: 'express', ending: 'close', diary, isolation: 'process' });
    const [url] = await app.messages<string>('listening');
    const response = await fetch(`${url}/threads/text`);
    expect([response.status, await response.text()]).toEqual([200, 'text']);

    app.kill('SIGTERM');

    expect(await app.ended).toEqual({ code: 0, signal: null, output: '' });
    expect(await readFile(diary, 'utf8')).toBe('started\nstarted\nended\nended\n');
    await rm(folder, { recursive: true });
  });
});
