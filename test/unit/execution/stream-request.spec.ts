import { describe, expect, it } from '@jest/globals';
import { Batch, DONE, SlowConsumerError } from 'nestjs-serving';
import type { ServingLane } from '../../../lib/execution/lanes.js';
import { releaseOutput } from '../../../lib/execution/output.js';
import { ReplyRequest } from '../../../lib/execution/reply-request.js';
import { StreamRequest } from '../../../lib/execution/stream-request.js';

const lane: ServingLane = {
  key: 'default',
  origin: undefined,
  limits: { batchSize: 32, runSize: 32, batchTimeout: 0 },
};
const numbers = (count: number): Batch => Batch.stack(Array.from({ length: count }, (_, n) => n));

/**
 * What the request has said by now, with its rows as they would be handed out; `end` or the error
 * last.
 */
async function said(request: StreamRequest): Promise<unknown[]> {
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
  it('[8.2] says the outputs of its batches in the order of its rows, in whatever order they finish', async () => {
    const request = new StreamRequest(numbers(6), lane);

    request.answer(4, Batch.stack(['e', 'f']), 'third');
    request.answer(1, Batch.stack(['b', 'c', 'd']), 'second');
    expect(await said(request)).toEqual([]);
  });

  it('[8.2] says what it held back as soon as its turn has come', async () => {
    const request = new StreamRequest(numbers(6), lane);

    request.answer(4, Batch.stack(['e', 'f']), 'third');
    request.answer(1, Batch.stack(['b', 'c', 'd']), 'second');
    request.answer(0, Batch.stack(['a']), 'first');

    expect(await said(request)).toEqual([
      { offset: 0, rows: ['a'], metadata: 'first' },
      { offset: 1, rows: ['b', 'c', 'd'], metadata: 'second' },
      { offset: 4, rows: ['e', 'f'], metadata: 'third' },
      'end',
    ]);
    expect(request.isOver).toBe(true);
  });

  it('[8.4] says the steps of one batch when those of the batches before it are over', async () => {
    const request = new StreamRequest(numbers(3), lane);

    request.step(2, ['c1'], undefined);
    request.step(0, ['a1', 'b1'], 1);
    request.step(2, ['c2'], undefined);
    request.endSteps(2, 1);
    request.step(0, [DONE, 'b2'], 2);
    request.endSteps(0, 2);

    expect(await said(request)).toEqual([
      { offset: 0, rows: ['a1', 'b1'], metadata: 1 },
      { offset: 0, rows: [undefined, 'b2'], metadata: 2 },
      { offset: 2, rows: ['c1'], metadata: undefined },
      { offset: 2, rows: ['c2'], metadata: undefined },
      'end',
    ]);
  });

  it('[8.4] goes on with the next batch while its generator yields for others', async () => {
    const request = new StreamRequest(numbers(2), lane);

    request.step(1, ['b1'], undefined);
    request.step(0, ['a1'], undefined);
    request.step(0, [DONE], undefined);

    expect(await said(request)).toEqual([
      expect.objectContaining({ rows: ['a1'] }),
      expect.objectContaining({ rows: ['b1'] }),
    ]);
    expect([request.isWaiting(0), request.isWaiting(1), request.isOver]).toEqual([
      false,
      true,
      false,
    ]);
  });

  it('[8.4] says nothing more of rows that are over', async () => {
    const request = new StreamRequest(numbers(2), lane);

    request.step(0, ['a1', DONE], undefined);
    request.step(0, ['a2', 'b2'], undefined);
    request.step(0, [DONE, DONE], undefined);
    request.step(0, ['a3', 'b3'], undefined);

    expect(await said(request)).toEqual([
      { offset: 0, rows: ['a1', undefined], metadata: undefined },
      { offset: 0, rows: ['a2', undefined], metadata: undefined },
      'end',
    ]);
  });

  it('[8.4] ends without a word where its generator yields nothing', async () => {
    const request = new StreamRequest(numbers(2), lane);

    request.endSteps(0, 2);

    expect(await said(request)).toEqual(['end']);
  });

  it('[8.4] [6.2] fails with the error that stands for one of its rows, after what came before', async () => {
    const request = new StreamRequest(numbers(2), lane);
    const error = new RangeError('b is no number');

    request.step(0, ['a1', 'b1'], undefined);
    request.step(0, ['a2', error], undefined);
    request.step(0, ['a3', 'b3'], undefined);

    expect(await said(request)).toEqual([expect.objectContaining({ rows: ['a1', 'b1'] }), error]);
  });

  it('[8.4] is not failed by an error for a row that is over', async () => {
    const request = new StreamRequest(numbers(2), lane);

    request.step(0, ['a1', DONE], undefined);
    request.step(0, ['a2', new RangeError('b is no number')], undefined);
    request.endSteps(0, 2);

    expect(await said(request)).toHaveLength(3);
  });

  it('[8.3] says the values of hooks in their order, before its output', async () => {
    const request = new StreamRequest(numbers(2), lane, undefined, ['x', 'y']);

    request.hook('y', [1, 2]);
    request.hook('x', [3, 4]);
    request.hook('y', [5, 6]);
    request.answer(0, Batch.stack(['a', 'b']), undefined);
    request.hook('x', [7, 8]);

    expect(request.whole).toBe(true);
    expect(await said(request)).toEqual([
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
  ])('[8.2] fails when 1024 %s wait, and not before', async (_, say) => {
    const request = new StreamRequest(numbers(2), lane);

    for (let n = 0; n < 1024; n++) {
      say(request);
    }
    expect(request.isOver).toBe(false);
    say(request);

    expect(request.isOver).toBe(true);
    expect((await said(request)).at(-1)).toBeInstanceOf(SlowConsumerError);
  });

  it('[8.2] fails for what waits and not for what has been', async () => {
    const request = new StreamRequest(numbers(2), lane);

    for (let n = 0; n < 3000; n++) {
      request.step(1, ['b'], undefined);
      if (n % 1000 === 999) {
        request.step(0, [DONE], undefined);
        await said(request);
      }
    }

    expect(request.isOver).toBe(false);
  });

  it('[8.2] is never too slow for outputs, of which there is one for each of its rows at most', async () => {
    const request = new StreamRequest(numbers(2000), lane);

    for (let n = 0; n < 2000; n++) {
      request.answer(n, Batch.stack([n]), undefined);
    }

    expect(await said(request)).toHaveLength(2001);
  });
});

describe('ReplyRequest', () => {
  it('[8.4] collects the steps of each row, in the order of the rows', async () => {
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

  it('[8.4] has an empty list for a row without steps', async () => {
    const request = new ReplyRequest(numbers(2), lane);

    request.step(1, [DONE], undefined);
    request.endSteps(0, 1);

    expect(releaseOutput((await request.reply).rows)).toEqual([[], []]);
  });

  it('[8.4] loses no row where one batch was stepped and another was not', async () => {
    const request = new ReplyRequest(numbers(3), lane);

    request.answer(0, Batch.stack(['a', 'b']), undefined);
    request.step(2, ['c1'], undefined);
    request.endSteps(2, 1);

    expect(releaseOutput((await request.reply).rows)).toEqual(['a', 'b', ['c1']]);
  });
});
