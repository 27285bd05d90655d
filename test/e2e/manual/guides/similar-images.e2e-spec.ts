// #region embedding
import { Injectable, Module } from '@nestjs/common';
import { InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { imageEmbedding, type ImageInput } from 'nestjs-serving/tasks';

export const pictures = imageEmbedding({
  name: 'pictures',
  model: { from: 'hf:Xenova/clip-vit-base-patch32', file: 'onnx/vision_model.onnx' },
});

@Injectable()
export class Pictures {
  constructor(@InjectServing(pictures) private readonly serving: ServingOf<typeof pictures>) {}

  /** From -1 to 1: 1 for the same picture. */
  async similarity(one: ImageInput, other: ImageInput): Promise<number> {
    const [{ vector }, { vector: others }] = await Promise.all([
      this.serving.batchedRun(one),
      this.serving.batchedRun(other),
    ]);
    return vector.reduce((sum, value, i) => sum + value * others[i]!, 0);
  }
}

@Module({ imports: [ServingModule.forRoot({ servings: [pictures] })], providers: [Pictures] })
export class PicturesModule {}
// #endregion
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { HubServer, ModelServer } from '../../../fixtures/http/model-server.js';
import { useModelCache } from '../../../fixtures/http/use-model-cache.js';

const images = 'test/fixtures/tasks/images';
const CLIP = 'Xenova/clip-vit-base-patch32';

describe('The manual on similar images', () => {
  useModelCache();
  let store: ModelServer;
  let hub: HubServer;
  let app: INestApplication;

  beforeAll(async () => {
    store = await new ModelServer().listen();
    hub = await new HubServer(store).listen();
    hub.commitFolder(CLIP, 'test/fixtures/tasks/clip');
    const vision = readFileSync('test/fixtures/tasks/clip/onnx/model.onnx');
    hub.commit(CLIP, 'main', 'onnx/vision_model.onnx', vision, 'a'.repeat(40));
    process.env['HF_ENDPOINT'] = hub.origin;
    const module = await Test.createTestingModule({ imports: [PicturesModule] }).compile();
    app = await module.createNestApplication({ logger: false }).init();
  });

  afterAll(async () => {
    await app.close();
    await Promise.all([hub.close(), store.close()]);
  });

  it("[22.20] The manual's pictures are most similar to themselves", async () => {
    const photo = readFileSync(`${images}/photo.jpg`);
    const same = await app.get(Pictures).similarity(photo, { file: `${images}/photo.jpg` });
    expect(same).toBeCloseTo(1, 5);
    const other = await app.get(Pictures).similarity(photo, { file: `${images}/grey.png` });
    expect(other).toBeLessThan(0.99);
  });
});
