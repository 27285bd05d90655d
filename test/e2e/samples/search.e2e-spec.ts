import { expect, it } from '@jest/globals';
import { AppModule } from '../../../sample/02-semantic-search/src/app.module.js';
import { fetchModel } from '../../../sample/02-semantic-search/src/fetch-model.js';
import type { Answer } from '../../../sample/02-semantic-search/src/search.service.js';
import type { Stats } from '../../../sample/02-semantic-search/src/stats.service.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { describeInBrowser } from '../../fixtures/http/describe-in-browser.js';
import { expectToFit } from './expect-to-fit.js';
import { startSample, useSample, whyMissing } from '../../fixtures/http/sample-app.js';

const modelMissing = await whyMissing(fetchModel);

describeUnless(modelMissing, 'the semantic search sample', () => {
  const sample = useSample(AppModule);

  const get = async <T>(path: string): Promise<T> =>
    (await (await fetch(sample.url + path)).json()) as T;
  const search = (question: string) => get<Answer[]>(`/search?q=${encodeURIComponent(question)}`);

  it.each([
    ['how do I reset my password', 'I forgot my password, what now?'],
    ['my account has been hacked', 'Somebody else logged in as me, what should I do?'],
    ['the bank took the money two times', 'I was charged twice for the same thing'],
    ['the courier rang while I was away', 'I was not at home when the courier came'],
    ['unsubscribe from your e-mails', 'How do I stop the newsletter?'],
    ['travelling with a cat', 'Can I bring my dog on the plane?'],
    ['snails are eating my salad', 'What helps against slugs?'],
    ['see a physician online', 'Can I see the doctor by video?'],
  ])('A question is found by its meaning: %s', async (question, expected) => {
    const answers = await search(question);
    const scores = answers.map(({ score }) => score);

    expect(answers[0]).toMatchObject({ question: expected });
    expect(scores).toEqual(scores.toSorted((one, other) => other - one));
  });

  it('A hundred concurrent searches are answered in fewer batches', async () => {
    const before = await get<Stats>('/stats');
    const answers = await Promise.all(
      Array.from({ length: 100 }, (_, index) => search(`what about order ${index}`)),
    );
    const after = await get<Stats>('/stats');

    expect(answers.every(({ length }) => length === 5)).toBe(true);
    expect(after.rows - before.rows).toBe(100);
    expect(after.batches - before.batches).toBeLessThan(50);
  });

  it('The statistics of a new application count no questions', async () => {
    const other = await startSample(AppModule);
    const response = await fetch(`${await other.getUrl()}/stats`, {
      headers: { connection: 'close' },
    });
    await expect(response.json()).resolves.toMatchObject({ batches: 0, rows: 0 });
    await other.close();
  });

  it('A question longer than the model can read is cut', async () => {
    await expect(search('where is my parcel? '.repeat(200))).resolves.toHaveLength(5);
  });

  it.each(['/search', '/search?q=', '/search?q=a&q=b'])(
    'The request %s is refused',
    async (path) => {
      await expect(get(path)).resolves.toMatchObject({
        statusCode: 400,
        message: 'Ask something: /search?q=...',
      });
    },
  );

  it('The stream of statistics ends when the application closes', async () => {
    const other = await startSample(AppModule);
    // A kept-alive connection would keep the server for another five seconds.
    const headers = { connection: 'close' };
    const stream = await fetch(`${await other.getUrl()}/stats/stream`, { headers });
    const [text] = await Promise.all([stream.text(), other.close()]);

    expect(text).toContain('"p50"');
  });

  describeInBrowser((openPage) => {
    it('The page shows ranked answers and live batches', async () => {
      const { page, problems } = await openPage(sample.url, {
        viewport: { width: 1280, height: 800 },
      });

      await page.locator('#answers li').first().waitFor();
      await page.getByLabel('Question').fill('how do I reset my password');
      await page
        .locator('#answers li:first-child')
        .getByText('I forgot my password, what now?')
        .waitFor();
      expect(await page.locator('#answers li').count()).toBe(5);

      const asked = Number(await page.locator('#rows').textContent());
      await page.getByRole('button', { name: 'Fire 200 concurrent questions' }).click();
      await page.getByText(/^200 questions, \d+ runs of the model$/).waitFor();
      await page.waitForFunction(`document.querySelector('#rows').textContent >= ${asked + 200}`);
      expect(await page.locator('#bars i').count()).toBeGreaterThan(5);
      expect(await page.locator('#bars i.shared').count()).toBeGreaterThan(2);
      expect(Number(await page.locator('#mean').textContent())).toBeGreaterThan(1);
      expect(await page.locator('#burst li').count()).toBe(3);
      expect(problems).toEqual([]);
      await expectToFit(page);

      await page.screenshot({ path: 'test-results/semantic-search.png' });
    });
  });
});
