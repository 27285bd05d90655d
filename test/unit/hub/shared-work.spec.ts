import { expect, it } from '@jest/globals';
import { SharedWork } from '../../../lib/extensions/hub/fetch-model.js';

/** Work that ends when the test says so, or with the reason of its signal. */
function held() {
  const signals: AbortSignal[] = [];
  const ends: ((value: string) => void)[] = [];
  const work = (signal: AbortSignal): Promise<string> =>
    new Promise((resolve, reject) => {
      signals.push(signal);
      ends.push(resolve);
      signal.addEventListener('abort', () => reject(signal.reason as Error));
    });
  return { work, signals, ends };
}

it('[1.10] Callers of one key share the work, and later ones start it again', async () => {
  const shared = new SharedWork<string>();
  const { work, ends } = held();
  const { signal } = new AbortController();
  const both = Promise.all([shared.join('a', signal, work), shared.join('a', signal, work)]);
  ends[0]!('done');

  expect(await both).toEqual(['done', 'done']);
  const again = shared.join('a', signal, work);
  ends[1]!('again');
  expect(await again).toBe('again');
});

it('[1.10] A caller that leaves gets the reason, and the others the result', async () => {
  const shared = new SharedWork<string>();
  const { work, signals, ends } = held();
  const leaving = new AbortController();
  const left = shared.join('a', leaving.signal, work);
  const stayed = shared.join('a', new AbortController().signal, work);
  leaving.abort(new Error('closed'));

  await expect(left).rejects.toThrow('closed');
  expect(signals[0]!.aborted).toBe(false);
  ends[0]!('done');
  expect(await stayed).toBe('done');
});

it('[1.10] The work is aborted once all callers have left, and a new caller starts it again', async () => {
  const shared = new SharedWork<string>();
  const { work, signals, ends } = held();
  const leaving = new AbortController();
  const left = [1, 2].map(() => shared.join('a', leaving.signal, work));
  leaving.abort(new Error('closed'));
  const next = shared.join('a', new AbortController().signal, work);

  const outcomes = await Promise.allSettled(left);
  expect(outcomes.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
  expect(signals.map(({ aborted }) => aborted)).toEqual([true, false]);
  ends[1]!('next');
  expect(await next).toBe('next');
});

it('[1.10] A failure is not kept', async () => {
  const shared = new SharedWork<string>();
  const { signal } = new AbortController();

  await expect(shared.join('a', signal, () => Promise.reject(new Error('cut')))).rejects.toThrow(
    'cut',
  );
  expect(await shared.join('a', signal, async () => 'done')).toBe('done');
});
