import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { AppModule } from '../../../sample/01-digits/src/app.module.js';
import type { Prediction } from '../../../sample/01-digits/src/digits.serving.js';
import type { Match } from '../../../sample/01-digits/src/known-digits.js';
import type { Stats } from '../../../sample/01-digits/src/stats.service.js';
import { startSample } from '../../fixtures/http/sample-app.js';

interface Digit {
  readonly label: number;
  readonly image: readonly string[];
}

interface Reply<Body> {
  readonly status: number;
  readonly body: Body;
}

describe('The sample 01-digits', () => {
  let app: INestApplication;
  let url: string;
  let digits: Digit[];

  beforeEach(async () => {
    app = await startSample(AppModule);
    url = await app.getUrl();
    digits = await each(100, (index) => get<Digit>(`digits/${index}`));
  });

  afterEach(() => app.close());

  it('The digits of a hundred clients are read in few batches', async () => {
    const replies = await each(100, (index) => post<Prediction>('classify', digits[index]));

    const right = replies.filter(({ body }, index) => body.digit === digits[index]!.label);
    expect(right.length).toBeGreaterThan(90);
    const { batches, rows, meanFill } = await stats('digits');
    expect(rows).toBe(100);
    expect(batches).toBeLessThan(50);
    expect(meanFill).toBeCloseTo(rows / batches / 32);
  });

  it('Each client of a batch is answered as if it were alone', async () => {
    const together = await each(30, (index) => post<Prediction>('classify', digits[index]));

    for (const [index, { body }] of together.entries()) {
      const alone = await post<Prediction>('classify', digits[index]);
      expect(body.digit).toBe(alone.body.digit);
      expect(body.confidence).toBeCloseTo(alone.body.confidence, 5);
    }
  });

  it('The drawings of a hundred clients are compared in few runs of the method, and each finds itself', async () => {
    const replies = await each(100, (index) => post<Match>('compare', digits[index]));

    expect(replies.map(({ body }) => body.index)).toEqual(digits.map((_, index) => index));
    const { batches, rows } = await stats('DigitsController.compare');
    expect(rows).toBe(100);
    expect(batches).toBeLessThan(50);
  });

  it.each(['classify', 'compare'])(
    'Invalid drawings are refused, and the others of %s are served',
    async (path) => {
      const bad = [
        {},
        { image: 7 },
        { image: ['x'] },
        { image: [' '.repeat(29)] },
        { image: digits[0]!.image.concat('#') },
      ];
      const [refused, served] = await Promise.all([
        each(bad.length, (index) => post(path, bad[index])),
        each(20, (index) => post(path, digits[index])),
      ]);

      expect(refused.map(({ status }) => status)).toEqual(bad.map(() => 400));
      expect(served.map(({ status }) => status)).toEqual(served.map(() => 200));
    },
  );

  it('A drawing that cannot be compared is answered with an error of its own', async () => {
    const replies = await each(20, (index) =>
      post<Match>('compare', index % 5 ? digits[index] : { image: [] }),
    );

    for (const [index, { status, body }] of replies.entries()) {
      expect(status).toBe(index % 5 ? 200 : 422);
      expect(body).toMatchObject(
        index % 5 ? { index } : { message: 'No digit is similar to a blank image' },
      );
    }
  });

  it('A digit beyond the last is not found', async () => {
    expect((await fetch(`${url}/digits/300`)).status).toBe(404);
  });

  it('The health endpoint answers ok', async () => {
    expect(await get('health')).toEqual({ status: 'ok' });
  });

  async function stats(serving: string): Promise<Stats> {
    return (await get<Record<string, Stats>>('stats'))[serving]!;
  }

  async function get<Body>(path: string): Promise<Body> {
    const response = await fetch(`${url}/${path}`);
    return (await response.json()) as Body;
  }

  async function post<Body>(path: string, body: unknown): Promise<Reply<Body>> {
    const headers = { 'content-type': 'application/json' };
    const response = await fetch(`${url}/${path}`, {
      method: 'POST',
      headers,
      body: JSON.stringify(body),
    });
    return { status: response.status, body: (await response.json()) as Body };
  }
});

/** Sends `count` requests concurrently. */
function each<T>(count: number, ask: (index: number) => Promise<T>): Promise<T[]> {
  return Promise.all(Array.from({ length: count }, (_, index) => ask(index)));
}
