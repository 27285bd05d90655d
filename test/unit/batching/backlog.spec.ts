import { describe, expect, it } from '@jest/globals';
import { Backlog } from '../../../lib/batching/backlog.js';
import { NamedRequest, type NamedRequestOptions, namesOf } from '../../fixtures/held-batcher.js';

const lane = { limits: { batchSize: 8, batchTimeout: 0 } };

describe('Backlog', () => {
  it('[4.6] [7.2] loses no row where so many before it are too late that the queue is swept meanwhile', () => {
    for (let late = 60; late < 140; late++) {
      const backlog = newBacklog();
      for (let i = 0; i < late; i++) {
        add(backlog, 'late', { deadline: 10 });
      }
      ['a', 'b'].forEach((name) => add(backlog, name, { deadline: 30 }));

      expect(namesOf(backlog.take(8, 20))).toBe('a0 b0');
      expect(backlog.size).toBe(0);
    }
  });

  it('[4.8] [8.3] gives a request that must run whole, and came when batches were larger, a batch of its own', () => {
    const backlog = newBacklog();
    add(backlog, 'a', { size: 1 });
    add(backlog, 'b', { size: 5, whole: true });
    add(backlog, 'c', { size: 4 });

    expect([1, 2, 3].map(() => namesOf(backlog.take(3, 0)))).toEqual(['a0', 'b0 b1 b2 b3 b4', 'c0 c1 c2']);
  });
});

function newBacklog(): Backlog<NamedRequest> {
  return new Backlog({ ageing: 1000, weights: new Map() });
}

function add(backlog: Backlog<NamedRequest>, name: string, options: Omit<NamedRequestOptions, 'lane'>): void {
  const request = new NamedRequest(name, { lane, ...options });
  request.queue = backlog;
  backlog.add({ request, offset: 0, count: request.size });
}
