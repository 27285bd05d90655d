import { readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as turn } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import {
  createServing,
  InvalidServingError,
  isServingError,
  type LocalServing,
  type ServingDefinition,
  type ServingOptions,
  ServingLoadError,
  Tensor,
} from 'nestjs-serving';
import type { ModelOptions, ModelRunner } from '../../../lib/core/definition/serving-definition.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { itOnLinux } from '../../fixtures/describe-unless.js';
import { gainModel, recurrentModel, value } from '../../fixtures/models/models.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { worker } from '../../fixtures/partitions/worker.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { floats } from '../../fixtures/values/tensors.js';

type Net = LocalServing<unknown, { y: Tensor }>;

const x = floats([1, 2], [1, 1]);

/** The gain of the model that answers now. */
const gainOf = async (serving: Net, options = {}): Promise<number> =>
  Number((await serving.batchedRun({ x }, options)).y.data[0]);

/** The outputs of a stream of this input. */
async function outputsOf(serving: LocalServing, input: unknown): Promise<unknown[]> {
  const outputs: unknown[] = [];
  for await (const event of serving.stream(input)) {
    outputs.push('output' in event ? event.output : undefined);
  }
  return outputs;
}

/** Resolves when only the given versions are left. */
async function untilFreed(serving: Net, ...left: string[]): Promise<void> {
  while (
    serving
      .versions()
      .map(({ version }) => version)
      .join() !== left.join()
  ) {
    await turn();
  }
}

/** Calls of several callers, one after the other, until it is stopped; with the gains they saw. */
class Callers {
  readonly seen: number[][] = [];
  private isOver = false;
  private readonly done: Promise<void>[];

  constructor(serving: Net, count: number) {
    this.done = Array.from({ length: count }, async (_, caller) => {
      const seen: number[] = (this.seen[caller] = []);
      while (!this.isOver) {
        const rows = 1 + ((caller + seen.length) % 5);
        const input = floats(
          [rows, 2],
          Array.from({ length: 2 * rows }, (__, at) => at + 1),
        );
        const { y } = await serving.batchedRun({ x: input });
        const gain = Number(y.data[0]);
        expect([...(y.data as Float32Array)]).toEqual(
          [...(input.data as Float32Array)].map((element) => element * gain),
        );
        seen.push(gain);
      }
    });
  }

  /** Resolves when each caller has had this many more answers. */
  async answered(more: number): Promise<void> {
    const goals = this.seen.map(({ length }) => length + more);
    while (this.seen.some(({ length }, caller) => length < goals[caller]!)) {
      await Promise.race([turn(), Promise.all(this.done)]);
    }
  }

  async stop(): Promise<void> {
    this.isOver = true;
    await Promise.all(this.done);
  }
}

const children = (): number[] =>
  readFileSync(`/proc/self/task/${process.pid}/children`, 'utf8')
    .split(' ')
    .filter(Boolean)
    .map(Number);

const used = (): number[] =>
  ['/proc/self/task', '/proc/self/fd'].map((path) => readdirSync(path).length);

const identityModel = (
  input: Parameters<typeof value>,
  output: Parameters<typeof value>,
  [from, to]: [string, string] = ['x', 'y'],
): Uint8Array =>
  onnxModel({
    inputs: { [from]: value(...input) },
    outputs: { [to]: value(...output) },
    nodes: [node('Identity', [from], [to])],
  });
const moduleOf = (label: string): string =>
  `export default () => (rows) => rows.map((row) => '${label}' + row);`;

describe('reload', () => {
  const serve = useServings();
  let folder: string;
  const fileOf = async (name: string, bytes: Uint8Array): Promise<string> => {
    const path = join(folder, name);
    await writeFile(path, bytes);
    return path;
  };
  const serveGain = async (
    options: Partial<ServingOptions> = {},
    isolation: ModelRunner['isolation'] = 'thread',
  ): Promise<Net> => {
    const file = await fileOf('v1.onnx', gainModel(1));
    return serve({ name: 'net', model: { file, isolation }, ...options });
  };

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'reload-'));
  });

  afterEach(() => rm(folder, { recursive: true }));

  it.each(['thread', 'process', 'none'] as const)(
    '[17.1] Callers lose no call while models replace each other, and see them in their order: isolation %s',
    async (isolation) => {
      const serving = await serveGain({ partitions: isolation === 'none' ? 1 : 2 }, isolation);
      const callers = new Callers(serving, 8);

      for (const gain of [2, 3]) {
        await callers.answered(5);
        await serving.reload({ model: await fileOf(`v${gain}.onnx`, gainModel(gain)) });
        expect(await gainOf(serving)).toBe(gain);
      }
      await callers.answered(5);
      await callers.stop();

      for (const seen of callers.seen) {
        expect(seen).toEqual(seen.toSorted((a, b) => a - b));
        expect(new Set(seen)).toEqual(new Set([1, 2, 3]));
      }
      await untilFreed(serving, '3');
      const calls = callers.seen.flat().length;
      expect(serving.counters()).toMatchObject({ answered: calls + 2, failed: {} });
    },
  );

  it('[17.1] reload() without a model loads the changed file again', async () => {
    const serving = await serveGain();
    await fileOf('v1.onnx', gainModel(5));
    expect(await gainOf(serving)).toBe(1);

    await serving.reload();

    expect(await gainOf(serving)).toBe(5);
  });

  it('[17.1] A model keeps the options that the reload does not name', async () => {
    const bytes = gainModel(2, 2);
    const axes = { inputs: { x: { batchAxis: 0 } }, outputs: { y: { batchAxis: 0 } } };
    const model = { file: await fileOf('v1.onnx', gainModel(1, 2)), ...axes };
    const serving: Net = await serve({ name: 'net', model });

    await serving.reload({ model: bytes });

    expect(await gainOf(serving)).toBe(2);
    expect((await serving.run({ x })).y.data[0]).toBe(2);
  });

  it('[17.1] A changed module file runs in fresh workers', async () => {
    const path = join(folder, 'rows.mjs');
    await writeFile(path, moduleOf('a'));
    const serving = await serve<string>({ name: 'rows', model: { useFile: pathToFileURL(path) } });
    expect(await serving.batchedRun(1)).toBe('a1');
    await writeFile(path, moduleOf('b'));

    await serving.reload();

    expect(await serving.batchedRun(1)).toBe('b1');
    await expect(serving.reload({ model: 'v2.onnx' })).rejects.toThrow('runs no model');
  });

  it('[17.2] A truncated file is refused, the model before goes on, and the whole file loads', async () => {
    const serving = await serveGain();
    const bytes = gainModel(2);

    for (const size of [0, 1, bytes.length / 2, bytes.length - 1]) {
      const file = await fileOf('v2.onnx', bytes.subarray(0, size));
      const failure = await failureOf(serving.reload({ model: file }));
      expect(failure).toBeInstanceOf(ServingLoadError);
      expect((failure as Error).message).toContain('Serving "net"');
    }
    await expect(serving.reload({ model: join(folder, 'none.onnx') })).rejects.toThrow(
      'there is no file',
    );
    await expect(
      serving.reload({ model: { file: join(folder, 'v1.onnx'), sha256: '0'.repeat(64) } }),
    ).rejects.toThrow('SHA-256');
    expect(serving.versions()).toHaveLength(1);
    expect(await gainOf(serving)).toBe(1);
    await serving.reload({ model: await fileOf('v2.onnx', bytes) });
    expect(await gainOf(serving)).toBe(2);
  });

  it.each<[string, ModelOptions | Uint8Array, string]>([
    [
      'name',
      identityModel(['float32', 'batch', 2], ['float32', 'batch', 2], ['z', 'y']),
      'input z',
    ],
    [
      'output',
      identityModel(['float32', 'batch', 2], ['float32', 'batch', 2], ['x', 'z']),
      'output z',
    ],
    ['type', identityModel(['float64', 'batch', 2], ['float64', 'batch', 2]), 'float64'],
    [
      'rank',
      identityModel(['float32', 'batch', 2, 1], ['float32', 'batch', 2, 1]),
      '[batch, 2, 1]',
    ],
    [
      'batch axis',
      {
        file: identityModel(['float32', 2, 'batch'], ['float32', 2, 'batch']),
        inputs: { x: { batchAxis: 1 } },
        outputs: { y: { batchAxis: 1 } },
      },
      'lie on 1',
    ],
    ['inputs', recurrentModel(1, 'batch'), 'input'],
  ])('[17.2] A model with another %s is refused, and freed', async (_, model, message) => {
    const serving = await serveGain();

    const failure = await failureOf(serving.reload({ model }));

    expect(failure).toBeInstanceOf(InvalidServingError);
    expect((failure as Error).message).toContain(message);
    expect(serving.versions()).toHaveLength(1);
    expect(await gainOf(serving)).toBe(1);
  });

  it('[17.3] A canary and the active model answer side by side, by label, tenant and share', async () => {
    const serving = await serveGain();
    const canary = await serving.reload({
      model: await fileOf('v2.onnx', gainModel(2)),
      version: 'next',
      canary: 0.5,
    });

    expect(await gainOf(serving, { version: 'next' })).toBe(2);
    expect(await gainOf(serving, { version: '1' })).toBe(1);
    const tenants = await Promise.all(
      Array.from({ length: 64 }, async (_, index) => {
        const tenant = `tenant-${index}`;
        const gains = await Promise.all([1, 2, 3].map(() => gainOf(serving, { tenant })));
        expect(new Set(gains).size).toBe(1);
        return gains[0]!;
      }),
    );
    expect(new Set(tenants)).toEqual(new Set([1, 2]));
    await canary.promote();
    expect(await gainOf(serving, { tenant: 'tenant-0' })).toBe(2);
    await untilFreed(serving, 'next');
  });

  it('[17.3] A definition has versions from the boot on: a canary, a shadow, and one for calls that ask for it', async () => {
    const [v2, v3, v4] = await Promise.all(
      [2, 3, 4].map((gain) => fileOf(`v${gain}.onnx`, gainModel(gain))),
    );
    const serving = await serveGain({
      rollout: {
        version: 'base',
        versions: {
          asked: { model: v2! },
          canary: { model: v3!, canary: 1 },
          shadow: { model: v4!, shadow: 1 },
        },
      },
    });

    expect(serving.versions()).toMatchObject([
      { version: 'base', role: 'active' },
      { version: 'asked', role: 'canary', share: 0 },
      { version: 'canary', role: 'canary', share: 1 },
      { version: 'shadow', role: 'shadow', share: 1 },
    ]);
    const gains = ['base', 'asked', 'canary'].map((version) => gainOf(serving, { version }));
    expect(await Promise.all([...gains, gainOf(serving)])).toEqual([1, 2, 3, 3]);
    await serving.reload({ model: v4!, version: 'next' });
    expect(await gainOf(serving, { version: 'next' })).toBe(4);
  });

  it('[17.3] Versions of a definition that cannot be are refused at boot', async () => {
    const model = await fileOf('v1.onnx', gainModel(1));
    const create = (versions: object) => () =>
      createServing({ name: 'net', model, rollout: { versions } } as unknown as ServingDefinition);

    expect(create({ '1': { model } })).toThrow('the label "1", which is that of the definition');
    expect(create({ '2': {} })).toThrow('versions["2"].model');
    expect(create({ '2': { model, canary: 7 } })).toThrow('versions["2"].canary');
    expect(create({ '2': { model: join(folder, 'none.onnx') } })).toThrow('there is no file');
    const wrong = serve({
      name: 'net',
      model,
      rollout: { versions: { '2': { model: recurrentModel(1, 'batch') } } },
    });
    await expect(wrong).rejects.toThrow('version "2" cannot run the calls of version "1"');
  });

  it('[17.9] The replies of a shadow are compared within the tolerance of its numbers', async () => {
    const serving = await serveGain();
    const shadow = await serving.reload({ model: gainModel(1.0001), shadow: 1 });
    await gainOf(serving);
    const comparison = () => serving.versions().at(-1)!.comparison!;
    while (comparison().compared < 1) {
      await turn();
    }
    expect(comparison()).toMatchObject({ compared: 1, different: 0 });
    expect(comparison().largestDifference).toBeCloseTo(0.0001, 5);
    await shadow.rollback();
    await serving.reload({ model: gainModel(1.5), shadow: 1 });
    await gainOf(serving);
    while (comparison().compared < 1) {
      await turn();
    }

    expect(comparison()).toMatchObject({ different: 1, differing: 1, largestDifference: 0.5 });
  });

  it('[17.9] A model in the thread of the application gets no shadow', async () => {
    const serving = await serveGain({}, 'none');

    await expect(serving.reload({ shadow: 1 })).rejects.toThrow('would delay all calls');
  });

  it('[17.4] A session keeps its state on its model, and the next one begins on the new model', async () => {
    const rate = new Tensor('int64', [1n], []);
    const model = { file: recurrentModel(2, 'batch'), state: { state: 'next' }, fetches: ['next'] };
    const serving = await serve<{ next: Tensor }>({ name: 'net', model });
    const sum = async (session: ReturnType<typeof serving.open>): Promise<number> =>
      Number((await session.run({ x: floats([1, 3], [1, 1, 1]), rate })).next.data[0]);
    const old = serving.open();
    expect([await sum(old), await sum(old)]).toEqual([1, 2]);

    await serving.reload();
    const young = serving.open();

    expect([await sum(young), await sum(old)]).toEqual([1, 3]);
    await old.close();
    await untilFreed(serving as unknown as Net, '2');
    expect(await sum(young)).toBe(2);
    await young.close();
  });

  it('[17.4] A generator that runs ends on its workers, which are freed after its last step', async () => {
    const counts = new Int32Array(new SharedArrayBuffer(12));
    const serving = await serve({
      name: 'steps',
      model: { useFile: worker('steps') },
      partitions: [{ counts }],
    });
    const events = serving.stream({ name: 'a', steps: 3 })[Symbol.asyncIterator]();
    const seen = [(await events.next()).value, (await events.next()).value];

    await serving.reload();
    expect(serving.versions().map(({ role }) => role)).toEqual(['draining', 'active']);
    Atomics.store(counts, 2, 1);
    seen.push((await events.next()).value);

    expect(seen).toMatchObject([{ output: 'a0' }, { output: 'a1' }, { output: 'a2' }]);
    expect((await events.next()).done).toBe(true);
    await untilFreed(serving as unknown as Net, '2');
    expect(await outputsOf(serving, { name: 'b', steps: 2 })).toEqual(['b0', 'b1']);
  });

  it('[17.4] Rows of a sequence that run end where they began, and new ones join the new workers', async () => {
    const serving = await serve({
      name: 'counter',
      model: { useFile: worker('sequence'), sequence: {} },
      batchSize: 4,
      partitions: [{ pace: 5 }],
    });
    const steps = 30;
    const rows = ['a', 'b'].map((name) => outputsOf(serving, { name, steps }));
    const first = serving.stream({ name: 'c', steps })[Symbol.asyncIterator]();
    await first.next();

    await serving.reload();
    const later = outputsOf(serving, { name: 'd', steps: 3 });

    const values = (name: string) => Array.from({ length: steps }, (_, step) => `${name}${step}`);
    expect(await later).toEqual(['d0', 'd1', 'd2']);
    expect(await Promise.all(rows)).toEqual([values('a'), values('b')]);
    await first.return?.();
    await untilFreed(serving as unknown as Net, '2');
    const [log] = (await serving.batchedRun({ name: 'log' })) as [string[]];
    expect(log.join()).not.toContain('start a');
  });

  it('[17.5] Nodes with one store share replies of the same model, and of no other', async () => {
    const entries = new Map<string, string>();
    const store = {
      get: (key: string) => Promise.resolve(entries.get(key)),
      set: (key: string, text: string) => Promise.resolve(entries.set(key, text)),
    };
    const nodeWith = async (model: string | Uint8Array, version?: string): Promise<Net> => {
      const definition = {
        name: 'net',
        model,
        deduplication: { cache: { ttl: 60_000, timeout: 10_000 } },
        ...(version !== undefined && { rollout: { version } }),
      };
      return serve(createServing(definition, undefined, () => store) as never);
    };
    const file = await fileOf('v1.onnx', gainModel(1));
    const bytes = gainModel(2);
    const [one, same, other] = await Promise.all([
      nodeWith(file),
      nodeWith(file, 'a'),
      nodeWith(bytes),
    ]);

    expect([await gainOf(one), await gainOf(same), await gainOf(other)]).toEqual([1, 1, 2]);
    expect(same.counters().batches).toBe(0);
    expect(other.counters().batches).toBe(1);
    await one.reload({ model: bytes });
    expect(await gainOf(one)).toBe(2);
    expect(one.counters().batches).toBe(1);
    expect(entries.size).toBe(2);
  });

  const needsProc = 'it reads threads, open files and child processes from /proc';

  itOnLinux(
    needsProc,
    '[17.1] Calls survive when the processes before are killed while the new ones load',
    async () => {
      const recovery = { restartDelay: 1 };
      const serving = await serveGain({ recovery }, 'process');
      const before = children();
      const callers = new Callers(serving, 4);
      await callers.answered(3);

      const reload = serving.reload({ model: await fileOf('v2.onnx', gainModel(2)) });
      before.forEach((pid) => process.kill(pid, 'SIGKILL'));
      await reload;
      await callers.answered(3);
      await callers.stop();

      expect(await gainOf(serving)).toBe(2);
      expect(serving.counters().failed).toEqual({});
    },
  );

  itOnLinux(
    needsProc,
    '[17.2] A new process that is killed while it loads fails the reload, or starts again; no call is lost',
    async () => {
      const recovery = { restartDelay: 1 };
      const serving = await serveGain({ recovery }, 'process');
      const before = children();
      const callers = new Callers(serving, 4);
      await callers.answered(3);

      const play = { isOver: false };
      const reload = failureOf(
        serving.reload({ model: await fileOf('v2.onnx', gainModel(2)) }),
      ).finally(() => (play.isOver = true));
      const young = (): number[] => children().filter((pid) => !before.includes(pid));
      while (!play.isOver && young().length === 0) {
        await turn();
      }
      young().forEach((pid) => process.kill(pid, 'SIGKILL'));
      const failure = await reload;
      await callers.answered(3);
      await callers.stop();

      expect(failure === undefined || isServingError(failure)).toBe(true);
      expect(await gainOf(serving)).toBe(failure === undefined ? 2 : 1);
      expect(serving.counters().failed).toEqual({});
    },
  );

  itOnLinux(needsProc, '[17.1] Reloads leave no thread and no open file behind', async () => {
    // Models of more than 1 MiB are kept as a copy, which is open.
    const long = 'i'.repeat(2 << 20);
    const large = onnxModel({
      inputs: { x: value('float32', 'batch', 2) },
      outputs: { y: value('float32', 'batch', 2) },
      nodes: [node('Identity', ['x'], [long]), node('Identity', [long], ['y'])],
    });
    const file = await fileOf('large.onnx', large);
    const serving = await serveGain();
    const reload = async (model: string): Promise<void> => {
      const { version } = await serving.reload({ model });
      await gainOf(serving);
      await untilFreed(serving, version);
    };
    await reload(file);
    const before = used();

    for (let count = 0; count < 10; count++) {
      await reload(join(folder, 'v1.onnx'));
      await failureOf(serving.reload({ model: new Uint8Array(100) }));
      await reload(file);
    }

    const after = used();
    expect(after[0]).toBeLessThanOrEqual(before[0]! + 1);
    expect(after[1]).toBeLessThanOrEqual(before[1]! + 2);
  });
});
