import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from '@jest/globals';
import { value } from '../../fixtures/models/models.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { forkChild } from '../../fixtures/partitions/fork-child.js';

/** A version that stayed in memory would take as much as its model. */
const MODEL = 900_000;
const RELOADS = 60;
const ROUNDS = 4;

it('[17.1] Many reloads take no more memory than a few', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'reloads-'));
  const file = join(folder, 'model.onnx');
  // The name of the inner value makes the file long; models of this size are kept in memory.
  const inner = 'i'.repeat(MODEL / 2);
  const x = value('float32', 'batch', 2);
  const nodes = [node('Identity', ['x'], [inner]), node('Neg', [inner], ['y'])];
  await writeFile(file, onnxModel({ inputs: { x }, outputs: { y: x }, nodes }));

  // Without threads, whose own memory varies more than a model takes.
  const { code, messages, stderr } = await forkChild('reloads', [
    file,
    'none',
    String(ROUNDS),
    String(RELOADS),
  ]);
  await rm(folder, { recursive: true });

  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  const [{ growths }] = messages as [{ growths: number[] }];
  expect(growths).toHaveLength(ROUNDS);
  // A leak shows in each round. What the allocators keep comes and goes by tens of megabytes.
  expect(Math.min(...growths)).toBeLessThan((RELOADS * MODEL) / 2);
});
