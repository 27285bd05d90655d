import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { type INestApplication, Logger } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ServingModule, ServingService } from 'nestjs-serving';
import { ServingBoardModule } from 'nestjs-serving/board';
import type { Page } from 'playwright-core';
import { describeInBrowser } from '../../fixtures/http/describe-in-browser.js';
import { boardServings, HOSTILE, loadOf } from '../../fixtures/serving/board-servings.js';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

interface Violation {
  readonly id: string;
  readonly nodes: readonly { readonly html: string }[];
}

/** What axe-core finds wrong for users of assistive technology. */
async function violations(page: Page): Promise<readonly string[]> {
  const found = (await page.evaluate(
    `(() => { const module = undefined; ${axe}; })(), window.axe.run().then((r) => r.violations)`,
  )) as readonly Violation[];
  return found.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html}`));
}

describe('The page of the board', () => {
  let app: INestApplication;
  let service: ServingService;
  let load: { stop(): Promise<void> };
  let url: string;

  beforeAll(async () => {
    Logger.overrideLogger(false);
    const module = {
      module: class {},
      imports: [
        ServingModule.forRoot({ servings: boardServings() }),
        ServingBoardModule.forRoot({ guards: [], changes: { guards: [{ canActivate: () => true }] } }),
      ],
    };
    app = await NestFactory.create(module, { logger: false, abortOnError: false });
    await app.listen(0, '127.0.0.1');
    service = app.get(ServingService);
    url = `${await app.getUrl()}/servings`;
    load = loadOf(service);
  });

  afterAll(async () => {
    await load.stop();
    await app.close();
  });

  describeInBrowser((openPage) => {
    it('[20.1] The page draws charts of a serving under load, and lists batches as they form', async () => {
      const { page, problems } = await openPage(`${url}#embeddings`, {
        viewport: { width: 1360, height: 1500 },
        colorScheme: 'light',
      });

      await page.getByRole('heading', { name: 'embeddings' }).waitFor();
      await page.locator('#batches tbody tr:nth-child(20)').waitFor();
      const chart = page.getByRole('img', { name: /^Chart of Rows over 5 min: rows is [1-9]/ });
      await chart.waitFor();
      expect(await page.locator('figure canvas').count()).toBe(6);
      expect(await coloursIn(page, '.plot canvas')).toBeGreaterThan(2);
      const rows = await page.locator('#batches tbody tr').first().innerText();
      expect(rows).toMatch(/of (16|4)\s+(full|timeout|idle)/);
      expect(await page.locator('#partitions tbody tr').count()).toBe(2);
      await page.waitForTimeout(Number(process.env['BOARD_SECONDS'] ?? 0) * 1000);

      expect(await violations(page)).toEqual([]);
      for (const width of [1440, 860, 390, 320]) {
        await page.setViewportSize({ width, height: 1500 });
        expect({ width, fits: await isWithoutSidewaysScroll(page) }).toEqual({ width, fits: true });
      }
      await page.setViewportSize({ width: 1360, height: 1500 });
      await page.waitForTimeout(300);
      await page.screenshot({ path: 'test-results/board-light.png' });
      await page.emulateMedia({ colorScheme: 'dark' });
      await page.waitForTimeout(300);
      expect(await violations(page)).toEqual([]);
      await page.goto(`${url}#digits`);
      await page.locator('#versions tbody tr:nth-child(3)').waitFor();
      await page.waitForTimeout(1500);
      await page.screenshot({ path: 'test-results/board-dark.png' });
      await page.setViewportSize({ width: 320, height: 1500 });
      await page.waitForTimeout(300);
      expect(await isWithoutSidewaysScroll(page)).toBe(true);
      await page.setViewportSize({ width: 390, height: 1100 });
      await page.emulateMedia({ colorScheme: 'light' });
      await page.waitForTimeout(300);
      await page.screenshot({ path: 'test-results/board-phone.png' });
      expect(problems).toEqual([]);
    }, 120_000);
  });

  it('has names that are HTML', () => {
    expect(HOSTILE).toContain('<');
  });
});

function isWithoutSidewaysScroll(page: Page): Promise<boolean> {
  return page.evaluate('document.documentElement.scrollWidth <= innerWidth');
}

/** The number of colours of a canvas, without transparency. */
function coloursIn(page: Page, canvas: string): Promise<number> {
  return page
    .locator(canvas)
    .first()
    .evaluate((element) => {
      const { width, height } = element as HTMLCanvasElement;
      const { data } = (element as HTMLCanvasElement)
        .getContext('2d')!
        .getImageData(0, 0, width, height);
      const colours = new Set<number>();
      for (let i = 0; i < data.length; i += 4) {
        colours.add((data[i]! << 16) | (data[i + 1]! << 8) | data[i + 2]!);
      }
      return colours.size;
    });
}
