import { expect, it } from '@jest/globals';
import { Injectable } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { Batched, asCaller, ServingModule, ServingService } from 'nestjs-serving';

@Injectable()
class Doubler {
  @Batched()
  double(numbers: number[]): (number | Error)[] {
    return numbers.map((n) => (n < 0 ? new RangeError(`${n} is negative`) : n * 2));
  }
}

it('[M6] [12.3] The service lists the counters of servings and @Batched() methods by name', async () => {
  const module = await Test.createTestingModule({
    imports: [
      ServingModule.forRoot({
        servings: [{ name: 'same', model: { useFactory: () => (rows: unknown) => rows } }],
      }),
    ],
    providers: [Doubler],
  }).compile();
  await module.init();
  const servings = module.get(ServingService);
  const doubler = asCaller(module.get(Doubler));

  await Promise.allSettled([
    doubler.double(1),
    doubler.double(-1),
    servings.batchedRun('same', 'a'),
  ]);

  const none = { failed: {}, failedBatches: 0, padding: 0 };
  expect([...servings.counters()]).toEqual([
    ['Doubler.double', { ...none, answered: 1, failed: { OTHER: 1 }, batches: 1, rows: 2 }],
    ['same', { ...none, answered: 1, batches: 1, rows: 1 }],
  ]);
  await module.close();
});
