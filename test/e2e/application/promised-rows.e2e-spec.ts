import { describe, expect, it } from '@jest/globals';
import { Injectable } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  Batch,
  Batched,
  asCaller,
  InvalidInputError,
  InvalidServingError,
  ServingModule,
} from 'nestjs-serving';
import { iterated } from '../../fixtures/async/streams.js';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
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

/** A query, as database clients make them: it runs when it is awaited, and is no Promise. */
const query = <Value>(value: Value): PromiseLike<Value> => {
  const rows = Promise.resolve(value);
  // oxlint-disable-next-line unicorn/no-thenable -- That is what a query is.
  return { then: (...callbacks) => rows.then(...callbacks) };
};

const late = async (): Promise<never> => {
  throw new Error('late');
};

describe('A promise in an unexpected place', () => {
  const start = useServings();
  const double = { useFactory: () => (rows: number[]) => rows.map((row) => row * 2) };

  it('[FU72] postprocess may return a query, for a stream as for a reply', async () => {
    const serving = await start({
      name: 'queried',
      model: double,
      postprocess: (output) => query(`row ${String(output)}`) as Promise<string>,
    });

    await expect(serving.batchedRun(1)).resolves.toBe('row 2');
    await expect(serving.run(1)).resolves.toBe('row 2');
    const [event] = await iterated(serving.stream(1));
    expect(event).toHaveProperty('output', 'row 2');
  });

  it('[FU73] A promise as the input of a call is refused', async () => {
    const serving = await start({ name: 'doubling', model: double });
    const message =
      /^Serving "doubling" was given (a promise|\{ then: \[Function: then\] \}) as its input; await it$/;

    for (const input of [Promise.resolve(1), query(1)] as unknown as number[]) {
      await expect(serving.batchedRun(input)).rejects.toBeInstanceOf(InvalidInputError);
      await expect(serving.batchedRun(input)).rejects.toThrow(message);
      await expect(serving.run(input)).rejects.toThrow(message);
      await expect(iterated(serving.stream(input))).rejects.toThrow(message);
    }
  });

  it('[FU73] A promise as the batch of preprocess is refused', async () => {
    const serving = await start({
      name: 'doubling',
      model: double,
      preprocess: (input: number) => ({ batch: Promise.resolve(input) as unknown as number }),
    });

    await expect(serving.batchedRun(1)).rejects.toThrow(
      new InvalidServingError(
        'Serving "doubling": preprocess gave a promise as its batch; await it',
      ),
    );
  });

  it('[FU74] A promise that is refused rejects without ending the process', async () => {
    const strays: unknown[] = [];
    const stray = (error: unknown): unknown => strays.push(error);
    process.on('unhandledRejection', stray);
    const wrong: Partial<FunctionServingDefinition>[] = [
      { preprocess: () => ({ batch: late() }) },
      { postprocess: (output) => output, postprocessStream: late as never },
      { queue: { tenant: late as never } },
      { queue: { cost: late as never, maxCost: 10 } },
      { batchSize: { cost: { of: late as never, most: 10 } } },
      { deduplication: { singleFlight: true, key: late as never } },
    ];

    for (const options of wrong) {
      const serving = await start({ name: 'late', model: double, ...options });
      const call = options.postprocessStream ? iterated(serving.stream(1)) : serving.batchedRun(1);
      await expect(call).rejects.toThrow('a promise');
    }
    const serving = await start({ name: 'late', model: double });
    await expect(serving.batchedRun(late() as never)).rejects.toThrow('a promise');
    await new Promise((resolve) => setImmediate(resolve));
    process.off('unhandledRejection', stray);

    expect(strays).toEqual([]);
  });
});
