import { describe, expect, it } from '@jest/globals';
import type { OnnxModel } from '../../../../lib/core/partitions/onnx/onnx-model.js';
import { SharedModel } from '../../../../lib/core/partitions/onnx/model-source.js';

/** Opens models that only count how often they are closed. */
class Models {
  opened = 0;
  closed = 0;

  readonly open = async (): Promise<OnnxModel> => {
    this.opened++;
    return { close: async () => void this.closed++ } as OnnxModel;
  };
}

describe('SharedModel', () => {
  it('[5.8] The model opens for its first user, and closes after its last', async () => {
    const models = new Models();
    const shared = new SharedModel();

    const [first, second] = await Promise.all([
      shared.acquire(models.open),
      shared.acquire(models.open),
    ]);
    expect(second).toBe(first);
    await shared.release();
    expect(models).toMatchObject({ opened: 1, closed: 0 });

    await shared.release();
    expect(models).toMatchObject({ opened: 1, closed: 1 });
  });

  it('[5.8] It opens again after it was closed, and after it has failed to open', async () => {
    const models = new Models();
    const shared = new SharedModel();
    await expect(shared.acquire(() => Promise.reject(new Error('no file')))).rejects.toThrow(
      'no file',
    );

    await shared.acquire(models.open);
    await shared.release();
    await shared.acquire(models.open);
    await shared.release();

    expect(models).toMatchObject({ opened: 2, closed: 2 });
  });
});
