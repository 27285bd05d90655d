import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from '@jest/globals';
import { Batch } from 'nestjs-serving';
import { Tensor } from 'onnxruntime-node';
import { sessionOf } from '../../../lib/extensions/tasks/onnx-session.js';
import { forkChild } from '../../fixtures/partitions/fork-child.js';
import { useGates } from '../../fixtures/batching/gate.js';
import { slowModel } from '../../fixtures/models/models.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { turn } from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';

/** The reply of `workers/gate.mjs` to a row. */
interface Passed {
  readonly row: unknown;
  readonly size: number;
}

describe('The threads of a serving', () => {
  const gate = useGates();
  const serve = useServings();

  it.each([
    ['a number', 2, 2],
    ['a list', [{}, {}, {}], 3],
    ['one per core, less one for the event loop', true, Math.max(1, availableParallelism() - 1)],
  ] as const)('[5.1] There are as many threads as partitions: %s', async (_, partitions, count) => {
    const serving = await serve<Passed>({
      name: 'gate',
      model: { useFile: worker('gate') },
      partitions,
      batchSize: 1,
    });
    const gates = Array.from({ length: count + 1 }, () => gate());
    const replies = gates.map(({ row }) => serving.batchedRun(row));

    // As many batches run concurrently as there are partitions, each blocking a thread. The next
    // batch waits.
    await Promise.all(gates.slice(0, count).map((each) => each.entered()));
    await turn();
    expect(gates[count]!.isEntered).toBe(false);

    gates.forEach((each) => each.open());
    await Promise.all(replies);
  });

  it('[5.1] Each thread runs one batch at a time', async () => {
    const serving = await serve<Passed>({
      name: 'gate',
      model: { useFile: worker('gate') },
      batchSize: 1,
    });
    const [first, second] = [gate(), gate()];
    const replies = [first, second].map(({ row }) => serving.batchedRun(row));
    await first.entered();
    await turn();

    expect(second.isEntered).toBe(false);

    first.open();
    await second.entered();
    second.open();
    await Promise.all(replies);
  });

  it('[5.2] The event loop stays free while a model runs', async () => {
    const serving = await serve({ name: 'slow', model: slowModel(20), batchSize: 256 });
    let turns = 0;
    let immediate = setImmediate(function count() {
      turns++;
      immediate = setImmediate(count);
    });

    await serving.batchedRun(floats([256, 512], Array(256 * 512).fill(1)));
    clearImmediate(immediate);

    // On the main thread the whole run would take one turn.
    expect(turns).toBeGreaterThan(20);
  });

  it.each<[string, () => Promise<() => Promise<unknown>>]>([
    [
      'a serving',
      async () => {
        const model = { file: slowModel(1), session: { intraOpNumThreads: 2 } };
        const serving = await serve({ name: 'short', model });
        return () => serving.batchedRun(floats([64, 512], Array(64 * 512).fill(1)));
      },
    ],
    [
      'a task of steps',
      async () => {
        const session = await sessionOf('short', slowModel(1), { intraOpNumThreads: 2 });
        const x = new Tensor('float32', new Float32Array(64 * 512).fill(1), [64, 512]);
        return () => session.run({ [session.inputNames[0]!]: x }, session.outputNames);
      },
    ],
  ])('[5.9] The threads of %s leave the cores to others between runs', async (_, opened) => {
    const call = await opened();
    const shares: number[] = [];

    for (let i = 0; i < 20; i++) {
      await call();
      const [begin, before] = [performance.now(), process.cpuUsage()];
      await delay(50);
      const { user, system } = process.cpuUsage(before);
      shares.push((user + system) / 1000 / (performance.now() - begin));
    }

    // By default onnxruntime's threads would take most of a core in each pause. We judge the
    // quietest one, since V8's threads also compile and collect in some.
    expect(Math.min(...shares)).toBeLessThan(0.3);
  });

  it('[5.2] Timers and replies of others stay free while a thread is blocked', async () => {
    const serving = await serve<Passed>({
      name: 'gate',
      model: { useFile: worker('gate') },
      partitions: 2,
    });
    const held = gate();
    const reply = serving.batchedRun(held.row);
    await held.entered();

    await new Promise((resolve) => setTimeout(resolve, 1));
    const others = await Promise.all([1, 2, 3].map((row) => serving.batchedRun(row)));

    expect(others.map(({ row }) => row)).toEqual([1, 2, 3]);
    held.open();
    await reply;
  });

  it('[5.5] A thread is handed one full batch ahead while it runs, and no more', async () => {
    const serving = await serve<Passed[]>({
      name: 'gate',
      model: { useFile: worker('gate') },
      batchSize: 2,
    });
    const held = gate();
    const rows = ['a', 'b', 'c', 'd'].map((name) => ({ name, when: 'before' }));
    const running = serving.batchedRun(Batch.ofValues([held.row, 'mate']));
    await held.entered();
    const replies = [rows.slice(0, 2), rows.slice(2)].map((pair) =>
      serving.batchedRun(Batch.ofValues(pair)),
    );
    await turn();

    // Rows that moved to the thread do not change with the caller's row.
    rows.forEach((row) => (row.when = 'after'));
    held.open();

    expect((await Promise.all(replies)).flat().map(({ row }) => row)).toEqual([
      { name: 'a', when: 'before' },
      { name: 'b', when: 'before' },
      { name: 'c', when: 'after' },
      { name: 'd', when: 'after' },
    ]);
    await running;
  });

  it('[5.5] [4.2] A batch that is not full is not handed ahead and takes more rows', async () => {
    const serving = await serve<Passed>({
      name: 'gate',
      model: { useFile: worker('gate') },
      batchSize: 3,
    });
    const held = gate();
    const running = serving.batchedRun(held.row);
    await held.entered();
    const row = { when: 'before' };
    const early = serving.batchedRun(row);
    await turn();
    row.when = 'after';
    const late = serving.batchedRun('late');
    await turn();
    held.open();

    expect(await Promise.all([early, late])).toEqual([
      { row: { when: 'after' }, size: 2 },
      { row: 'late', size: 2 },
    ]);
    await running;
  });

  it('[5.3] [9.3] Closing waits for threads and for queued rows', async () => {
    const serving = await serve<Passed>({
      name: 'gate',
      model: { useFile: worker('gate') },
      batchSize: 1,
    });
    const held = gate();
    const replies = [held.row, 'ahead', 'queued'].map((row) => serving.batchedRun(row));
    await held.entered();
    let closed = false;
    const closing = serving.close().then(() => (closed = true));
    await turn();
    expect(closed).toBe(false);

    held.open();

    expect((await Promise.all(replies)).map(({ row }) => row)).toEqual([
      held.row,
      'ahead',
      'queued',
    ]);
    await closing;
  });

  it('[5.3] [9.3] Threads end also when their modules leave timers running, loaded or not', async () => {
    const end = await forkChild(
      'leftovers',
      ['timer', 'load-fails'].map((name) => worker(name).href),
    );

    expect(end).toMatchObject({
      code: 0,
      messages: [
        'served',
        `Serving "module": Cannot load ${worker('load-fails').href}: no weights here`,
      ],
    });
  });

  it('[5.3] A process ends normally when a serving was closed while its model ran', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'threads-'));
    const file = join(folder, 'slow.onnx');
    await writeFile(file, slowModel(20));

    const end = await forkChild('close-while-running', [file]);
    await rm(folder, { recursive: true });

    expect(end).toMatchObject({ code: 0, messages: [{ running: true }, Array(4).fill(256 * 512)] });
  });

  it('[5.3] [9.3] Threads leave nothing after twenty cycles of opening and closing, and keep no idle process alive', async () => {
    const model = fileURLToPath(
      new URL('../../../sample/01-digits/model/digits.onnx', import.meta.url),
    );

    const end = await forkChild('open-and-close', [model, 'thread', '20']);

    expect(end).toMatchObject({
      code: 0,
      messages: Array.from({ length: 20 }, (_, cycle) => cycle),
    });
  });
});
