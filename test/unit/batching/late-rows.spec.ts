import { describe, expect, it } from '@jest/globals';
import { PriorityQueue } from '../../../lib/batching/priority-queue.js';
import { DeadlineExceededError } from '../../../lib/errors.js';
import {
  NamedRequest,
  type NamedRequestOptions,
  namesOf,
} from '../../fixtures/batching/held-batcher.js';

const lane = { limits: { batchSize: 8, batchTimeout: 0 } };

describe('Backlog, of rows that would be late,', () => {
  it('[4.6] [7.2] loses no row where so many before it are too late that the queue is swept meanwhile', () => {
    for (let late = 60; late < 140; late++) {
      const backlog = newBacklog();
      for (let i = 0; i < late; i++) {
        add(backlog, 'late', { deadline: 10 });
      }
      ['a', 'b'].forEach((name) => add(backlog, name, { deadline: 30 }));

      expect(namesOf(backlog.take(8, 20, 20))).toBe('a0 b0');
      expect(backlog.size).toBe(0);
    }
  });

  it('[4.8] [8.3] gives a request that must run whole, and came when batches were larger, a batch of its own', () => {
    const backlog = newBacklog();
    add(backlog, 'a', { size: 1 });
    const b = add(backlog, 'b', { size: 5, whole: true }, 3);
    backlog.add({ request: b, offset: 3, count: 2 });
    add(backlog, 'c', { size: 4 });

    expect([1, 2, 3].map(() => namesOf(backlog.take(3, 0, 0)))).toEqual([
      'a0',
      'b0 b1 b2 b3 b4',
      'c0 c1 c2',
    ]);
  });

  it('[7.2] [7.5] gives the places of rows that would be late when they have run to others, and fails them', () => {
    const backlog = newBacklog();
    const late = [
      add(backlog, 'a', { deadline: 40 }),
      add(backlog, 'b', { deadline: 50, size: 2, priority: 1 }),
    ];
    ['c', 'd'].forEach((name) => add(backlog, name, { deadline: 51 }));

    expect(namesOf(backlog.take(1, 20, 50))).toBe('c0');
    expect(late.map(({ error }) => error)).toEqual([
      expect.any(DeadlineExceededError),
      expect.any(DeadlineExceededError),
    ]);
    expect(backlog.size).toBe(1);
  });

  it('[7.2] takes rows that would be late where there are no others: nobody knows for sure how long they take', () => {
    const backlog = newBacklog();
    add(backlog, 'a', { deadline: 20 });
    ['b', 'c'].forEach((name) => add(backlog, name, { deadline: 40 }));
    add(backlog, 'd', { deadline: 1000 }).leave();

    expect(namesOf(backlog.take(8, 20, 50))).toBe('b0 c0');
    expect(backlog.size).toBe(0);
  });
});

function newBacklog(): PriorityQueue<NamedRequest> {
  return new PriorityQueue({ ageing: 1000, weights: new Map() });
}

function add(
  backlog: PriorityQueue<NamedRequest>,
  name: string,
  options: Omit<NamedRequestOptions, 'lane'>,
  count = options.size ?? 1,
): NamedRequest {
  const request = new NamedRequest(name, { lane, ...options });
  request.queue = backlog;
  backlog.add({ request, offset: 0, count });
  return request;
}
