import { describe, expect, it } from '@jest/globals';
import { Batch, DONE, SlowConsumerError } from 'nestjs-serving';
import type { ServingLane } from '../../../lib/core/execution/lanes.js';
import { releaseOutput, ReplyRequest } from '../../../lib/core/execution/request.js';
import { StreamRequest } from '../../../lib/core/execution/stream-request.js';

const lane: ServingLane = {
  key: 'default',
  origin: undefined,
  limits: { batchSize: 32, runSize: 32, batchTimeout: 0 },
};
const numbers = (count: number): Batch => Batch.stack(Array.from({ length: count }, (_, n) => n));

/**
 * The events of the request until now, with their rows as released, and at last `end` or the error.
 */
async function eventsOf(request: StreamRequest): Promise<unknown[]> {
  const events: unknown[] = [];
  const later = new Promise((resolve) => setImmediate(resolve, 'later'));
  for (;;) {
    const next = await Promise.race([request.events.next(), later]).catch(
      (error: unknown) => error,
    );
    if (next === 'later' || next instanceof Error) {
      return next === 'later' ? events : [...events, next];
    }
    const { done, value } = next as IteratorResult<
      StreamRequest['events'] extends AsyncIterator<infer T> ? T : never
    >;
    if (done) {
      return [...events, 'end'];
    }
    events.push('hook' in value ? value : { ...value, rows: releaseOutput(value.rows) });
  }
}

describe('StreamRequest', () => {
  it('[8.2] Outputs of later rows are held back until the earlier rows have finished', async () => {
    const request = new StreamRequest(numbers(6), lane);

    request.answer(4, Batch.stack(['e', 'f']), 'third');
    request.answer(1, Batch.stack(['b', 'c', 'd']), 'second');
    expect(await eventsOf(request)).toEqual([]);
  });

  it('[8.2] Outputs that were held back are emitted in row order as soon as the first rows finish', async () => {
    const request = new StreamRequest(numbers(6), lane);

    request.answer(4, Batch.stack(['e', 'f']), 'third');
    request.answer(1, Batch.stack(['b', 'c', 'd']), 'second');
    request.answer(0, Batch.stack(['a']), 'first');

    expect(await eventsOf(request)).toEqual([
      { offset: 0, rows: ['a'], metadata: 'first' },
      { offset: 1, rows: ['b', 'c', 'd'], metadata: 'second' },
      { offset: 4, rows: ['e', 'f'], metadata: 'third' },
      'end',
    ]);
    expect(request.isOver).toBe(true);
  });

  it('[8.4] The steps of a batch are emitted when the batches before it have ended', async () => {
    const request = new StreamRequest(numbers(3), lane);

    request.step(2, ['c1'], undefined);
    request.step(0, ['a1', 'b1'], 1);
    request.step(2, ['c2'], undefined);
    request.endSteps(2, 1);
    request.step(0, [DONE, 'b2'], 2);
    request.endSteps(0, 2);

    expect(await eventsOf(request)).toEqual([
      { offset: 0, rows: ['a1', 'b1'], metadata: 1 },
      { offset: 0, rows: [undefined, 'b2'], metadata: 2 },
      { offset: 2, rows: ['c1'], metadata: undefined },
      { offset: 2, rows: ['c2'], metadata: undefined },
      'end',
    ]);
  });

  it('[8.4] The next batch goes on when all rows of the one before have ended, although its generator still yields', async () => {
    const request = new StreamRequest(numbers(2), lane);

    request.step(1, ['b1'], undefined);
    request.step(0, ['a1'], undefined);
    request.step(0, [DONE], undefined);

    expect(await eventsOf(request)).toEqual([
      expect.objectContaining({ rows: ['a1'] }),
      expect.objectContaining({ rows: ['b1'] }),
    ]);
    expect([request.isWaiting(0), request.isWaiting(1), request.isOver]).toEqual([
      false,
      true,
      false,
    ]);
  });

  it('[8.4] Nothing more is emitted for rows that have ended', async () => {
    const request = new StreamRequest(numbers(2), lane);

    request.step(0, ['a1', DONE], undefined);
    request.step(0, ['a2', 'b2'], undefined);
    request.step(0, [DONE, DONE], undefined);
    request.step(0, ['a3', 'b3'], undefined);

    expect(await eventsOf(request)).toEqual([
      { offset: 0, rows: ['a1', undefined], metadata: undefined },
      { offset: 0, rows: ['a2', undefined], metadata: undefined },
      'end',
    ]);
  });

  it('[8.4] A request whose generator yields nothing ends without an event', async () => {
    const request = new StreamRequest(numbers(2), lane);

    request.endSteps(0, 2);

    expect(await eventsOf(request)).toEqual(['end']);
  });

  it('[8.4] [6.2] A request fails with the error in place of one of its rows, after the steps before it', async () => {
    const request = new StreamRequest(numbers(2), lane);
    const error = new RangeError('b is no number');

    request.step(0, ['a1', 'b1'], undefined);
    request.step(0, ['a2', error], undefined);
    request.step(0, ['a3', 'b3'], undefined);

    expect(await eventsOf(request)).toEqual([
      expect.objectContaining({ rows: ['a1', 'b1'] }),
      error,
    ]);
  });

  it('[8.4] An error for a row that has ended does not fail the request', async () => {
    const request = new StreamRequest(numbers(2), lane);

    request.step(0, ['a1', DONE], undefined);
    request.step(0, ['a2', new RangeError('b is no number')], undefined);
    request.endSteps(0, 2);

    expect(await eventsOf(request)).toHaveLength(3);
  });

  it('[8.3] Hook values are emitted in their order and before the output', async () => {
    const request = new StreamRequest(numbers(2), lane, undefined, ['x', 'y']);

    request.hook('y', [1, 2]);
    request.hook('x', [3, 4]);
    request.hook('y', [5, 6]);
    request.answer(0, Batch.stack(['a', 'b']), undefined);
    request.hook('x', [7, 8]);

    expect(request.whole).toBe(true);
    expect(await eventsOf(request)).toEqual([
      { hook: 'y', value: [1, 2] },
      { hook: 'x', value: [3, 4] },
      { hook: 'y', value: [5, 6] },
      { offset: 0, rows: ['a', 'b'], metadata: undefined },
      'end',
    ]);
  });

  it.each<[string, (request: StreamRequest) => void]>([
    ['steps', (request) => request.step(0, ['a'], undefined)],
    ['hooks', (request) => request.hook('x', ['a'])],
    ['steps of later rows', (request) => request.step(1, ['b'], undefined)],
  ])('[8.2] A request fails with more than 1024 unread %s', async (_, emit) => {
    const request = new StreamRequest(numbers(2), lane);

    for (let n = 0; n < 1024; n++) {
      emit(request);
    }
    expect(request.isOver).toBe(false);
    emit(request);

    expect(request.isOver).toBe(true);
    expect((await eventsOf(request)).at(-1)).toBeInstanceOf(SlowConsumerError);
  });

  it('[8.2] Only unread steps count towards the limit', async () => {
    const request = new StreamRequest(numbers(2), lane);

    for (let n = 0; n < 3000; n++) {
      request.step(1, ['b'], undefined);
      if (n % 1000 === 999) {
        request.step(0, [DONE], undefined);
        await eventsOf(request);
      }
    }

    expect(request.isOver).toBe(false);
  });

  it('[8.2] Outputs never make a request fail as too slow, since there is at most one per row', async () => {
    const request = new StreamRequest(numbers(2000), lane);

    for (let n = 0; n < 2000; n++) {
      request.answer(n, Batch.stack([n]), undefined);
    }

    expect(await eventsOf(request)).toHaveLength(2001);
  });
});

describe('ReplyRequest', () => {
  it('[8.4] A reply collects the steps of each row, in the order of the rows', async () => {
    const request = new ReplyRequest(numbers(3), lane);

    request.step(2, ['c1'], 'of the second batch');
    request.step(0, ['a1', 'b1'], 'of the first batch');
    request.step(0, [DONE, 'b2'], undefined);
    request.step(0, ['a3', 'b3'], undefined);
    request.step(2, ['c2'], undefined);
    request.endSteps(2, 1);
    request.endSteps(0, 2);

    const { rows, metadata } = await request.reply;
    expect(releaseOutput(rows)).toEqual([['a1'], ['b1', 'b2', 'b3'], ['c1', 'c2']]);
    expect(metadata).toEqual([
      { offset: 0, rows: 2, metadata: 'of the first batch' },
      { offset: 2, rows: 1, metadata: 'of the second batch' },
    ]);
  });

  it('[8.4] The reply for a row without steps is an empty list', async () => {
    const request = new ReplyRequest(numbers(2), lane);

    request.step(1, [DONE], undefined);
    request.endSteps(0, 1);

    expect(releaseOutput((await request.reply).rows)).toEqual([[], []]);
  });

  it('[8.4] A reply joins batches with steps and batches without', async () => {
    const request = new ReplyRequest(numbers(3), lane);

    request.answer(0, Batch.stack(['a', 'b']), undefined);
    request.step(2, ['c1'], undefined);
    request.endSteps(2, 1);

    expect(releaseOutput((await request.reply).rows)).toEqual(['a', 'b', ['c1']]);
  });
});
