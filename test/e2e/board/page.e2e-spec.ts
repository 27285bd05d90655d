import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { type INestApplication, Logger } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ServingModule, ServingService } from 'nestjs-serving';
import { ServingBoardModule } from 'nestjs-serving/board';
import { ServingClusterModule, MemoryNetwork } from 'nestjs-serving/distribution';
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
        ServingBoardModule.forRoot({
          guards: [],
          changes: { guards: [{ canActivate: () => true }] },
        }),
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
    it('[20.1] [FU32] [FU42] The page draws charts of a serving under load, and lists batches as they form', async () => {
      const { page, problems } = await openPage(`${url}#embeddings`, {
        viewport: { width: 1360, height: 1500 },
        colorScheme: 'light',
      });

      await page.getByRole('heading', { name: 'embeddings' }).waitFor();
      await page.locator('#batches tbody tr:nth-child(20)').waitFor();
      const chart = page.getByRole('img', {
        name: /^Chart of Rows per second over 5 min: rows is [1-9]/,
      });
      await chart.waitFor();
      expect(await page.locator('figure canvas').count()).toBe(6);
      expect(await coloursIn(page, '.plot canvas')).toBeGreaterThan(2);
      const rows = await page.locator('#batches tbody tr').first().innerText();
      expect(rows).toMatch(/\/ [\d,]+\s+(full|target|idle)\s+[\d.]+ ms/);
      expect(await page.locator('#partitions tbody tr').count()).toBe(2);
      const tiles = await page.locator('#tiles dt').allInnerTexts();
      expect(tiles.filter((tile) => !/, (5 s mean|last second|now)$/.test(tile))).toEqual([]);
      await page.waitForTimeout(Number(process.env['BOARD_SECONDS'] ?? 0) * 1000);

      expect(await violations(page)).toEqual([]);
      for (const width of [1440, 860, 390, 320]) {
        await page.setViewportSize({ width, height: 1500 });
        expect({ width, fits: await isWithoutSidewaysScroll(page) }).toEqual({ width, fits: true });
      }
      await page.setViewportSize({ width: 1360, height: 1240 });
      await page.waitForTimeout(1300);
      await page.screenshot({ path: 'test-results/board-light.png' });
      await page.emulateMedia({ colorScheme: 'dark' });
      await page.waitForTimeout(300);
      expect(await violations(page)).toEqual([]);
      expect(await colourOf(page, '#filter', '::placeholder')).toBe(
        await colourOf(page, '#summary'),
      );
      await page.goto(`${url}#digits`);
      await page.locator('#versions tbody tr:nth-child(3)').waitFor();
      await page.locator('#batches tbody tr:nth-child(20)').waitFor();
      await page.setViewportSize({ width: 1360, height: 1800 });
      await page.waitForTimeout(1500);
      await page.screenshot({ path: 'test-results/board-dark.png' });
      await page.setViewportSize({ width: 320, height: 1500 });
      await page.waitForTimeout(300);
      expect(await isWithoutSidewaysScroll(page)).toBe(true);
      await page.setViewportSize({ width: 390, height: 844 });
      await page.emulateMedia({ colorScheme: 'light' });
      await page.waitForTimeout(300);
      await page.screenshot({ path: 'test-results/board-phone.png' });
      expect(problems).toEqual([]);
    });

    it('[20.11] Users change batch sizes, pause and resume by the keyboard alone', async () => {
      const serving = service.get('translations');
      const { page, problems } = await openPage(`${url}#translations`, {
        viewport: { width: 1200, height: 900 },
        reducedMotion: 'reduce',
      });
      await page.getByRole('heading', { name: 'translations' }).waitFor();

      const size = page.getByLabel('Batch size of default', { exact: true });
      await size.focus();
      await page.keyboard.press('Control+A');
      await page.keyboard.type('3');
      await page.keyboard.press('Enter');
      await page.locator('#batches').getByText('/ 3', { exact: false }).first().waitFor();
      expect(serving.keys()).toMatchObject([{ batchSize: 3 }]);
      expect(await size.inputValue()).toBe('3');

      await size.focus();
      await page.keyboard.press('Control+A');
      await page.keyboard.type('20000');
      await page.keyboard.press('Enter');
      await page.getByRole('alert').getByText('20000').waitFor();
      expect(serving.keys()).toMatchObject([{ batchSize: 3 }]);

      await page.getByRole('button', { name: 'Pause', exact: true }).focus();
      await page.keyboard.press('Enter');
      await page.getByRole('dialog').waitFor();
      expect(await violations(page)).toEqual([]);
      await page.keyboard.press('Escape');
      expect(serving.held).toBeUndefined();
      await page.keyboard.press('Enter');
      await page.keyboard.press('Tab');
      await page.keyboard.press('Enter');
      await page.locator('#state').getByText('paused').waitFor();
      await page.getByText('it was paused by hand').waitFor();
      expect(serving.held).toBe('paused');
      await page.getByRole('button', { name: 'Resume' }).focus();
      await page.keyboard.press('Enter');
      await page.locator('#state').getByText('ready').waitFor();
      expect(serving.held).toBeUndefined();

      // Where the focus is, is seen.
      await page.keyboard.press('Tab');
      const outline = 'getComputedStyle(document.activeElement).outlineStyle';
      expect(await page.evaluate(outline)).toBe('solid');
      // The browser logs the change that was refused.
      expect(problems).toEqual([expect.stringContaining('409 (Conflict)')]);
    });

    it('[20.11] An answer is that of the question that is open, also right after another', async () => {
      const serving = service.get('translations');
      const { page, problems } = await openPage(`${url}#translations`, {
        viewport: { width: 1200, height: 900 },
      });
      await page.getByRole('button', { name: 'Pause', exact: true }).click();
      await page.getByRole('dialog').waitFor();
      // The browser says later that a dialog was closed; the next one is open by then.
      await page.evaluate(`{
        document.querySelector('dialog[open]').close();
        document.querySelector('#actions button').click();
      }`);
      await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click();
      await page.locator('#state').getByText('paused').waitFor();
      expect(serving.held).toBe('paused');
      serving.resume();
      expect(problems).toEqual([]);
    });

    it('[20.11] Versions are promoted on the page', async () => {
      const { page, problems } = await openPage(`${url}#digits`, {
        viewport: { width: 1200, height: 900 },
      });
      await page.getByRole('button', { name: 'Promote july' }).click();
      await page.getByRole('dialog').getByRole('button', { name: 'Promote' }).click();
      await page
        .locator('#versions tr', { hasText: 'july' })
        .getByText('active', { exact: true })
        .waitFor();
      expect(service.get('digits').versions()).toContainEqual(
        expect.objectContaining({ version: 'july', role: 'active' }),
      );
      expect(problems).toEqual([]);
    });

    it('[20.12] Names that are HTML are shown as they are, and run nothing', async () => {
      const { page, problems } = await openPage(`${url}#${encodeURIComponent(HOSTILE)}`, {
        viewport: { width: 1200, height: 900 },
      });
      await page.getByRole('heading', { name: HOSTILE }).waitFor();
      await page.locator('#batches tbody tr:nth-child(3)').waitFor();

      expect(await page.locator('#keys th[scope=row]').innerText()).toBe(HOSTILE);
      expect(await page.locator('#batches').innerText()).toContain(HOSTILE);
      expect(await page.title()).toBe('Servings');
      expect(await page.locator('main img, nav img').count()).toBe(0);
      expect(problems).toEqual([]);
    });

    it('[20.12] The list of fifty servings scrolls beside the one that is shown', async () => {
      const servings = Array.from({ length: 50 }, (_, i) => ({
        name: `serving ${i}`,
        model: { useFactory: () => (rows: unknown) => rows },
      }));
      const many = await NestFactory.create(
        {
          module: class {},
          imports: [
            ServingModule.forRoot({ servings }),
            ServingBoardModule.forRoot({ guards: [] }),
          ],
        },
        { logger: false, abortOnError: false },
      );
      try {
        await many.listen(0, '127.0.0.1');
        const { page, problems } = await openPage(`${await many.getUrl()}/servings`, {
          viewport: { width: 1200, height: 700 },
        });
        await page.getByRole('heading', { name: 'serving 0', exact: true }).waitFor();
        expect(await page.locator('#list li').count()).toBe(50);
        await page.getByRole('link', { name: /^serving 49/ }).click();
        await page.getByRole('heading', { name: 'serving 49' }).waitFor();
        expect(await page.locator('#actions button, td button').count()).toBe(0);
        expect(await violations(page)).toEqual([]);
        expect(problems).toEqual([]);
      } finally {
        await many.close();
      }
    });

    it('[N8] The page says since when no batch has ended, and entries of its list look like buttons on a phone', async () => {
      const one = await NestFactory.create(
        {
          module: class {},
          imports: [
            ServingModule.forRoot({
              servings: [{ name: 'quiet', model: { useFactory: () => (rows: unknown) => rows } }],
            }),
            ServingBoardModule.forRoot({ guards: [] }),
          ],
        },
        { logger: false, abortOnError: false },
      );
      try {
        await one.listen(0, '127.0.0.1');
        await one.get(ServingService).batchedRun('quiet', 'before a board is open');
        const { page, problems } = await openPage(`${await one.getUrl()}/servings`, {
          viewport: { width: 390, height: 844 },
        });
        const entry = page.getByRole('link', { name: /^quiet/ });
        await entry.waitFor();
        const look = await page.evaluate(`(() => {
          const link = document.querySelector('#list a');
          const { borderTopColor, minHeight } = getComputedStyle(link);
          return { borderTopColor, minHeight, content: getComputedStyle(link, '::after').content };
        })()`);
        expect(look).toEqual({
          borderTopColor: expect.not.stringContaining(', 0)'),
          minHeight: '44px',
          content: expect.stringContaining('›'),
        });

        await entry.click();
        await page
          .locator('#batches')
          .getByText(/^None since \d\d:\d\d:\d\d\.$/)
          .waitFor();
        expect(await isWithoutSidewaysScroll(page)).toBe(true);
        expect(await violations(page)).toEqual([]);
        expect(problems).toEqual([]);
      } finally {
        await one.close();
      }
    });

    it('[20.13] The nodes of a cluster appear when they join, and go when they leave', async () => {
      const network = new MemoryNetwork();
      const [shownNode, other] = await Promise.all(
        ['near', 'far'].map((nodeId) =>
          NestFactory.create(
            {
              module: class {},
              imports: [
                ServingModule.forRoot({
                  servings: [
                    { name: 'shared', model: { useFactory: () => (rows: unknown) => rows } },
                  ],
                }),
                ServingClusterModule.forRoot({ transport: network.transport(), nodeId }),
                ServingBoardModule.forRoot({ guards: [] }),
              ],
            },
            { logger: false, abortOnError: false },
          ),
        ),
      );
      try {
        await shownNode!.listen(0, '127.0.0.1');
        const { page, problems } = await openPage(`${await shownNode!.getUrl()}/servings`, {
          viewport: { width: 1200, height: 900 },
        });
        const nodes = page.getByRole('region', { name: 'Nodes' });
        await nodes.getByText('near (this node)').waitFor();
        expect(await nodes.getByRole('row').count()).toBe(2);
        await other!.init();
        await nodes.getByRole('rowheader', { name: 'far', exact: true }).waitFor();
        expect(await nodes.innerText()).toMatch(/far\s+ready\s+1\s+1\s+0\s+0\s+–/);
        expect(await violations(page)).toEqual([]);
        await other!.close();
        await nodes.getByRole('row', { name: 'far' }).waitFor({ state: 'detached' });
        expect(problems).toEqual([]);
      } finally {
        await shownNode!.close();
        await other!.close();
      }
    });

    it('[20.14] The page says that the server does not answer, and goes on once it does', async () => {
      const { page, problems } = await openPage(`${url}#embeddings`, {
        viewport: { width: 1200, height: 900 },
      });
      const connection = page.locator('#connection');
      await connection.getByText('Live').waitFor();
      await page.route('**/api?*', () => undefined, { times: 1 });
      await connection.getByText('No answer').waitFor();
      await connection.getByText('Live').waitFor();
      await page.route('**/api?*', (route) => route.abort(), { times: 1 });
      await connection.getByText('No connection').waitFor();
      await connection.getByText('Live').waitFor();
      await page.route('**/api?*', (route) => route.fulfill({ status: 403 }), { times: 1 });
      await connection.getByText('Access refused (403)').waitFor();
      await connection.getByText('Live').waitFor();
      expect(problems).toEqual([
        expect.stringContaining('ERR_FAILED'),
        expect.stringContaining('403 (Forbidden)'),
      ]);
    });

    it('[20.12] [FU33] The list is filtered, figures come as a table, and the page freezes', async () => {
      const { page, problems } = await openPage(`${url}/`, {
        viewport: { width: 1200, height: 900 },
      });
      await page.getByRole('link', { name: /^embeddings/ }).waitFor();
      await page.getByLabel('Filter servings by name').fill('TRANS');
      expect(await page.locator('#list li').count()).toBe(1);
      await page.getByRole('link', { name: /^translations/ }).click();
      await page.getByRole('heading', { name: 'translations' }).waitFor();

      await page.getByText('Figures as a table').click();
      await page.locator('#figures tbody tr').first().waitFor();
      expect(await violations(page)).toEqual([]);
      await page.getByRole('button', { name: 'Freeze this page' }).click();
      await page.getByText('Frozen').waitFor();
      let polls = 0;
      page.on('request', (request) => (polls += request.url().includes('/api?') ? 1 : 0));
      await page.waitForTimeout(2500);
      expect(polls).toBe(0);
      await page.getByRole('button', { name: 'Freeze this page' }).click();
      await page.getByText('Live').waitFor();
      expect(problems).toEqual([]);
    });
  });
});

function colourOf(page: Page, selector: string, part = ''): Promise<string> {
  return page.evaluate(`getComputedStyle(document.querySelector('${selector}'), '${part}').color`);
}

function isWithoutSidewaysScroll(page: Page): Promise<boolean> {
  return page.evaluate('document.documentElement.scrollWidth <= innerWidth');
}

/** The number of colours of a canvas, without transparency. */
function coloursIn(page: Page, canvas: string): Promise<number> {
  return page.evaluate(`(() => {
    const canvas = document.querySelector('${canvas}');
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const pixels = new Uint32Array(data.buffer).map((pixel) => pixel & 0xffffff);
    return new Set(pixels).size;
  })()`);
}
