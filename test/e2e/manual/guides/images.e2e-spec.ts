// #region classifier
import {
  Controller,
  Module,
  ParseFilePipe,
  Post,
  UploadedFile,
  UseInterceptors,
} from '@nestjs/common';
import { FileInterceptor } from '@nestjs/platform-express';
import { InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { imageClassification, type LabelScore } from 'nestjs-serving/tasks';

export const animals = imageClassification({
  name: 'animals',
  model: 'hf:Xenova/vit-base-patch16-224',
  top: 3,
});

@Controller()
export class AnimalsController {
  constructor(@InjectServing(animals) private readonly serving: ServingOf<typeof animals>) {}

  @Post('animal')
  @UseInterceptors(FileInterceptor('image', { limits: { fileSize: 20 * 2 ** 20 } }))
  label(
    @UploadedFile(new ParseFilePipe()) image: { buffer: Uint8Array },
  ): Promise<readonly LabelScore[]> {
    return this.serving.batchedRun(image.buffer); // [{ label: 'Egyptian cat', score: 0.94 }, ...]
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: [animals] })],
  controllers: [AnimalsController],
})
export class AnimalsModule {}
// #endregion
import { readFileSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { HubServer, ModelServer } from '../../../fixtures/http/model-server.js';
import { useModelCache } from '../../../fixtures/http/use-model-cache.js';

const images = 'test/fixtures/tasks/images';

describe('The manual on images', () => {
  useModelCache();
  let store: ModelServer;
  let hub: HubServer;
  let app: INestApplication;

  beforeAll(async () => {
    store = await new ModelServer().listen();
    hub = await new HubServer(store).listen();
    process.env['HF_ENDPOINT'] = hub.origin;
    hub.commitFolder('Xenova/vit-base-patch16-224', 'test/fixtures/tasks/vit');
    const module = await Test.createTestingModule({ imports: [AnimalsModule] }).compile();
    app = module.createNestApplication({ logger: false });
    await app.listen(0);
  });

  afterAll(async () => {
    await app.close();
    await Promise.all([hub.close(), store.close()]);
  });

  async function upload(file: Uint8Array | undefined): Promise<Response> {
    const { port } = app.getHttpServer().address() as AddressInfo;
    const body = new FormData();
    if (file) {
      body.append('image', new Blob([Uint8Array.from(file)]), 'image');
    }
    return fetch(`http://127.0.0.1:${port}/animal`, { method: 'POST', body });
  }

  it("[22.21] The manual's controller labels an uploaded image, and refuses what is none", async () => {
    const labelled = await upload(readFileSync(`${images}/photo.jpg`));
    expect(labelled.status).toBe(201);
    const labels = (await labelled.json()) as readonly LabelScore[];
    expect(labels.map(({ label }) => label).toSorted()).toEqual(['bird', 'cat', 'dog']);

    expect((await upload(undefined)).status).toBe(400);
    expect((await upload(Buffer.from('<svg/>'))).status).toBe(400);
    expect((await upload(new Uint8Array(20 * 2 ** 20 + 1))).status).toBe(413);
  });
});
