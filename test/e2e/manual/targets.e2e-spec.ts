// #region imports
import { defineServing, ServingService, Tensor } from 'nestjs-serving';
// #endregion
import { describe, expect, it } from '@jest/globals';
import { Controller, Get } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  type BatchEndEvent,
  type CallEndEvent,
  createServing,
  ServingModule,
  type ServingOptions,
} from 'nestjs-serving';
import { slowModel } from '../../fixtures/models/models.js';
import {
  describeOnPlatforms,
  type Listen,
  type Reply,
} from '../../fixtures/partitions/platforms.js';
import { inFolder } from '../../fixtures/serving/in-folder.js';

inFolder('sample/01-digits/model');

// #region definition
export const digits = defineServing({
  name: 'digits',
  model: 'digits.onnx',
  batchSize: { latencyTarget: 50 }, // Milliseconds in which 99 of 100 calls are to be answered.
  // The warm-up measures how long batches take, so that the target holds from the first call on.
  warmUp: [new Tensor('float32', new Float32Array(784), [1, 784])],
});
// #endregion

describe('The manual on targets', () => {
  it('[15.4] [15.6] Batches report their expected time, and the handle its target, from the first call on', async () => {
    const module = await Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings: [digits] })],
    }).compile();
    await module.init();
    const servings = module.get(ServingService);
    const lines: string[] = [];
    const log = (line: string): unknown => lines.push(line);
    // #region read
    servings.eventsOf('batch:end').subscribe(({ rows, batchSize, reason, expected, runTime }) => {
      log(`${rows} of ${batchSize} rows (${reason}): expected ${expected} ms, ran ${runTime} ms`);
    });
    for (const { key, latencyTarget, batchSize, overrun } of servings.get(digits).targets()) {
      log(`${key}: ${latencyTarget} ms, batches of ${batchSize} rows, runs up to ${overrun} x`);
    }
    // #endregion
    await servings.batchedRun(digits, new Tensor('float32', new Float32Array(784), [1, 784]));

    expect(lines).toEqual([
      expect.stringMatching(/^default: 50 ms, batches of \d+ rows, runs up to [\d.]+ x$/),
      expect.stringMatching(/^1 of \d+ rows \(idle\): expected [\d.e-]+ ms, ran [\d.]+ ms$/),
    ]);
    await module.close();
  });
});

const width = 512;
const batchSize = 32;
const calls = 200;
const rowsPerCall = 16;
const rows = (count: number): Tensor =>
  new Tensor('float32', new Float32Array(count * width), [count, width]);
const slow = { name: 'slow', model: slowModel(100), batchSize, warmUp: [rows(1)] };

@Controller()
class SlowController {
  constructor(private readonly servings: ServingService) {}

  @Get('slow')
  async slow(): Promise<string> {
    await this.servings.batchedRun('slow', rows(rowsPerCall));
    return 'done';
  }
}

/** Milliseconds of a full batch in the thread of the model, as the warm-up has measured them. */
async function batchTime(): Promise<number> {
  const serving = createServing({ ...slow, batchSize: { latencyTarget: 600_000 } });
  await serving.start();
  await serving.batchedRun(rows(1));
  const [target] = serving.targets();
  await serving.close();
  return target!.expected!;
}

interface Rush {
  readonly replies: readonly Reply[];
  readonly batches: readonly BatchEndEvent[];
  /** Milliseconds from the queue to the answer, of each answered call. */
  readonly times: readonly number[];
  readonly counters: unknown;
}

/** Makes all calls at once. */
async function rush(listen: Listen, options: Pick<ServingOptions, 'batchSize'>): Promise<Rush> {
  const site = await listen({
    imports: [ServingModule.forRoot({ servings: [{ ...slow, ...options }] })],
    controllers: [SlowController],
  });
  const servings = site.app.get(ServingService);
  const batches: BatchEndEvent[] = [];
  const ends: CallEndEvent[] = [];
  servings.eventsOf('batch:end').subscribe((event) => batches.push(event));
  servings.eventsOf('call:end').subscribe((event) => ends.push(event));
  const replies = await Promise.all(Array.from({ length: calls }, () => site.get('/slow')));
  const times = ends.flatMap(({ error, waiting, running }) => (error ? [] : [waiting + running]));
  return { replies, batches, times, counters: servings.counters().get('slow') };
}

describeOnPlatforms('A model in a thread with a latency target', (listen) => {
  it('[15.1] [15.2] [15.4] answers a rush over HTTP in time, or with 503 and Retry-After', async () => {
    const latencyTarget = 4 * (await batchTime());
    const partInTime = (times: readonly number[]): number =>
      times.filter((time) => time <= latencyTarget).length / times.length;

    const { replies, batches, times, counters } = await rush(listen, {
      batchSize: { latencyTarget },
    });
    const control = await rush(listen, {});

    const refused = replies.filter(({ status }) => status === 503);
    const answered = replies.filter(({ status }) => status === 200);
    expect(answered.length + refused.length).toBe(calls);
    expect(refused.length).toBeGreaterThan(0);
    expect(refused.map(({ headers }) => headers.get('retry-after'))).toEqual(
      refused.map(() => expect.stringMatching(/^[1-9]\d*$/)),
    );
    expect(counters).toMatchObject({
      answered: answered.length,
      failed: { SERVING_OVERLOADED: refused.length },
    });
    expect(batches.every(({ expected }) => expected! > 0)).toBe(true);
    expect(batches.reduce((sum, batch) => sum + batch.rows, 0)).toBe(rowsPerCall * answered.length);
    // Without a target all calls are answered, and most of them late. How many are in time with one
    // depends on what else keeps the cores busy: here are far fewer than 99 of 100, and maybe none.
    expect(control.times).toHaveLength(calls);
    expect(partInTime(times)).toBeGreaterThanOrEqual(partInTime(control.times));
  });
});
