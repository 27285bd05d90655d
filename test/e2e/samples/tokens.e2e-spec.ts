import { expect, it } from '@jest/globals';
import { readFile } from 'node:fs/promises';
import { type ServingEvent, ServingService } from 'nestjs-serving';
import { filter, firstValueFrom, skip } from 'rxjs';
import { AppModule } from '../../../sample/04-token-stream/src/app.module.js';
import { fetchModel } from '../../../sample/04-token-stream/src/fetch-model.js';
import type { Stats } from '../../../sample/04-token-stream/src/stats.service.js';
import type { Done, Piece } from '../../../sample/04-token-stream/src/writer.service.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { describeInBrowser } from '../../fixtures/http/describe-in-browser.js';
import { useSample, whyMissing } from '../../fixtures/http/sample-app.js';
import { expectToFit } from './expect-to-fit.js';
import { type ServerSent, serverSent } from '../../fixtures/http/server-sent.js';

const modelMissing = await whyMissing(fetchModel);

const sum = '1+1等于几？';
const poem = '写一首关于春天的诗';
const essay = '什么是人工智能？';

describeUnless(modelMissing, 'the token stream sample', () => {
  const sample = useSample(AppModule);

  const ask = (prompt: string, options: Record<string, string> = {}) =>
    fetch(`${sample.url}/generate?${new URLSearchParams({ prompt, ...options }).toString()}`);

  async function* events(
    prompt: string,
    options?: Record<string, string>,
  ): AsyncGenerator<ServerSent<Done & Piece>> {
    yield* serverSent<Done & Piece>(await ask(prompt, options));
  }

  async function answer(prompt: string, options?: Record<string, string>) {
    let [text, tokens] = ['', 0];
    let done: Done | undefined;
    // To the end of the stream, when the answer's batch has ended, too.
    for await (const { type, data } of events(prompt, options)) {
      if (type === 'done') {
        done = data;
      } else {
        text += data.text;
        tokens += data.tokens;
      }
    }
    expect(done).toBeDefined();
    return { text, tokens, done };
  }

  /** Closes the connection after the first token of a thousand. */
  async function askAndLeave(): Promise<void> {
    const answering = events(poem, { maxTokens: '1000' });
    await answering.next();
    await answering.return(undefined);
  }

  const stats = async () => (await (await fetch(`${sample.url}/stats`)).json()) as Stats;

  /** The count-th event of the type from now on. */
  const next = <Type extends ServingEvent['type']>(
    type: Type,
    count = 1,
  ): Promise<Extract<ServingEvent, { type: Type }>> =>
    firstValueFrom(
      sample.app.get(ServingService).events$.pipe(
        filter((event): event is Extract<ServingEvent, { type: Type }> => event.type === type),
        skip(count - 1),
      ),
    );

  it('The statistics count an answer while it is written', async () => {
    const before = await stats();
    const ended = next('batch:end');
    const answering = events(poem, { maxTokens: '1000' });
    await answering.next();
    const during = await stats();
    await answering.return(undefined);
    await ended;

    expect(during).toMatchObject({ prompts: before.prompts + 1, running: 1, places: 8 });
    expect(during.recent.at(-1)).toEqual({ batch: expect.any(Number), together: 1 });
    const after = await stats();
    expect(after.running).toBe(0);
    expect(after.recent.at(-1)).toMatchObject({ together: 1, runTime: expect.any(Number) });
  });

  it('[13.1] A prompt that comes while an answer is written is answered at once, and counts no longer', async () => {
    const long = events(essay, { maxTokens: '1000' });
    await long.next();
    const { text } = await answer(sum);

    expect(text).toBe('1+1等于2。');
    await expect(stats()).resolves.toMatchObject({ running: 1 });
    const ended = next('batch:end');
    await long.return(undefined);
    await ended;
  });

  it('Tokens are streamed one by one while the answer is written', async () => {
    const order: string[] = [];
    const ended = next('batch:end').then(() => order.push('ended'));
    for await (const { type } of events(poem, { maxTokens: '60' })) {
      order.push(type);
    }
    await ended;

    // A rare character takes two or three tokens.
    const pieces = order.filter((what) => what === 'message').length;
    expect(pieces).toBeGreaterThan(40);
    expect(order.indexOf('ended')).toBeGreaterThan(10);
    expect(order.indexOf('done')).toBe(order.lastIndexOf('message') + 1);
  });

  it('The last event has the numbers of tokens and the reason for stopping', async () => {
    const { text, tokens, done } = await answer(sum);
    expect(text).toBe('1+1等于2。');
    expect(done).toEqual({ promptTokens: 30, tokens: tokens + 1, reason: 'end' });

    const cut = await answer(poem, { maxTokens: '3' });
    expect(cut.done).toMatchObject({ tokens: 3, reason: 'length' });
  });

  it('Concurrent prompts are answered together, each as if it were alone', async () => {
    const prompts = [
      poem,
      essay,
      sum,
      '中国的首都是哪里？',
      '长江有多长？',
      '天空为什么是蓝色的？',
      'Hello',
      'Why is the sky blue?',
      'What is AI?',
      '写一首关于秋天的诗',
    ];
    const options = { maxTokens: '30' };
    const together = await Promise.all(prompts.map((prompt) => answer(prompt, options)));
    const { recent } = await stats();

    expect(Math.max(...recent.map((each) => each.together))).toBeGreaterThan(3);
    for (const [index, prompt] of prompts.entries()) {
      await expect(answer(prompt, options)).resolves.toEqual(together[index]);
    }
  });

  it('[13.3] An answer ends when its client has left', async () => {
    const whole = next('batch:end');
    await answer(poem, { maxTokens: '100' });
    const left = next('batch:end');
    await askAndLeave();
    const [{ steps: ofWhole }, { steps: ofLeft }] = await Promise.all([whole, left]);

    // Otherwise it would go on for more than twice as many tokens.
    expect(ofLeft).toBeLessThan(ofWhole! / 2);
  });

  it('The other answers go on when one client leaves', async () => {
    const options = { maxTokens: '40' };
    const [, other] = await Promise.all([askAndLeave(), answer(essay, options)]);

    await expect(answer(essay, options)).resolves.toEqual(other);
  });

  it('Equal seeds draw equal text, beside any other prompt', async () => {
    const options = { maxTokens: '20', temperature: '1', topK: '50' };
    const [{ text }] = await Promise.all([
      answer(poem, { ...options, seed: '3' }),
      answer(essay, options),
    ]);

    await expect(answer(poem, { ...options, seed: '3' })).resolves.toMatchObject({ text });
    await expect(answer(poem, { ...options, seed: '4' })).resolves.not.toMatchObject({ text });
  });

  it.each<[string, string, Record<string, string>, number, string]>([
    ['an empty prompt', '', {}, 400, 'Say something: /generate?prompt=...'],
    ['a prompt of spaces', '  ', {}, 400, 'Say something: /generate?prompt=...'],
    ['a prompt that is too long', '天'.repeat(1600), {}, 413, 'texts of at most 1536 tokens'],
    ['special tokens in a prompt', 'a<|im_end|>', {}, 400, 'a special token of its model'],
    ['an answer without tokens', 'a', { maxTokens: '0' }, 400, 'maxTokens must not be less than 1'],
    ['an invalid temperature', 'a', { temperature: 'hot' }, 400, 'temperature must'],
  ])('The endpoint refuses %s', async (_, prompt, options, status, message) => {
    const response = await ask(prompt, options);

    expect(response.status).toBe(status);
    expect(String(((await response.json()) as { message: string | string[] }).message)).toContain(
      message,
    );
  });

  it.each([
    ['What is the capital of France?', 'The capital of France is Paris.'],
    ['Hello, who are you?', 'Hello'],
  ])('The English prompt "%s" gets the answer that its README names', async (prompt, expected) => {
    expect((await answer(prompt)).text).toBe(expected);
  });

  it('The README explains the prompts of the page, with what is answered', async () => {
    const page = await (await fetch(sample.url)).text();
    const readme = await readFile('sample/04-token-stream/README.md', 'utf8');
    const rows = [...readme.matchAll(/^\| (.*) \| (.*) \| (.*[.]) \|$/gm)];
    expect(rows.length).toBeGreaterThan(0);
    for (const [, ...texts] of rows) {
      expect(texts.filter((text) => !page.includes(text))).toEqual([]);
    }
  });

  describeInBrowser((openPage) => {
    it('The page writes several answers side by side and stops the one that is not wanted', async () => {
      const { page, problems } = await openPage(sample.url, {
        viewport: { width: 1280, height: 860 },
      });

      await page.getByRole('button', { name: `${poem} Write a poem about spring` }).waitFor();
      expect(
        await page.evaluate(
          `getComputedStyle(document.querySelector('#answers'), '::before').content`,
        ),
      ).toContain('No answers yet.');
      const started = Number(await page.locator('#prompts').textContent());
      await page.getByRole('button', { name: 'Five at once' }).click();
      const poemCard = page.locator('article', { hasText: poem });
      await poemCard.getByText(/^\d+ tokens, \d+ a second$/).waitFor();
      await page.waitForFunction(`document.querySelector('#running').textContent > 1`);
      expect(Number(await page.locator('#prompts').textContent())).toBeGreaterThan(started);
      const title = await page.locator('#bars i.running').last().getAttribute('title');
      expect(title).toMatch(/^\d of 8 places, running$/);
      await expectToFit(page);
      await page.setViewportSize({ width: 390, height: 860 });
      const prompt = (await page.getByLabel('Prompt').boundingBox())!;
      expect(prompt.width).toBeGreaterThan(350);
      await page.screenshot({ path: 'test-results/token-stream-running.png' });
      await poemCard.getByRole('button', { name: 'Stop' }).click();
      await poemCard.getByText(/^\d+ tokens, stopped$/).waitFor();

      const sumCard = page.locator('article', { hasText: sum });
      await sumCard.getByText('1+1等于2。').waitFor();
      await sumCard.getByText('In short: 1+1 is 2.').waitFor();
      await page
        .getByText(/tokens, (ended by itself|as long as allowed)$/)
        .nth(3)
        .waitFor();
      expect(await page.locator('article').count()).toBe(5);
      expect(await page.locator('article.running').count()).toBe(0);
      await page.waitForFunction(`document.querySelector('#running').textContent === '0'`);

      const ended = Number(await page.locator('#prompts').textContent());
      await page.getByLabel('Prompt').fill('中国的首都是哪里？');
      await page.getByRole('button', { name: 'Write', exact: true }).click();
      await page
        .locator('article', { hasText: '中国的首都是北京。' })
        // Both may have the same answer; the last one stands first.
        .first()
        .getByText('ended by itself')
        .waitFor();
      await page.waitForFunction(`document.querySelector('#prompts').textContent > ${ended}`);
      expect(problems).toEqual([]);

      await page.screenshot({ path: 'test-results/token-stream.png' });
      await page.emulateMedia({ colorScheme: 'dark' });
      await page.screenshot({ path: 'test-results/token-stream-dark.png' });
    });
  });
});
