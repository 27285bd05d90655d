import { describe, expect, it } from '@jest/globals';
import { Injectable } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { Batch, Batched, asCaller, ServingModule } from 'nestjs-serving';
import { forkChild } from '../../fixtures/partitions/fork-child.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { worker } from '../../fixtures/partitions/worker.js';

@Injectable()
class Doubler {
  @Batched()
  double(numbers: number[]): Promise<number>[] {
    return numbers.map(async (n) => {
      if (n < 0) {
        throw new RangeError(`${n} is negative`);
      }
      return n * 2;
    });
  }
}

const outcomes = [
  { status: 'fulfilled', value: 2 },
  { status: 'rejected', reason: expect.objectContaining({ message: '-2 is negative' }) as unknown },
  { status: 'fulfilled', value: 6 },
];

describe.each(['thread', 'process'] as const)(
  'A module file that returns promises, in a %s',
  (isolation) => {
    const start = useServings();

    it('[W5] Each row gets the value of its own promise, and a rejection fails its own row alone', async () => {
      const serving = await start({
        name: 'promises',
        model: { useFile: worker('promises'), isolation },
      });

      const replies = await Promise.allSettled([1, -2, 3].map((row) => serving.batchedRun(row)));

      expect(replies).toEqual(outcomes);
      await expect(serving.batchedRun(Batch.stack([4, 5]))).resolves.toEqual([8, 10]);
    });
  },
);

it('[W5] Each caller of a @Batched() method gets the value of its own promise', async () => {
  const module = await Test.createTestingModule({
    imports: [ServingModule.forRoot({})],
    providers: [Doubler],
  }).compile();
  await module.init();
  const doubler = asCaller(module.get(Doubler));

  const replies = await Promise.allSettled([1, -2, 3].map((n) => doubler.double(n)));

  expect(replies).toEqual(outcomes);
  await module.close();
});

it('[W5] A promise that is rejected after its caller has left is handled', async () => {
  const { code, messages, stderr } = await forkChild('promised-rows', [], {
    NODE_OPTIONS: '--unhandled-rejections=strict',
  });

  expect({ code, messages, stderr }).toEqual({ code: 0, messages: [6], stderr: '' });
});
