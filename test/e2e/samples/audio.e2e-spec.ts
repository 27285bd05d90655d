import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { AppModule } from '../../../sample/03-audio-streams/src/app.module.js';
import { clipFile } from '../../../sample/03-audio-streams/src/speech-clip.js';
import type { Stats } from '../../../sample/03-audio-streams/src/stats.service.js';
import type { StreamView } from '../../../sample/03-audio-streams/src/streams.service.js';
import { expectToFit } from './expect-to-fit.js';
import { describeInBrowser } from '../../fixtures/http/describe-in-browser.js';
import { startSample } from '../../fixtures/http/sample-app.js';

interface Detection {
  readonly probabilities: readonly number[];
  readonly timeline: string;
}

interface Reply<Body> {
  readonly status: number;
  readonly body: Body;
}

/** The microphone of the browser plays the clip. */
const microphone = [
  '--use-fake-ui-for-media-stream',
  '--use-fake-device-for-media-stream',
  `--use-file-for-fake-audio-capture=${fileURLToPath(clipFile)}`,
];

/** Bytes and seconds of a chunk. */
const chunkBytes = 1024;
const chunkTime = 0.032;

describe('The sample 03-audio-streams', () => {
  const apps: INestApplication[] = [];
  let url: string;
  let clip: Buffer;

  beforeAll(async () => {
    clip = (await readFile(clipFile)).subarray(44);
    const app = await listen();
    url = await app.getUrl();
  });

  // Also after failed tests: an open event stream of a client would keep the application running.
  afterAll(() => Promise.all(apps.map((each) => each.close())));

  it('The timeline has speech where the clip has speech, and silence between sentences', async () => {
    const { body } = await send(await open(), clip);
    const sentences = await readLabels();

    expect(body.timeline).toHaveLength(Math.floor(clip.length / chunkBytes));
    for (const [index, { start, end, text }] of sentences.entries()) {
      const speech = between(body.timeline, start, end);
      // Speakers pause at a comma, too.
      expect([text, speech.replaceAll('_', '').length > speech.length * 0.8]).toEqual([text, true]);
      // The model detects the end of a sentence with a delay.
      const pause = between(body.timeline, sentences[index - 1]?.end ?? 0, start);
      expect(pause.slice(index === 0 ? 0 : 5)).toMatch(/^_{10,}$/);
    }
  });

  it('The answers do not depend on how a stream is cut into pieces', async () => {
    const whole = await send(await open(), clip.subarray(0, 40 * chunkBytes));
    const id = await open();
    const answers: number[] = [];
    for (
      let start = 0, length = 2;
      start < 40 * chunkBytes;
      start += length, length = ((length * 7) % 6000) + 2
    ) {
      const { body } = await send(
        id,
        clip.subarray(start, Math.min(start + length, 40 * chunkBytes)),
      );
      answers.push(...body.probabilities);
    }

    expect(answers).toEqual(whole.body.probabilities);
  });

  it('[1.8] [4.6] Each of many streams is answered as if it were alone although they share batches', async () => {
    // Each stream begins elsewhere in the clip, so that no two have the same state.
    const sounds = Array.from({ length: 24 }, (_, index) =>
      clip.subarray(index * 2 * chunkBytes, (index * 2 + 60) * chunkBytes),
    );
    const alone: (readonly number[])[] = [];
    for (const sound of sounds.slice(0, 6)) {
      alone.push(await hearAll(sound));
    }

    const before = await stats();
    const together = await Promise.all(sounds.map(hearAll));
    const after = await stats();

    expect(together.slice(0, 6)).toEqual(alone);
    expect(new Set(together.map((probabilities) => probabilities.join())).size).toBe(24);
    expect(after.rows - before.rows).toBe(24 * 60);
    expect(after.batches - before.batches).toBeLessThan((24 * 60) / 4);
  });

  it('One stream goes on while another is refused', async () => {
    const id = await open();
    const [refused, accepted] = await Promise.all([
      send(await open(), clip.subarray(0, 1025)),
      send(id, clip.subarray(0, 2048)),
    ]);

    expect(refused).toMatchObject({
      status: 400,
      body: { message: '1025 bytes are no whole number of 16-bit samples' },
    });
    expect(accepted).toMatchObject({ status: 200, body: { timeline: '__' } });
  });

  it('A piece out of order is refused, and accepted in its turn', async () => {
    const id = await open();
    const [first, second] = [
      clip.subarray(0, chunkBytes),
      clip.subarray(chunkBytes, 2 * chunkBytes),
    ];

    const early = await send(id, second, '?position=512');
    expect(early).toMatchObject({
      status: 409,
      body: { message: 'The stream is at sample 0, and this piece begins at 512' },
    });
    const answers = [await send(id, first, '?position=0'), await send(id, second, '?position=512')];
    const { body } = await send(await open(), clip.subarray(0, 2 * chunkBytes));
    expect(answers.flatMap((answer) => answer.body.probabilities)).toEqual(body.probabilities);
    expect(await send(id, first, '?position=0')).toMatchObject({ status: 409 });
    expect(await send(id, first, '?position=x')).toMatchObject({ status: 400 });
  });

  it('A stream that was never opened or has ended is not found', async () => {
    const id = await open();
    expect((await request('DELETE', `streams/${id}`)).status).toBe(204);

    for (const unknown of [id, 'nobody']) {
      const message = `There is no stream ${unknown}: it was never opened, or has ended`;
      expect(await send(unknown, clip)).toMatchObject({ status: 404, body: { message } });
      expect(await request('DELETE', `streams/${unknown}`)).toMatchObject({
        status: 404,
        body: { message },
      });
    }
  });

  it('Invalid or oversized sound is refused', async () => {
    const id = await open();
    const path = `streams/${id}/chunks`;

    expect(await request('POST', path, '{}', 'application/json')).toMatchObject({ status: 415 });
    expect(await request('POST', path)).toMatchObject({ status: 415 });
    expect(await send(id, Buffer.alloc(2_000_000))).toMatchObject({ status: 413 });
    expect(await send(id, Buffer.alloc(0))).toEqual({
      status: 200,
      body: { probabilities: [], timeline: '' },
    });
    expect(
      await request('POST', 'streams', JSON.stringify({ name: 7 }), 'application/json'),
    ).toMatchObject({ status: 400 });
    const many = JSON.stringify({ streams: 1000, speed: 1 });
    expect(await request('POST', 'simulation', many, 'application/json')).toMatchObject({
      status: 400,
    });
  });

  it('Events are sent while streams are active, and end with the application', async () => {
    const other = await listen();
    const at = await other.getUrl();
    // A kept-alive connection would keep the server for another five seconds.
    const response = await fetch(`${at}/streams/events`, { headers: { connection: 'close' } });
    const views = viewsOf(response);
    const { id } = (await (await fetch(`${at}/streams`, { method: 'POST' })).json()) as {
      id: string;
    };
    const headers = { 'content-type': 'application/octet-stream' };
    const body = new Uint8Array(clip.subarray(0, 32 * chunkBytes));
    const { status } = await fetch(`${at}/streams/${id}/chunks`, { method: 'POST', headers, body });
    expect(status).toBe(200);

    const view = {
      id,
      name: id.slice(0, 8),
      chunks: 32,
      timeline: expect.stringMatching(/^_{5,}#{5,}$/),
    };
    let first = await views.next();
    while (first.value?.chunks === 0) {
      first = await views.next();
    }
    expect(first.value).toEqual({ ...view, ended: false });
    const [last] = await Promise.all([views.next(), other.close()]);
    expect(last.value).toEqual({ ...view, ended: true });
    expect((await views.next()).done).toBe(true);
  });

  describeInBrowser((openPage) => {
    it.each(['light', 'dark'] as const)(
      'The page shows callers and the microphone in %s colours',
      async (colorScheme) => {
        // An application of its own without streams of other tests.
        const other = await listen();
        const { page, problems } = await openPage(await other.getUrl(), {
          viewport: { width: 1280, height: 860 },
          colorScheme,
        });

        await page.getByRole('button', { name: 'Start callers' }).click();
        await page.getByRole('button', { name: 'Use the microphone' }).click();
        await page.waitForFunction(`(() => {
        const timelines = [...document.querySelectorAll('#streams .timeline')].map(({ textContent }) => textContent);
        return timelines.length === 25 && timelines.every((timeline) => /#{5,}/.test(timeline) && /_{5,}/.test(timeline));
      })()`);
        expect(await page.locator('#open').textContent()).toBe('25');
        await page.waitForFunction(`document.querySelectorAll('#bars i').length > 50`);
        expect(await page.locator('#fill').textContent()).toMatch(/^([5-9]|[1-9]\d) %$/);
        await page.screenshot({ path: `test-results/audio-streams-${colorScheme}.png` });
        await expectToFit(page);

        await page.getByRole('button', { name: 'Stop', exact: true }).click();
        await page.getByRole('button', { name: 'Stop the microphone' }).click();
        await page.waitForFunction(`document.querySelectorAll('#streams li').length === 0`);
        expect(await page.locator('#problem').textContent()).toBe('');
        expect(problems).toEqual([]);
        await page.close();
        await other.close();
      },
    );
  }, microphone);

  async function listen(): Promise<INestApplication> {
    const app = await startSample(AppModule);
    apps.push(app);
    return app;
  }

  async function open(): Promise<string> {
    const { body } = await request<{ id: string }>('POST', 'streams');
    return body.id;
  }

  function send(id: string, pcm: Uint8Array, query = ''): Promise<Reply<Detection>> {
    return request<Detection>(
      'POST',
      `streams/${id}/chunks${query}`,
      new Uint8Array(pcm),
      'application/octet-stream',
    );
  }

  /** The probabilities of a stream that sends five chunks at a time. */
  async function hearAll(sound: Uint8Array): Promise<readonly number[]> {
    const id = await open();
    const probabilities: number[] = [];
    for (let start = 0; start < sound.length; start += 5 * chunkBytes) {
      const { body } = await send(id, sound.subarray(start, start + 5 * chunkBytes));
      probabilities.push(...body.probabilities);
    }
    return probabilities;
  }

  async function stats(): Promise<Stats> {
    return (await request<Stats>('GET', 'stats')).body;
  }

  async function request<Body>(
    method: string,
    path: string,
    body?: string | Uint8Array<ArrayBuffer>,
    type?: string,
  ): Promise<Reply<Body>> {
    const headers: Record<string, string> = type ? { 'content-type': type } : {};
    const response = await fetch(`${url}/${path}`, {
      method,
      headers,
      ...(body === undefined ? {} : { body }),
    });
    const text = await response.text();
    return { status: response.status, body: (text ? JSON.parse(text) : undefined) as Body };
  }
});

/** The views of streams in the event stream, as they arrive. */
async function* viewsOf(response: Response): AsyncGenerator<StreamView> {
  let text = '';
  for await (const part of response.body!.pipeThrough(new TextDecoderStream())) {
    const events = (text + part).split('\n\n');
    text = events.pop()!;
    for (const event of events.filter((lines) => lines.includes('event: streams'))) {
      yield* JSON.parse(event.slice(event.indexOf('data: ') + 6)) as StreamView[];
    }
  }
}

/** The times of speech in the clip in seconds, from the script that made it. */
async function readLabels() {
  const labels = await readFile(new URL('labels.txt', clipFile), 'utf8');
  return labels
    .trim()
    .split('\n')
    .map((line) => {
      const [start, end, text] = line.split('\t');
      return { start: Number(start), end: Number(end), text };
    });
}

/** The marks of the chunks that lie completely between two moments. */
function between(timeline: string, start: number, end: number): string {
  return timeline.slice(Math.ceil(start / chunkTime), Math.floor(end / chunkTime));
}
