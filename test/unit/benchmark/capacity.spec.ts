import { expect, it } from '@jest/globals';
import { capacityOf } from '../../benchmark/scale/capacity.js';

it('The capacity of some cores is that of the web processes when one model process is enough', () => {
  expect(capacityOf({ web: 100, model: 10, partition: 10 }, 8)).toEqual({
    webs: 6,
    models: 1,
    rate: 60_000,
  });
});

it('The capacity of many cores needs as many model processes as the web processes keep busy', () => {
  const { webs, models, rate } = capacityOf({ web: 100, model: 20, partition: 5 }, 64);
  expect({ webs, models }).toEqual({ webs: 51, models: 10 });
  expect(rate).toBe(500_000);
});

it('A partition that is slower than the main thread of its process limits the capacity', () => {
  expect(capacityOf({ web: 100, model: 20, partition: 1000 }, 4).rate).toBe(2000);
});
