import { describe, expect, it, jest } from '@jest/globals';
import { Test } from '@nestjs/testing';
import {
  Batch,
  createServing,
  type ServingDefinition,
  ServingClosedError,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { doubled, doubledNumbers, goOn, numbers } from '../../fixtures/batching/doubling.js';
import { type Gate, useGates } from '../../fixtures/batching/gate.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, passTime, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';

const closed = { status: 'rejected', reason: expect.any(ServingClosedError) };
const answered = (...values: number[]) => ({
  status: 'fulfilled',
  value: doubledNumbers(...values),
});

describe('Shutdown, like Nx.Serving', () => {
  useVirtualTime();
  const gate = useGates();
  const serve = useServings();
  const hold = async (options: Partial<ServingDefinition>) => {
    const batches = new HeldFunction<never>();
    const definition = {
      name: 'held',
      model: { useFactory: batches.useFactory },
      batchSize: 2,
      batchTimeout: 100,
      ...options,
    };
    return { batches, serving: await serve(definition as ServingDefinition) };
  };

  it.each([
    ['a full batch that is queued', numbers(3, 4)],
    ['a row whose batch still grows', numbers(3)],
  ])(
    '[9.3] Without draining, %s gets the closed error at once, and running batches finish',
    async (_, second) => {
      const { serving, batches } = await hold({ shutdown: { drain: false } });
      const [running, waiting] = [serving.batchedRun(numbers(1, 2)), serving.batchedRun(second)];
      const rejected = jest.fn();
      waiting.catch(rejected);
      await turn();

      const closing = serving.close();
      await turn();
      expect(rejected).toHaveBeenCalledWith(expect.any(ServingClosedError));
      await goOn(batches);
      await closing;

      expect(await Promise.allSettled([running, waiting])).toEqual([answered(1, 2), closed]);
      expect(batches.batches).toEqual([]);
    },
  );

  it.each([
    ['a full batch that is queued', [3, 4]],
    ['a row whose batch still grows', [3]],
  ])('[9.3] With draining, %s runs after the running batches', async (_, second) => {
    const { serving, batches } = await hold({});
    const replies = Promise.allSettled([
      serving.batchedRun(numbers(1, 2)),
      serving.batchedRun(numbers(...second)),
    ]);
    await turn();

    const closing = serving.close();
    await turn();
    expect(batches.rows).toEqual([floats([2], [1, 2])]);
    await goOn(batches);
    expect(batches.rows).toEqual([floats([second.length], second)]);
    await goOn(batches);
    await closing;

    expect(await replies).toEqual([answered(1, 2), answered(...second)]);
  });

  it('[9.3] Without draining, a call that is partly running gets the closed error, and its output is discarded', async () => {
    const { serving, batches } = await hold({ shutdown: { drain: false } });
    const split = expect(serving.batchedRun(numbers(1, 2, 3))).rejects.toThrow(ServingClosedError);
    await turn();

    const closing = serving.close();
    await split;
    await goOn(batches);
    await closing;
    expect(batches.batches).toEqual([]);
  });

  it('[9.3] Shutdown ends at its limit, also when a batch does not', async () => {
    const { serving, batches } = await hold({ shutdown: { timeout: 1000 } });
    const [running, waiting] = [numbers(1, 2), numbers(3, 4)].map((rows) =>
      serving.batchedRun(rows),
    );
    await turn();
    const ended = jest.fn();
    const closing = serving.close().then(ended);
    const refused = [running, waiting].map((call) =>
      expect(call).rejects.toThrow(ServingClosedError),
    );
    await later(999);
    expect(ended).not.toHaveBeenCalled();
    await later(1);
    await Promise.all(refused);
    await passTime(closing);

    // A function cannot be stopped. Its output is dropped.
    await goOn(batches);
    expect(batches.batches).toEqual([]);
  });

  it('[9.3] Calls during shutdown are refused at once, by every method', async () => {
    const { serving, batches } = await hold({});
    const running = serving.batchedRun(numbers(1, 2));
    await turn();
    const closing = serving.close();

    expect(serving.state).toBe('closing');
    for (const call of [
      () => serving.batchedRun(numbers(9)),
      () => serving.run(numbers(9)),
      () => collect(serving.stream(numbers(9))),
      () => collect(serving.stream(numbers(9), { inline: true })),
      () => serving.batchedRun([numbers(9)]),
    ]) {
      await expect(call()).rejects.toThrow(ServingClosedError);
    }
    await goOn(batches);
    await closing;
    expect(await running).toEqual(answered(1, 2).value);
    expect(serving.state).toBe('closed');
  });

  it.each([
    ['a stream', false],
    ['an inline stream', true],
  ])('[8.2] [9.3] A call that was accepted before shutdown is finished: %s', async (_, inline) => {
    const { serving, batches } = await hold({ batchSize: 1 });
    const reading = collect(serving.stream(numbers(1, 2, 3, 4), { inline }));
    await turn();
    const ended = jest.fn();
    const closing = serving.close().then(ended);
    for (let batch = 0; batch < 4; batch++) {
      await turn();
      expect(ended).not.toHaveBeenCalled();
      await goOn(batches);
    }
    await closing;

    expect((await reading).map(({ output }) => output)).toEqual(
      [2, 4, 6, 8].map((value) => floats([1], [value])),
    );
  });

  it('[8.1] [9.3] A call with a sequence that was accepted before shutdown is finished', async () => {
    const { serving, batches } = await hold({ batchSize: 1 });
    const reply = serving.batchedRun([1, 2, 3, 4].map((value) => numbers(value)));
    await turn();
    const closing = serving.close();
    for (let batch = 0; batch < 4; batch++) {
      await turn();
      await goOn(batches);
    }
    await closing;

    expect(await reply).toEqual(answered(1, 2, 3, 4).value);
  });

  it('[8.1] [9.3] An endless sequence gets the closed error at the shutdown limit, and its source is closed', async () => {
    const serving = await serve({
      name: 'endless',
      model: { useFactory: () => doubled },
      shutdown: { timeout: 1000 },
    });
    const left = jest.fn();
    async function* endless(): AsyncGenerator<Batch, void> {
      try {
        for (;;) {
          yield numbers(1);
          await turn();
        }
      } finally {
        left();
      }
    }
    const failed = expect(serving.batchedRun(endless())).rejects.toThrow(ServingClosedError);
    await turn();
    const closing = serving.close();
    await later(1000);
    await Promise.all([closing, failed]);
    await turn();

    expect(left).toHaveBeenCalledTimes(1);
  });

  it('[5.3] [9.3] Shutdown waits for the running batch of a thread, which is answered', async () => {
    const serving = await serve<{ row: Gate['row'] }>({
      name: 'thread',
      model: { useFile: worker('gate') },
    });
    const held = gate();
    const running = serving.batchedRun(held.row);
    await held.entered();
    const ended = jest.fn();
    const closing = serving.close().then(ended);
    await turn();
    expect(ended).not.toHaveBeenCalled();

    held.open();
    expect((await running).row).toBeDefined();
    await closing;
    expect(ended).toHaveBeenCalledTimes(1);
  });

  it('[9.3] An application that closes waits for its servings', async () => {
    const batches = new HeldFunction<never>();
    const definition = { name: 'held', model: { useFactory: batches.useFactory } };
    const testing = await Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings: [definition] })],
    }).compile();
    const application = await testing.createNestApplication({ logger: false }).init();
    const reply = application.get(ServingService).batchedRun('held', numbers(1, 2));
    await turn();
    const ended = jest.fn();
    const closing = application.close().then(ended);
    await turn();
    expect(ended).not.toHaveBeenCalled();

    await goOn(batches);
    await closing;
    expect(await reply).toEqual(answered(1, 2).value);
  });

  it('[9.4] One of two servings with one name goes on when the other closes', async () => {
    const [first, second] = [1, 2].map(() =>
      createServing({ name: 'twin', model: { useFactory: () => doubled } }),
    );
    await Promise.all([first!.start(), second!.start()]);
    await first!.close();

    expect(await second!.batchedRun(numbers(1))).toEqual(answered(1).value);
    await second!.close();
  });
});
