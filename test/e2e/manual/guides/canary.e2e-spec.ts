// #region imports
import { Injectable } from '@nestjs/common';
import { defineServing, InjectServing, type ServingOf, Tensor } from 'nestjs-serving';
// #endregion
import { afterEach, beforeEach, expect, it } from '@jest/globals';
import { Logger, type INestApplicationContext } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { getServingToken, type LocalServing, ServingModule } from 'nestjs-serving';
import { inFolder } from '../../../fixtures/serving/in-folder.js';

inFolder('sample/01-digits/model');

// #region definition
export const digits = defineServing({
  name: 'digits',
  model: 'digits.onnx',
  rollout: { version: 'june' },
  queue: { tenant: ({ customer }: Drawing) => customer }, // A customer always gets the same version.
  warmUp: [{ customer: '', image: new Tensor('float32', new Float32Array(784), [1, 784]) }],
  preprocess: ({ image }: Drawing) => ({ batch: { image } }),
});

interface Drawing {
  readonly customer: string;
  readonly image: Tensor;
}
// #endregion

// #region rollout
const SHARES = [0.01, 0.05, 0.25, 0.5];

@Injectable()
export class ProgressiveRollout {
  constructor(@InjectServing(digits) private readonly serving: ServingOf<typeof digits>) {}

  /** Moves the share step by step. `observed` resolves after each step, when there is enough to see. */
  async rollOut(
    model: string,
    version: string,
    observed: () => Promise<unknown>,
  ): Promise<boolean> {
    const next = await this.serving.reload({ model, version, canary: 0 });
    for (const share of SHARES) {
      next.share = share;
      await observed();
      if (this.failuresOf(version) > 2 * this.failuresOf('june') + 0.01) {
        await next.rollback();
        return false;
      }
    }
    await next.promote();
    return true;
  }

  /** The share of the version's calls that failed. */
  private failuresOf(version: string): number {
    const status = this.serving.versions().find((each) => each.version === version);
    const { answered = 0, failed = {} } = status?.counters ?? {};
    const failures = Object.values(failed).reduce((sum, count) => sum + count, 0);
    return failures / Math.max(answered + failures, 1);
  }
}
// #endregion

const file = 'digits.onnx';
const image = new Tensor('float32', new Float32Array(784), [1, 784]);
let app: INestApplicationContext;
let serving: LocalServing<Drawing>;

beforeEach(async () => {
  Logger.overrideLogger(false);
  const module = await Test.createTestingModule({
    imports: [ServingModule.forRoot({ servings: [digits] })],
    providers: [ProgressiveRollout],
  }).compile();
  app = await module.init();
  serving = app.get(getServingToken(digits));
});

afterEach(() => app.close());

const sharesOf = (shares: (number | undefined)[]) => async (): Promise<void> => {
  shares.push(serving.versions().find(({ version }) => version === 'july')!.share);
  await serving.batchedRun({ customer: 'acme', image }, { version: 'july' });
};

it('[17.3] A progressive rollout moves the share step by step, and promotes a good version', async () => {
  const shares: (number | undefined)[] = [];
  await expect(app.get(ProgressiveRollout).rollOut(file, 'july', sharesOf(shares))).resolves.toBe(
    true,
  );
  expect(shares).toEqual([0.01, 0.05, 0.25, 0.5]);
  expect(serving.versions().find(({ role }) => role === 'active')).toMatchObject({
    version: 'july',
  });
});

it('[17.3] A progressive rollout rolls a version back that fails more of its calls', async () => {
  const shares: (number | undefined)[] = [];
  const observed = async (): Promise<void> => {
    await sharesOf(shares)();
    const wrong = { customer: 'acme', image: new Tensor('float32', new Float32Array(2), [1, 2]) };
    await serving.batchedRun(wrong, { version: 'july' }).catch(() => {});
  };
  await expect(app.get(ProgressiveRollout).rollOut(file, 'july', observed)).resolves.toBe(false);
  expect(shares).toEqual([0.01]);
  expect(serving.versions().find(({ role }) => role === 'active')).toMatchObject({
    version: 'june',
  });
});
