import { describe, expect, it } from '@jest/globals';
import { Backlog } from '../../../lib/batching/backlog.js';
import { NamedRequest, namesOf } from '../../fixtures/held-batcher.js';

const lane = { limits: { batchSize: 8, batchTimeout: 0 } };

describe('Backlog', () => {
  it('[4.6] [7.2] loses no row where so many before it are too late that the queue is swept meanwhile', () => {
    for (let late = 60; late < 140; late++) {
      const backlog = new Backlog<NamedRequest>({ ageing: 1000, weights: new Map() });
      const add = (name: string, deadline: number): void => {
        const request = new NamedRequest(name, { lane, deadline });
        request.queue = backlog;
        backlog.add({ request, offset: 0, count: 1 });
      };
      for (let i = 0; i < late; i++) {
        add('late', 10);
      }
      ['a', 'b'].forEach((name) => add(name, 30));

      expect(namesOf(backlog.take(8, 20))).toBe('a0 b0');
      expect(backlog.size).toBe(0);
    }
  });
});
