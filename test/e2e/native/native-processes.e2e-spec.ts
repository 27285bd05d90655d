import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { slowModel, value } from '../../fixtures/models/models.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';

interface Ended {
  readonly code: number | string | null;
  readonly signal: string | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs the script until it ends. */
function ended(script: string, ...args: readonly string[]): Promise<Ended> {
  return new Promise((settle) => {
    const options = [join('test/fixtures/native', script), ...args];
    execFile(process.execPath, ['--expose-gc', ...options], (error, stdout, stderr) =>
      settle({ code: error?.code ?? 0, signal: error?.signal ?? null, stdout, stderr }),
    );
  });
}

let folder: string;
let file: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'native-'));
  file = join(folder, 'slow.onnx');
  await writeFile(file, slowModel(1000));
});

afterAll(() => rm(folder, { recursive: true }));

describe('A process whose threads run models', () => {
  it.each([
    ['exits', 'exit', { code: 3, signal: null }],
    ['throws an error that nothing catches', 'throw', { code: 1, signal: null }],
  ])('[5.3] that %s in the middle of a run ends with its own code', async (_, what, expected) => {
    expect(await ended('interrupted.mjs', file, what, 'thread')).toMatchObject(expected);
  });

  it('[5.3] that exits while its threads load models ends with its own code', async () => {
    for (const after of [200, 300, 400, 500]) {
      const code = await ended('starting.mjs', file, 'thread', `${after}`);
      expect(code).toMatchObject({ code: 3, signal: null });
    }
  });
});

describe('A process with native sessions', () => {
  it.each([
    ['exits', 'exit', { code: 3, signal: null }],
    ['throws an error that nothing catches', 'throw', { code: 1, signal: null }],
    ['gets SIGTERM', 'sigterm', { signal: 'SIGTERM' }],
  ])('[24.8] that %s in the middle of a run ends with its own code', async (_, what, expected) => {
    expect(await ended('interrupted.mjs', file, what)).toMatchObject(expected);
  });

  // Many of these processes are then in the middle of loading a library in some thread.
  it('[24.8] that exits while its threads start ends with its own code', async () => {
    for (let time = 0; time < 8; time++) {
      const code = await ended('starting.mjs', file, 'native', '20');
      expect(code).toMatchObject({ code: 3, signal: null });
    }
  });

  it('[24.5] without koffi does not start, and says how to get it', async () => {
    expect(await ended('hindered.mjs', file, 'no koffi', 'native')).toMatchObject({
      stdout: expect.stringContaining(
        "isolation: 'native' cannot be used, since the package koffi is not installed (npm install koffi)",
      ) as unknown,
    });
  });

  it('[24.5] without koffi runs models in threads, and the log says why', async () => {
    const { stdout } = await ended('hindered.mjs', file, 'no koffi');
    expect(stdout).toContain(
      'model on cpu, 2 threads, since the package koffi is not installed (npm install koffi); inputs',
    );
    expect(stdout).toContain('512 values');
  });

  it('[24.5] that uses koffi with small stacks runs models in threads, and the log says how to enlarge them', async () => {
    const { stdout } = await ended('hindered.mjs', file, 'small stacks');
    expect(stdout).toContain(
      'model on cpu, 2 threads, since the application uses koffi with smaller stacks; before it loads a ' +
        'library, call koffi.config({ sync_stack_size: 8388608, async_stack_size: 8388608 }); inputs',
    );
    expect(stdout).toContain('512 values');
  });

  it('[24.13] that may not start threads runs all batches on the pool', async () => {
    const model = resolve('sample/01-digits/model/digits.onnx');
    expect(await ended('no-threads.mjs', model)).toMatchObject({ code: 0, stdout: '200' });
  });

  it('[24.1] whose model has an output of another shape than its file says prints no error', async () => {
    const wide = join(folder, 'wide.onnx');
    const model = onnxModel({
      inputs: { x: value('float32', 'n', 'width') },
      outputs: { y: value('float32', 'n', 'width') },
      nodes: [node('Concat', ['x', 'x'], ['y'], { axis: 1 })],
    });
    await writeFile(wide, model);
    expect(await ended('shapes.mjs', wide)).toMatchObject({ stdout: '1,2,1,2', stderr: '' });
  });

  it('[24.2] with two copies of the package runs models in both', async () => {
    const model = resolve('sample/01-digits/model/digits.onnx');
    expect(await ended('copies.mjs', model)).toMatchObject({ code: 0, stdout: '10,10' });
  });

  it('[24.9] answers right while garbage is collected between all steps, and keeps no memory of sessions that have ended', async () => {
    const model = resolve('sample/01-digits/model/digits.onnx');
    const options = JSON.stringify({ model, runs: 400, reloads: 300 });
    const { stdout } = await ended('stress.mjs', options);
    const { wrong, before, after } = JSON.parse(stdout) as Record<string, number>;
    expect(wrong).toBe(0);
    // Each session of this model takes half a MB.
    expect(after! - before!).toBeLessThan(40);
  });
});
