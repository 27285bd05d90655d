import { afterEach, beforeEach, expect, it } from '@jest/globals';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { externalFilesIn, scanOf } from '../../../../lib/features/onnx/model-source.js';
import { weightsApartModel } from '../../../fixtures/models/models.js';

let folder: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'external-'));
});
afterEach(() => rm(folder, { recursive: true }));

it.each([0, 1000, (1 << 20) - 60, (1 << 20) - 8192, (1 << 20) + 5, (2 << 20) - 20])(
  '[W8] The files of a model are found wherever their names lie: after %d bytes',
  async (before) => {
    const name = `${'w'.repeat(200)}.data`;
    const model = Buffer.concat([
      Buffer.alloc(before),
      weightsApartModel(name),
      Buffer.alloc(9000),
    ]);
    const path = join(folder, 'model.onnx');
    await writeFile(path, model);

    expect([...(await externalFilesIn(path))]).toEqual([name]);
    expect([...scanOf(model).externalFiles]).toEqual([name]);
  },
);
