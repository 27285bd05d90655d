import { existsSync } from 'node:fs';
import { cp, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, beforeAll, expect, it } from '@jest/globals';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { echoModel, value } from '../../fixtures/models/models.js';
import { type ChildEnd, forkChild } from '../../fixtures/partitions/fork-child.js';

const clients = process.env['INFERENCE_CLIENTS'] ?? 'node_modules/.cache/inference-clients';
const libraries = resolve(clients, 'cuda/libraries');
const missing = existsSync(join(libraries, 'libcuda.so.1'))
  ? undefined
  : `the stand-in for CUDA is not in ${libraries}; on Linux x64: apt-get install g++ python3-venv && test/cuda/setup.sh`;

const cuda = (options: object) => ({ name: 'cuda', ...options });

/**
 * Runs onnxruntime's own CUDA provider on a stand-in for CUDA's libraries, which copies but doesn't
 * compute: see test/cuda.
 */
describeUnless(missing, 'A native session on CUDA', () => {
  let folder: string;

  /** Holds the package, with the provider's libraries where onnxruntime looks for them. */
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'cuda-'));
    for (const path of ['package.json', 'dist']) {
      await cp(path, join(folder, path), { recursive: true });
    }
    await mkdir(join(folder, 'node_modules'));
    for (const name of await readdir('node_modules')) {
      const copied = join(folder, 'node_modules', name);
      await (name === 'onnxruntime-node'
        ? cp(join('node_modules', name), copied, { recursive: true })
        : symlink(resolve('node_modules', name), copied));
    }
    const bin = join(folder, 'node_modules/onnxruntime-node/bin/napi-v6/linux/x64');
    for (const name of ['cuda', 'shared']) {
      const library = `libonnxruntime_providers_${name}.so`;
      await symlink(join(libraries, library), join(bin, library));
    }
    await cp('test/fixtures/children/cuda.mjs', join(folder, 'cuda.mjs'));
    await writeFile(join(folder, 'echo.onnx'), echoModel({ x: value('float32', 'batch', 2048) }));
  }, 120_000);

  afterAll(() => rm(folder, { recursive: true }));

  function run(what: string, env: NodeJS.ProcessEnv = {}): Promise<ChildEnd> {
    const standIn = join(libraries, 'libcudart.so.13');
    return forkChild(join(folder, 'cuda'), [what, join(folder, 'echo.onnx'), standIn], {
      LD_LIBRARY_PATH: libraries,
      NO_COLOR: '1',
      ...env,
    });
  }

  it('[24.11] answers each caller with its rows, from batches in pinned memory, several at a time on one session', async () => {
    const { code, messages } = await run('answers', { STAND_IN_DELAY: '10' });
    const none = { device: 0, pinned: 0 };
    expect({ code, messages }).toEqual({
      code: 0,
      messages: [
        {
          wrong: 0,
          providers: ['cuda', 'cuda', 'cuda'],
          loaded: expect.anything(),
          after: expect.objectContaining({ atOnce: 3 }),
          closed: expect.objectContaining(none),
        },
      ],
    });
    const [{ loaded, after }] = messages as [Record<string, Record<string, number>>];
    // The warm-up's few rows are small, and copied by the driver.
    expect(after!['fromOther']).toBe(loaded!['fromOther']);
    expect(after!['fromPinned']).toBeGreaterThan(50);
  });

  it('[24.11] is reloaded under load without a wrong answer, and leaves no memory', async () => {
    const { code, messages } = await run('reloads');
    const closed = expect.objectContaining({ device: 0, pinned: 0 }) as unknown;
    expect({ code, messages }).toEqual({
      code: 0,
      messages: [{ answered: true, wrong: 0, closed }],
    });
  });

  it.each<[string, unknown[], [string, unknown]]>([
    ['of the second GPU', [cuda({ deviceId: 1 })], ['cuda', true]],
    [
      'of the provider',
      [cuda({ gpuMemLimit: 2 ** 30, use_tf32: false, arenaExtendStrategy: 'kSameAsRequested' })],
      ['cuda', true],
    ],
    ['of a GPU that is not there, and the CPU', [cuda({ deviceId: 9 }), 'cpu'], ['cpu', true]],
    [
      'of a GPU that is not there',
      [cuda({ deviceId: 9 })],
      [
        'ProviderUnavailableError',
        expect.stringContaining(
          'on cuda (Failed to parse provider option "device_id": Invalid device ID: 9, must be between 0 ' +
            '(inclusive) and 2 (exclusive)). CUDA needs an NVIDIA driver',
        ),
      ],
    ],
    [
      'that CUDA lacks, though the CPU is listed',
      [cuda({ gpuMemoryLimit: 9 }), 'cpu'],
      [
        'ServingLoadError',
        'Serving "echo": The provider cuda: Unknown provider option: "gpu_memory_limit"',
      ],
    ],
    [
      'that our runs rule out',
      [cuda({ enableCudaGraph: true }), 'cpu'],
      [
        'ServingLoadError',
        'Serving "echo": CUDA graphs need the same addresses in each run; leave the option enableCudaGraph out',
      ],
    ],
  ])('[24.11] takes options %s', async (_, providers, expected) => {
    const { code, messages } = await run('options', { PROVIDERS: JSON.stringify([providers]) });
    expect({ code, messages }).toEqual({ code: 0, messages: [expected] });
  });

  it('[24.11] falls back to the CPU without a GPU, and the process ends cleanly', async () => {
    const { code, signal, messages } = await run('options', {
      STAND_IN_DEVICES: '0',
      PROVIDERS: JSON.stringify([['cuda', 'cpu'], ['cuda']]),
    });
    expect({ code, signal, messages }).toEqual({
      code: 0,
      signal: null,
      messages: [
        ['cpu', true],
        [
          'ProviderUnavailableError',
          expect.stringContaining(
            'on cuda (CUDA failure 100: no CUDA-capable device is detected).',
          ),
        ],
      ],
    });
  });

  it('[24.11] ends with its own code when the process exits in the middle of a run', async () => {
    expect(await run('exit', { STAND_IN_DELAY: '50' })).toMatchObject({ code: 3, signal: null });
  });
});
