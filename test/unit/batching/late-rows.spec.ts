import { describe, expect, it } from '@jest/globals';
import { PriorityQueue } from '../../../lib/core/batching/priority-queue.js';
import { DeadlineExceededError } from '../../../lib/core/errors.js';
import {
  NamedRequest,
  type NamedRequestOptions,
  namesOf,
} from '../../fixtures/batching/held-batcher.js';

const lane = { limits: { batchSize: 8, batchTimeout: 0 } };

describe('PriorityQueue: late rows', () => {
  it('[4.6] [7.2] No row in time is lost when the late rows before it make the queue sweep itself', () => {
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

  it('[4.8] [8.3] A whole request larger than the present batch size gets a batch of its own', () => {
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

  it('[7.2] [7.5] Rows that would be late after running are failed, and their places go to other rows', () => {
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

  it('[7.2] Rows that would be late are taken when there are no others, since the expected time may be wrong', () => {
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
