import { copyFile, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { Logger, type INestApplicationContext } from '@nestjs/common';
import { Test } from '@nestjs/testing';
// #region imports
import { Injectable } from '@nestjs/common';
import { defineServing, InjectServing, type ServingOf, type VersionStatus } from 'nestjs-serving';
// #endregion
import { getServingToken, type LocalServing, ServingModule, Tensor } from 'nestjs-serving';
import { inFolder } from '../../fixtures/serving/in-folder.js';

inFolder('sample/01-digits/model');

const file = 'digits.onnx';
const quantised = file;

// #region definition
export const digits = defineServing({
  name: 'digits',
  model: 'digits.onnx',
  rollout: { version: 'june' }, // The label of this version; '1' by default.
  warmUp: [{ image: new Tensor('float32', new Float32Array(784), [1, 784]) }],
});
// #endregion

// #region boot
export const compared = defineServing({
  name: 'compared',
  model: 'digits.onnx',
  rollout: {
    versions: {
      '2': { model: file, canary: 0.05 },
      quantised: { model: quantised, shadow: 0.01 },
    },
  },
});
// #endregion

// #region rollout
@Injectable()
export class Rollout {
  constructor(@InjectServing(digits) private readonly serving: ServingOf<typeof digits>) {}

  /** All calls go to the new model once it is warm. */
  async replace(model: string): Promise<void> {
    await this.serving.reload({ model, version: 'july' });
  }

  /** One call in twenty goes to the new model, until it has proved itself or has failed. */
  async tryOut(model: string, isGood: (versions: readonly VersionStatus[]) => Promise<boolean>) {
    const next = await this.serving.reload({ model, version: 'july', canary: 0.05 });
    if (await isGood(this.serving.versions())) {
      await next.promote();
    } else {
      await next.rollback();
    }
  }

  /** The new model runs one call in ten as well; the replies are compared. */
  async compare(model: string): Promise<void> {
    await this.serving.reload({ model, version: 'july', shadow: 0.1 });
  }
}
// #endregion

const image = new Tensor('float32', new Float32Array(784), [1, 784]);

describe('Versions, as the manual shows them', () => {
  let folder: string;
  let app: INestApplicationContext;
  let serving: LocalServing;

  beforeEach(async () => {
    Logger.overrideLogger(false);
    folder = await mkdtemp(join(tmpdir(), 'versions-'));
    await copyFile(file, join(folder, 'july.onnx'));
    const module = await Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings: [digits, compared] })],
      providers: [Rollout],
    }).compile();
    app = await module.init();
    serving = app.get(getServingToken(digits));
  });

  afterEach(async () => {
    await app.close();
    await rm(folder, { recursive: true });
  });

  it('[17.1] A provider replaces the model', async () => {
    await app.get(Rollout).replace(join(folder, 'july.onnx'));

    expect(serving.versions().at(-1)).toMatchObject({ version: 'july', role: 'active' });
    expect(await serving.batchedRun({ image }, { version: 'july' })).toBeDefined();
  });

  it.each([
    [true, 'july'],
    [false, 'june'],
  ])('[17.3] A canary that is good (%p) leaves %s active', async (good, label) => {
    await app.get(Rollout).tryOut(join(folder, 'july.onnx'), async (versions) => {
      expect(versions).toMatchObject([{ version: 'june' }, { version: 'july', share: 0.05 }]);
      return good;
    });

    const active = serving.versions().find(({ role }) => role === 'active');
    expect(active?.version).toBe(label);
  });

  it('[17.9] A shadow of the same model has the same replies', async () => {
    await app.get(Rollout).compare(join(folder, 'july.onnx'));
    const count = (): number => serving.versions().at(-1)!.comparison!.compared;
    while (count() < 1) {
      await serving.batchedRun({ image });
    }

    expect(serving.versions().at(-1)!.comparison).toMatchObject({ different: 0, failed: 0 });
  });

  it('[17.3] The versions of a definition are there from the boot on', () => {
    const other: LocalServing = app.get(getServingToken(compared));

    expect(other.versions()).toMatchObject([
      { version: '1', role: 'active' },
      { version: '2', role: 'canary', share: 0.05 },
      { version: 'quantised', role: 'shadow', share: 0.01 },
    ]);
  });
});
