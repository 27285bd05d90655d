import { cp, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as turn, setTimeout as pause } from 'node:timers/promises';
import { describe, expect, it, jest } from '@jest/globals';
import {
  createServing,
  RunTimeoutError,
  type Serving,
  ServingClosedError,
  type ServingDefinition,
  ServingLoadError,
  Tensor,
} from 'nestjs-serving';
import {
  type GeneratedText,
  textEmbedding,
  textGeneration,
  type TextToContinue,
} from 'nestjs-serving/tasks';
import {
  NativeRuntime,
  nativeRuntime,
  RunLane,
} from '../../../lib/features/onnx/native-runtime.js';
import { ShortRuns } from '../../../lib/features/onnx/native-engine.js';
import {
  NativeRunOptions,
  NativeSession,
  openNativeSession,
} from '../../../lib/features/onnx/native-session.js';
import {
  echoModel,
  gainModel,
  slowModel,
  summingModel,
  value,
} from '../../fixtures/models/models.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { decoderWithWeightsApart } from '../../fixtures/tasks/written-models.js';
import { floats } from '../../fixtures/values/tensors.js';

const isolation = 'native';
const digits = 'sample/01-digits/model/digits.onnx';

const imageOf = (seed: number, rows = 1): Tensor =>
  floats(
    [rows, 784],
    Array.from({ length: rows * 784 }, (_, i) => Math.sin(i * seed)),
  );

const rowOf = (call: number): Tensor => floats([1, 100], Array<number>(100).fill(call + 1));

/** Doubles its rows on the first provider that works. */
const gainOn = (...executionProviders: string[]) =>
  ({
    name: 'gain',
    model: { file: gainModel(2), isolation, session: { executionProviders } },
  }) as const;

/** Rows of the slow model. */
const rows = (count: number): Tensor =>
  new Tensor('float32', new Float32Array(count * 512).fill(1), [count, 512]);

async function turns(count: number): Promise<void> {
  for (let made = 0; made < count; made++) {
    await turn();
  }
}

describe('A serving with native sessions', () => {
  const serve = useServings();

  it('[24.2] answers calls of any size at the same time as threads do', async () => {
    const options = { batchSize: 8, partitions: 3 };
    const native = await serve({ name: 'a', ...options, model: { file: digits, isolation } });
    const thread = await serve({
      name: 'b',
      ...options,
      model: { file: digits, isolation: 'thread' },
    });
    const calls = Array.from({ length: 300 }, (_, i) => ({ image: imageOf(i + 1, 1 + (i % 11)) }));

    const [answers, expected] = await Promise.all(
      [native, thread].map((serving) =>
        Promise.all(calls.map((call) => serving.batchedRun(call) as Promise<Answer>)),
      ),
    );

    for (const [index, { probabilities }] of answers!.entries()) {
      const other = expected![index]!.probabilities;
      expect(probabilities.dims).toEqual(other.dims);
      const distances = [...probabilities.data].map((one, i) =>
        Math.abs(Number(one) - Number(other.data[i])),
      );
      expect(Math.max(...distances)).toBeLessThan(1e-5);
    }
  });

  it('[24.1] returns an input that the model gives back under the same name', async () => {
    const x = value('float32', 'batch', 100);
    const file = onnxModel({
      inputs: { x },
      outputs: { x, y: x },
      nodes: [node('Neg', ['x'], ['y'])],
    });
    const serving = await serve<Record<'x' | 'y', Tensor>>({
      name: 'passing',
      batchSize: 4,
      model: { file, isolation },
    });
    const replies = await Promise.all(
      Array.from({ length: 40 }, (_, call) => serving.batchedRun({ x: rowOf(call) })),
    );
    replies.forEach((reply, call) => {
      expect(reply.x).toEqual(rowOf(call));
      expect(reply.y.data[99]).toBe(-call - 1);
    });
  });

  it('[24.1] passes the strings of a batch to the library as one text', async () => {
    const file = echoModel({ text: value('string', 'n') });
    const serving = await serve<{ same_text: Tensor }>({
      name: 'texts',
      batchSize: 5000,
      model: { file, isolation },
    });
    const texts = Array.from({ length: 5000 }, (_, i) => ['', 'ä🙂', 'x'.repeat(i)][i % 3]!);
    const addresses = jest.spyOn(NativeRuntime.prototype, 'address');
    const { same_text: same } = await serving.batchedRun({
      text: new Tensor('string', texts, [texts.length]),
    });
    expect(same.data).toEqual(texts);
    expect(addresses.mock.calls.length).toBeLessThan(50);
    jest.restoreAllMocks();
  });

  it('[24.2] keeps the states of sessions', async () => {
    const serving = await serve({
      name: 'sum',
      partitions: 2,
      model: { file: summingModel('n'), state: { sum: 'total' }, isolation },
    });
    const [one, other] = [serving.open(), serving.open()];
    const x = floats([1, 2], [1, 10]);
    const sums: unknown[] = [];
    for (const session of [one, other, one, one, other]) {
      const { y } = (await session.run({ x })) as { y: Tensor };
      sums.push([...y.data]);
    }
    expect(sums).toEqual([
      [1, 10],
      [1, 10],
      [2, 20],
      [3, 30],
      [2, 20],
    ]);
  });

  it('[24.13] Full batches that wait run one after the other while the event loop is busy', async () => {
    const serving = await serve<{ x1000: Tensor }>({
      name: 'slow',
      batchSize: 1,
      model: { file: slowModel(1000), isolation, session: { intraOpNumThreads: 1 } },
    });
    const run = () => serving.batchedRun({ x: rows(1) });
    let begin = performance.now();
    await run();
    const time = performance.now() - begin;
    /** Runs that end while the event loop is busy. */
    const endedMeanwhile = async (): Promise<number> => {
      let answered = 0;
      const calls = Array.from({ length: 8 }, () => run().then(() => answered++));
      // From the second run on, the next one is queued behind the one that goes on.
      await Promise.all(calls.slice(0, 3));
      await turns(5);
      const before = answered;
      begin = performance.now();
      while (performance.now() - begin < 15 * time);
      // Far fewer than a run takes.
      await turns(20);
      const ended = answered - before;
      await Promise.all(calls);
      return ended;
    };
    // Without the queue it is always one; a starved machine may need several tries to run two.
    let most = 0;
    for (let tries = 0; tries < 10 && most < 2; tries++) {
      most = Math.max(most, await endedMeanwhile());
    }
    expect(most).toBeGreaterThanOrEqual(2);
  });

  it('[24.4] The end of a run leaves the one that is queued behind it', async () => {
    const serving = await serve<{ x300: Tensor }>({
      name: 'slow',
      batchSize: 64,
      model: {
        file: slowModel(300),
        isolation,
        checkRows: false,
        session: { intraOpNumThreads: 1 },
      },
    });
    const left = new AbortController();
    const ends: string[] = [];
    serving.eventsOf('batch:end').subscribe(({ error }) => ends.push(error ? 'ended' : 'answered'));
    const call = (signal?: AbortSignal) => serving.batchedRun({ x: rows(64) }, { signal });
    const first = call();
    const [second, third] = [call(left.signal), call()];
    await first;
    await pause(30);
    left.abort();
    await expect(second).rejects.toThrow();
    expect((await third).x300.dims).toEqual([64, 512]);
    expect(ends).toEqual(['answered', 'ended', 'answered']);
  });

  it('[24.13] A run that is queued can be taken back, and the others go on', async () => {
    const runtime = await nativeRuntime();
    const session = await openNativeSession(slowModel(200), {});
    const lane = new RunLane(runtime);
    lane.expectMore();
    const run = async () => {
      const options = new NativeRunOptions(runtime, lane);
      const { x200 } = await session.run({ x: rows(8) }, ['x200'], options);
      options.release();
      return x200!.dims;
    };
    const [first, second] = [run(), run()];
    lane.revoke(new Error('taken back'));
    await expect(second).rejects.toThrow('taken back');
    // It may not have begun either.
    const end = await first.catch((error: Error) => error.message);
    expect([[8, 512], 'taken back']).toContainEqual(end);
    expect(await Promise.all([run(), run()])).toEqual([
      [8, 512],
      [8, 512],
    ]);
    await session.release();
  });

  it('[W13] A batch that waits behind a long run moves to a partition that is idle', async () => {
    const steps = 12;
    const x = value('float32', 'n', 'side', 'other');
    const file = onnxModel({
      inputs: { x },
      outputs: { [`x${steps}`]: x },
      nodes: Array.from({ length: steps }, (_, i) =>
        node('MatMul', [i === 0 ? 'x' : `x${i}`, 'x'], [`x${i + 1}`]),
      ),
    });
    const serving = await serve({
      name: 'squares',
      batchSize: 1,
      partitions: 2,
      model: { file, isolation, checkRows: false, session: { intraOpNumThreads: 1 } },
    });
    const ended: string[] = [];
    const call = async (name: string, side: number) => {
      await serving.batchedRun({ x: floats([1, side, side], Array<number>(side ** 2).fill(0)) });
      ended.push(name);
    };
    for (let round = 0; round < 4; round++) {
      await Promise.all([call('first', 64), call('first', 64)]);
    }
    const others = ['a', 'b', 'c', 'd', 'e'];
    await Promise.all([call('long', 1200), ...others.map((name) => call(name, 64))]);
    expect(ended.at(-1)).toBe('long');
  });

  it("[24.3] runs a caller's memory as it was when the call was made", async () => {
    const serving = await serve({
      name: 'gain',
      model: { file: gainModel(2), isolation },
    });
    const memory = Float32Array.of(1, 2);
    const reply = serving.batchedRun({ x: new Tensor('float32', memory, [1, 2]) });
    await pause(0);
    memory.fill(9);
    structuredClone(memory, { transfer: [memory.buffer] });
    expect([...((await reply) as { y: Tensor }).y.data]).toEqual([2, 4]);
  });

  it('[24.4] A run beyond runTimeout is ended, its callers get the typed error, and the partition stays', async () => {
    const serving = await serve({
      name: 'slow',
      batchSize: 512,
      recovery: { runTimeout: 300 },
      model: {
        file: slowModel(3000),
        isolation,
        checkRows: false,
        session: { intraOpNumThreads: 1 },
      },
    });

    const begin = performance.now();
    const failure = await serving.batchedRun({ x: rows(512) }).catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(RunTimeoutError);
    expect(String(failure)).toContain('and was ended; raise recovery.runTimeout');
    expect(serving.partitions()).toMatchObject([{ state: 'up', restarts: 0 }]);

    await serving.batchedRun({ x: rows(1) });
    expect(performance.now() - begin).toBeLessThan(5000 * slowness);
  });

  it.each([
    ['', {}],
    [', also with a runTimeout', { recovery: { runTimeout: 60_000 } }],
  ])('[24.4] A run whose callers have all left is ended%s', async (_, options) => {
    const serving = await serve({
      name: 'slow',
      batchSize: 512,
      ...options,
      model: {
        file: slowModel(3000),
        isolation,
        checkRows: false,
        session: { intraOpNumThreads: 1 },
      },
    });
    const ends: unknown[] = [];
    serving.eventsOf('batch:end').subscribe(({ error }) => ends.push(error));

    const controller = new AbortController();
    const call = serving.batchedRun({ x: rows(512) }, { signal: controller.signal });
    await pause(100);
    controller.abort();
    await expect(call).rejects.toThrow();
    await serving.batchedRun({ x: rows(1) });

    expect(String(ends[0])).toContain('terminate');
  });

  it('[24.4] A run whose callers left while it waited for another is ended', async () => {
    const serving = await serve({
      name: 'slow',
      batchSize: 512,
      model: {
        file: slowModel(3000),
        isolation,
        checkRows: false,
        session: { intraOpNumThreads: 1 },
      },
    });
    const ends: unknown[] = [];
    serving.eventsOf('batch:end').subscribe(({ error }) => ends.push(error));

    const [first, next] = [new AbortController(), new AbortController()];
    const calls = [first, next].map(({ signal }) =>
      serving.batchedRun({ x: rows(512) }, { signal }),
    );
    const left = Promise.allSettled(calls);
    await pause(100);
    next.abort();
    await pause(20);
    first.abort();
    await left;
    await serving.batchedRun({ x: rows(1) });

    expect(ends.slice(0, 2).map(String)).toEqual([
      expect.stringContaining('terminate'),
      expect.stringContaining('terminate'),
    ]);
  });

  it('[24.4] A warm-up, which no caller waits for, runs to its end', async () => {
    const serving = await serve<{ x300: Tensor }>({
      name: 'warm',
      batchSize: [1, 256],
      warmUp: [{ x: rows(1) }],
      model: { file: slowModel(300), isolation, session: { intraOpNumThreads: 1 } },
    });
    expect((await serving.batchedRun({ x: rows(1) })).x300.dims).toEqual([1, 512]);
  });

  it('[24.4] The limit of a shutdown ends a run', async () => {
    const serving = createServing({
      name: 'slow',
      batchSize: 512,
      shutdown: { timeout: 100 },
      model: {
        file: slowModel(3000),
        isolation,
        checkRows: false,
        session: { intraOpNumThreads: 1 },
      },
    });
    await serving.start();
    const call = serving.batchedRun({ x: rows(512) });
    await pause(100);
    const begin = performance.now();
    const closed = serving.close();
    await expect(call).rejects.toThrow(ServingClosedError);
    await closed;
    expect(performance.now() - begin).toBeLessThan(5000 * slowness);
  });

  it('[24.2] All partitions and servings of a file run on one session', async () => {
    const servings = ['first', 'other'].map((name) =>
      createServing({ name, partitions: 2, model: { file: gainModel(5), isolation } }),
    );
    const release = jest.spyOn(NativeSession.prototype, 'release');
    for (const serving of servings) {
      await serving.start();
      await serving.reload();
      await serving.batchedRun({ x: floats([1, 2], [1, 2]) });
    }
    await servings[0]!.close();
    expect(release).not.toHaveBeenCalled();
    await servings[1]!.batchedRun({ x: floats([1, 2], [1, 2]) });
    await servings[1]!.close();
    expect(release).toHaveBeenCalledTimes(1);
    jest.restoreAllMocks();
  });

  it('[24.2] A task runs on one session', async () => {
    const from = 'test/fixtures/tasks/embedder';
    const [native, thread] = await Promise.all(
      (['native', 'thread'] as const).map((where) =>
        serve<{ vector: Float32Array }>(
          textEmbedding({ name: where, partitions: 2, model: { from, isolation: where } }),
        ),
      ),
    );
    const texts = ['the sky', 'rows and queues', 'a rule of the rows and of the sky'];
    const vectors = await Promise.all(
      [native!, thread!].map((each) => Promise.all(texts.map((text) => each.batchedRun(text)))),
    );
    for (const [index, { vector }] of vectors[0]!.entries()) {
      vector.forEach((one, i) => expect(one).toBeCloseTo(vectors[1]![index]!.vector[i]!, 4));
    }
  });

  it('[24.2] The threads of a model that runs step by step share its session, until the last version ends', async () => {
    const model = { from: 'test/fixtures/tasks/generator', file: 'onnx/model_gqa.onnx' };
    const release = jest.spyOn(NativeSession.prototype, 'release');
    const prompts = Array.from({ length: 12 }, (_, i) => ({
      prompt: `the rows ${'of the sky '.repeat(i % 4)}`,
      maxTokens: 12,
      temperature: 0,
    }));
    const answersOf = async (serving: Serving<TextToContinue, GeneratedText>) =>
      (await Promise.all(prompts.map((prompt) => serving.batchedRun(prompt)))).map(
        ({ tokens }) => tokens,
      );
    const options = { name: 'writer', partitions: 2 };
    const shared = createServing(textGeneration({ ...options, model }));
    await shared.start();
    const answers = await answersOf(shared);
    await shared.reload();
    expect(await answersOf(shared as never)).toEqual(answers);
    expect(release).not.toHaveBeenCalled();
    await shared.close();
    expect(release).toHaveBeenCalledTimes(1);

    const apart = textGeneration({ ...options, model: { ...model, isolation: 'process' } });
    const processes = await serve(apart);
    expect(await answersOf(processes as never)).toEqual(answers);
    await processes.close();
    expect(release).toHaveBeenCalledTimes(1);
    jest.restoreAllMocks();
  });

  it('[24.2] Models that run step by step and differ only in a file of weights share no session', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'weights-'));
    const names = ['next', 'one-after'];
    for (const [step, name] of names.entries()) {
      await cp('test/fixtures/tasks/generator', join(folder, name), {
        recursive: true,
        filter: (path) => !path.endsWith('.onnx'),
      });
      const files = decoderWithWeightsApart(432, (token) => 100 + ((token + step) % 300));
      for (const [path, content] of Object.entries(files)) {
        await writeFile(join(folder, name, 'onnx', path), content);
      }
    }
    const [next, oneAfter] = names.map((name) =>
      createServing(textGeneration({ name, model: { from: join(folder, name) } })),
    );
    const tokensOf = async (serving: typeof next) => {
      const ask = { prompt: 'the sky', maxTokens: 4, temperature: 0 };
      return (await serving!.batchedRun(ask)).tokens;
    };
    await Promise.all([next!.start(), oneAfter!.start()]);
    const answer = await tokensOf(oneAfter);
    expect(await tokensOf(next)).not.toEqual(answer);
    await next!.reload({ model: join(folder, 'one-after') });
    expect(await tokensOf(next)).toEqual(answer);
    await Promise.all([next!.close(), oneAfter!.close()]);
    await rm(folder, { recursive: true });
  });

  it('[24.2] More partitions than threads of the pool run at the same time as well', async () => {
    const serving = await serve<{ x200: Tensor }>({
      name: 'many',
      batchSize: 1,
      partitions: 6,
      model: { file: slowModel(200), isolation, session: { intraOpNumThreads: 1 } },
    });
    const onPool = jest.spyOn(NativeRuntime.prototype, 'callAsync');
    const replies = await Promise.all(
      Array.from({ length: 30 }, (_, i) =>
        serving.batchedRun({ x: new Tensor('float32', new Float32Array(512).fill(i), [1, 512]) }),
      ),
    );
    const runs = onPool.mock.calls.filter(([name]) => name === 'Run').length;
    jest.restoreAllMocks();
    expect(runs).toBeGreaterThan(0);
    expect(runs).toBeLessThan(30);
    expect(replies.map(({ x200 }) => x200.data[511])).toEqual(replies.map((_, i) => i));
  });

  /** Calls until a run is not on the pool, at most `limit` times; false if all were. */
  async function runsHere(model: ServingDefinition['model'], limit: number): Promise<boolean> {
    const serving = await serve({ name: 'short', model });
    const onPool = jest.spyOn(NativeRuntime.prototype, 'callAsync');
    const [input] = serving.signature!.inputs;
    for (let call = 0; call < limit; call++) {
      const before = onPool.mock.calls.length;
      await serving.batchedRun({ [input!.name]: floats([1, 2], [call, 1]) });
      if (onPool.mock.calls.length === before) {
        jest.restoreAllMocks();
        return true;
      }
    }
    jest.restoreAllMocks();
    return false;
  }

  it('[24.10] Runs that are shorter than the way to the pool take place in the thread of the application', async () => {
    await expect(runsHere({ file: gainModel(2), isolation }, 100_000)).resolves.toBe(true);
  });

  it.each([
    ['rows may have any length', echoModel({ x: value('float32', 'n', 'm') })],
    ['the graph may repeat a part', echoModel({ Loop: value('float32', 'n', 2) })],
    [
      'a value says how much there is to do',
      onnxModel({
        inputs: { x: value('float32', 'n', 2) },
        outputs: { y: value('float32', 'n', 2) },
        nodes: [
          node('ReduceMax', ['x'], ['end'], { keepdims: 0 }),
          node('Range', ['zero', 'end', 'one'], ['counted']),
          node('ReduceSum', ['counted'], ['sum'], { keepdims: 0 }),
          node('Mul', ['sum', 'zero'], ['nothing']),
          node('Add', ['x', 'nothing'], ['y']),
        ],
        initializers: {
          zero: { type: 'float32', dims: [], data: Float32Array.of(0) },
          one: { type: 'float32', dims: [], data: Float32Array.of(1) },
        },
      }),
    ],
  ])('[24.10] No run takes place there if %s', async (_, file) => {
    await expect(runsHere({ file, isolation }, 500)).resolves.toBe(false);
  });

  it('[24.10] Runs go back to the pool if they get slow, and are tried ever more rarely', () => {
    const runs = new ShortRuns(true);
    /** Runs on the pool until the next try. */
    const untilTry = (): number => {
      let count = 0;
      for (; !runs.has(3); count++) {
        runs.learn(3, 0.1, false);
      }
      return count;
    };

    expect(untilTry()).toBe(16);
    runs.learn(3, 0.15, true);
    expect(untilTry()).toBe(32);
    runs.learn(3, 0.02, true);
    expect([runs.has(4), runs.has(2), runs.has(5)]).toEqual([true, false, false]);
    expect([runs.has(3, 5), runs.has(3, 6)]).toEqual([true, false]);
    for (const time of [0.15, 0.15, 0.02, 0.15, 0.15]) {
      runs.learn(4, time, true);
      expect(runs.has(3)).toBe(true);
    }
    runs.learn(3, 9, true);
    expect(untilTry()).toBe(64);
    runs.learn(3, 9, true);
    runs.learn(3, 0.1, false);
    runs.learn(3, 0.3, false);
    expect(untilTry()).toBe(128);
  });

  it.each([
    [
      'another execution provider',
      { session: { executionProviders: ['webgpu'] } },
      "isolation: 'native' cannot be used, since native sessions run on cpu and cuda, and the session asks for webgpu",
    ],
    [
      'an option of sessions that only threads have',
      { session: { preferredOutputLocation: 'cpu' } },
      'native sessions have no option preferredOutputLocation; without it, threads run the model',
    ],
    [
      'a file that is no model',
      { file: Buffer.from('no model at all') },
      'it is not an ONNX file, or it is cut',
    ],
  ])('[24.5] A start with %s fails and says why', async (_, model, message) => {
    const serving = createServing({
      name: 'net',
      model: { file: gainModel(2), isolation, ...model } as never,
    });
    const failure = await serving.start().catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(ServingLoadError);
    expect(String(failure)).toContain(message);
    await serving.close();
  });

  it('[24.11] A missing GPU falls back to others in the list, and fails the boot alone', async () => {
    const serving = await serve(gainOn('cuda', 'cpu'));
    expect(serving.partitions()).toEqual([{ state: 'up', restarts: 0, provider: 'cpu' }]);
    expect(await serving.batchedRun({ x: floats([1, 2], [1, 2]) })).toEqual({
      y: floats([1, 2], [2, 4]),
    });
    await expect(serve(gainOn('cuda'))).rejects.toThrow(
      /on cuda \(.+\)\. CUDA needs an NVIDIA driver/,
    );
  });

  it('[24.11] A fallback of a later partition is logged', async () => {
    const warnings = recordWarnings();
    await serve({
      name: 'gain',
      partitions: [{ executionProviders: ['cpu'] }, { executionProviders: ['cuda', 'cpu'] }],
      model: { file: gainModel(2), isolation },
    });
    expect(warnings).toEqual([
      expect.stringMatching(/^The model of serving "gain" runs on cpu, without cuda \(/),
    ]);
    jest.restoreAllMocks();
  });

  it('[24.6] All options of a session reach the library', async () => {
    const serving = await serve({
      name: 'net',
      model: {
        file: gainModel(3),
        isolation,
        session: {
          intraOpNumThreads: 1,
          interOpNumThreads: 1,
          graphOptimizationLevel: 'basic',
          enableCpuMemArena: false,
          enableMemPattern: false,
          executionMode: 'parallel',
          logId: 'net',
          logSeverityLevel: 3,
          logVerbosityLevel: 0,
          freeDimensionOverrides: { other: 1 },
          extra: { session: { set_denormal_as_zero: '1' } },
        },
      },
    });
    const { y } = (await serving.batchedRun({ x: floats([1, 2], [1, 2]) })) as { y: Tensor };
    expect([...y.data]).toEqual([3, 6]);
  });

  it('[24.7] An error of a run fails its calls alone, and the session runs the next', async () => {
    const serving = await serve({
      name: 'reshaped',
      model: { file: echoModel({ x: value('float32', 'n', 'm') }), isolation },
    });
    await expect(serving.batchedRun({ x: 'no tensor' })).rejects.toThrow();
    const x = floats([2, 1], [1, 2]);
    const { same_x: same } = (await serving.batchedRun({ x })) as { same_x: Tensor };
    expect([...same.data]).toEqual([1, 2]);
  });
});

const slowness = Number(process.env['TEST_TIMEOUT_FACTOR'] ?? 1);

interface Answer {
  readonly probabilities: Tensor;
}
