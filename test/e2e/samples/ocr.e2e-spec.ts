import { expect, it } from '@jest/globals';
import { createCanvas } from '@napi-rs/canvas';
import { readFile } from 'node:fs/promises';
import { type BatchEndEvent, ServingService } from 'nestjs-serving';
import { AppModule } from '../../../sample/05-ocr/src/app.module.js';
import { fetchModel } from '../../../sample/05-ocr/src/fetch-model.js';
import type { Line } from '../../../sample/05-ocr/src/lines.service.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { describeInBrowser } from '../../fixtures/http/describe-in-browser.js';
import { expectToFit } from './expect-to-fit.js';
import { useSample, whyMissing } from '../../fixtures/http/sample-app.js';

interface Answer {
  readonly text: string;
  readonly confidence: number;
  readonly bucket: number;
}

const folder = new URL('../../../sample/05-ocr/lines/', import.meta.url);
const lines = JSON.parse(await readFile(new URL('lines.json', folder), 'utf8')) as Line[];
const images = await Promise.all(lines.map(({ name }) => readFile(new URL(`${name}.png`, folder))));
const imageOf = (name: string) => images[lines.findIndex((line) => line.name === name)]!;
const buckets: Readonly<Record<string, number>> = {
  exit: 160,
  gate: 160,
  hello: 320,
  departure: 320,
  total: 320,
  invoice: 480,
  order: 480,
  grass: 480,
  serial: 480,
  idle: 640,
  fox: 960,
  window: 960,
};

const modelMissing = await whyMissing(fetchModel);

describeUnless(modelMissing, 'the OCR sample', () => {
  const sample = useSample(AppModule);

  const send = (body: Buffer | string, type = 'image/png') =>
    fetch(`${sample.url}/read`, { method: 'POST', body, headers: { 'content-type': type } });
  const read = async (image: Buffer) => (await (await send(image)).json()) as Answer;

  it.each(lines)('The text "$text" is read from its image', async ({ name, text }) => {
    const answer = await read(imageOf(name));

    expect(answer).toMatchObject({ text, bucket: buckets[name] });
    expect(answer.confidence).toBeGreaterThan(0.85);
    expect(answer.confidence).toBeLessThanOrEqual(1);
  });

  it('[3.2] [4.6] Many concurrent uploads are each answered with their own text', async () => {
    const asked = Array.from({ length: 60 }, (_, index) => (index * 7) % lines.length);
    const answers = await Promise.all(asked.map((index) => read(images[index]!)));

    expect(answers.map(({ text }) => text)).toEqual(asked.map((index) => lines[index]!.text));
  });

  it('[4.7] Lines of different widths never share a batch, and both threads run batches', async () => {
    const batches: BatchEndEvent[] = [];
    const subscription = sample.app
      .get(ServingService)
      .eventsOf('batch:end')
      .subscribe((event) => batches.push(event));
    const asked = Array.from({ length: 48 }, (_, index) => index % lines.length);
    await Promise.all(asked.map((index) => read(images[index]!)));
    subscription.unsubscribe();

    const rows: Record<string, number> = {};
    for (const batch of batches) {
      rows[batch.key] = (rows[batch.key] ?? 0) + (batch.revoked ? 0 : batch.rows);
    }
    expect(rows).toEqual({ 160: 8, 320: 12, 480: 16, 640: 4, 960: 8 });
    expect(batches.length).toBeLessThan(48);
    expect(new Set(batches.map(({ partition }) => partition))).toEqual(new Set([0, 1]));
    expect(batches.every(({ error }) => error === undefined)).toBe(true);
  });

  it.each<[string, Buffer | string, string]>([
    [
      'bytes that only begin like a PNG',
      Buffer.concat([imageOf('exit').subarray(0, 8), Buffer.from('rubbish')]),
      'image/png',
    ],
    ['text', 'Hello, world!', 'image/png'],
    ['an SVG', '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="30"/>', 'image/svg+xml'],
    ['JSON', '{ "image": "hello.png" }', 'application/json'],
    ['nothing', '', 'image/png'],
  ])('An upload of %s is answered with 400', async (_, body, type) => {
    const response = await send(body, type);

    expect(response.status).toBe(400);
    await expect(response.json()).resolves.toMatchObject({
      message: 'Send a PNG or JPEG image of one line of text',
    });
  });

  it('[4.7] A line that is too long is answered with 400 and the reason', async () => {
    const response = await send(createCanvas(1000, 40).toBuffer('image/png'));

    expect(response.status).toBe(400);
    await expect(response.json()).resolves.toMatchObject({
      message: 'Send a line that is at most 20 times as wide as it is high',
    });
  });

  it('An upload that is too large is answered with 413', async () => {
    await expect(send(Buffer.alloc(1_000_001))).resolves.toMatchObject({ status: 413 });
  });

  describeInBrowser((openPage) => {
    it('The page shows lines with their text, reads an uploaded image, and shows batches by width', async () => {
      const { page, problems } = await openPage(sample.url, {
        viewport: { width: 1280, height: 1280 },
      });

      for (const { text } of lines) {
        await page.locator('#lines .text:not(.wrong)').getByText(text, { exact: true }).waitFor();
      }

      await page
        .getByLabel('Image of a line')
        .setInputFiles({ name: 'a.png', mimeType: 'image/png', buffer: imageOf('gate') });
      await page.locator('#lines li:first-child').getByText('Gate 12', { exact: true }).waitFor();
      await page
        .getByLabel('Image of a line')
        .setInputFiles({ name: 'b.png', mimeType: 'image/png', buffer: Buffer.from('b') });
      await page
        .locator('#lines li:first-child')
        .getByText('Send a PNG or JPEG image of one line of text')
        .waitFor();

      await page.getByRole('button', { name: 'Read all lines five times' }).click();
      await page.getByText('60 of 60 lines were read right').waitFor({ timeout: 500_000 });
      expect(await page.locator('#lanes tr').count()).toBe(5);
      expect(await page.locator('.strip i').count()).toBeGreaterThan(10);
      // The browser logs the answer to the upload that is no image.
      expect(problems).toEqual([expect.stringContaining('400 (Bad Request)')]);

      await expectToFit(page);
      await page.setViewportSize({ width: 390, height: 1280 });
      const line = page.locator('#lines .text').getByText('Invoice 2024-0815', { exact: true });
      // On a phone the text has one line too.
      expect((await line.boundingBox())!.height).toBeLessThan(30);
      await page.setViewportSize({ width: 1280, height: 1280 });

      await page.screenshot({ path: 'test-results/ocr.png' });
      await page.emulateMedia({ colorScheme: 'dark' });
      await page.screenshot({ path: 'test-results/ocr-dark.png' });
    });
  });
});
