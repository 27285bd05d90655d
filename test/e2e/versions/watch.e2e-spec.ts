import { mkdir, mkdtemp, open, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { createServing, InvalidServingError, type LocalServing, type Tensor } from 'nestjs-serving';
import { until } from '../../fixtures/async/streams.js';
import { gainModel } from '../../fixtures/models/models.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { floats } from '../../fixtures/values/tensors.js';
import { log } from '../../../lib/core/log.js';

type Net = LocalServing<unknown, { y: Tensor }>;

const x = floats([1, 2], [1, 1]);
const gainOf = async (serving: Net): Promise<number> =>
  Number((await serving.batchedRun({ x })).y.data[0]);

const untilVersion = (serving: Net, label: string): Promise<void> =>
  until(() =>
    serving.versions().some(({ version, role }) => version === label && role === 'active'),
  );

describe('watch', () => {
  const serve = useServings();
  let folder: string;
  let file: string;

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'watch-'));
    file = join(folder, 'model.onnx');
    await writeFile(file, gainModel(1));
  });

  afterEach(() => rm(folder, { recursive: true }));

  const watching = (model = file): Promise<Net> =>
    serve({ name: 'net', model, rollout: { watch: true } });

  it('[17.7] A file that is renamed over the model is loaded, also the second time', async () => {
    const serving = await watching();

    for (const gain of [2, 3]) {
      await writeFile(join(folder, 'next'), gainModel(gain));
      await rename(join(folder, 'next'), file);
      await untilVersion(serving, `${gain}`);
      expect(await gainOf(serving)).toBe(gain);
    }
  });

  it('[17.7] A file that is written slowly in place is loaded once it is complete', async () => {
    const serving = await watching();
    const bytes = gainModel(2);
    const handle = await open(file, 'w');

    for (let at = 0; at < bytes.length; at += 40) {
      await handle.write(bytes.subarray(at, at + 40));
      await pause(60);
    }
    await handle.close();
    await untilVersion(serving, '2');

    expect(await gainOf(serving)).toBe(2);
    expect(serving.counters().failed).toEqual({});
  });

  it('[17.7] The files of a ConfigMap, whose link to their folder is swapped, are loaded', async () => {
    const mount = join(folder, 'mount');
    const publish = async (name: string, gain: number): Promise<void> => {
      await mkdir(join(mount, name), { recursive: true });
      await writeFile(join(mount, name, 'model.onnx'), gainModel(gain));
      await symlink(name, join(mount, '..data_tmp'));
      await rename(join(mount, '..data_tmp'), join(mount, '..data'));
    };
    await publish('..first', 1);
    await symlink(join('..data', 'model.onnx'), join(mount, 'model.onnx'));
    const serving = await watching(join(mount, 'model.onnx'));

    await publish('..second', 2);
    await untilVersion(serving, '2');

    expect(await gainOf(serving)).toBe(2);
  });

  it('[17.7] A file that cannot be loaded is logged, and the next change is loaded', async () => {
    const serving = await watching();
    const errors: string[] = [];
    jest.spyOn(log, 'error').mockImplementation((text: string) => void errors.push(text));

    await writeFile(file, gainModel(2).subarray(0, 50));
    await until(() => errors.length > 0);
    expect(errors).toEqual([expect.stringContaining(`could not load the changed file ${file}`)]);
    expect(await gainOf(serving)).toBe(1);
    await writeFile(file, gainModel(3));
    await untilVersion(serving, '2');

    expect(await gainOf(serving)).toBe(3);
    expect(errors).toHaveLength(1);
    jest.restoreAllMocks();
  });

  it('[17.7] The file of the active version is watched, and no other', async () => {
    const serving = await watching();
    const other = join(folder, 'other.onnx');
    await writeFile(other, gainModel(2));
    await serving.reload({ model: other });

    await writeFile(file, gainModel(9));
    await writeFile(other, gainModel(3));
    await untilVersion(serving, '3');

    expect(await gainOf(serving)).toBe(3);
    expect(serving.versions().every(({ version }) => Number(version) <= 3)).toBe(true);
  });

  it('[17.7] After a version from bytes, which nothing watches, the file of the next one is watched', async () => {
    const serving = await watching();
    await serving.reload({ model: gainModel(2) });
    await serving.reload({ model: file });

    await writeFile(file, gainModel(4));
    await untilVersion(serving, '4');

    expect(await gainOf(serving)).toBe(4);
  });

  it('[17.7] watch without a file of this machine, or with its hash, fails the boot', () => {
    const bytes = { name: 'net', model: gainModel(1), rollout: { watch: true } };
    const pinned = {
      name: 'net',
      model: { file, sha256: '0'.repeat(64) },
      rollout: { watch: true },
    };
    const remote = { name: 'net', model: 'hf:org/repo/model.onnx', rollout: { watch: true } };

    const code = {
      name: 'net',
      model: { useFactory: () => (rows: unknown[]) => rows },
      rollout: { watch: true },
    };

    for (const definition of [bytes, pinned, remote, code]) {
      expect(() => createServing(definition)).toThrow(InvalidServingError);
    }
    expect(() => createServing(bytes)).toThrow('with a file of this machine');
    expect(() => createServing(pinned)).toThrow('model.sha256');
  });
});
