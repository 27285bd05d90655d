import { describe, expect, it, jest } from '@jest/globals';
import {
  Batch,
  BatchFailedError,
  type CallEndEvent,
  createServing,
  DeadlineExceededError,
  InvalidInputError,
  InvalidOutputError,
  InvalidServingError,
  type LocalServing,
  OverloadedError,
  type ServingDefinition,
  type Tensor,
} from 'nestjs-serving';
import { HeldFunction } from '../../../fixtures/batching/held-function.js';
import { floats } from '../../../fixtures/values/tensors.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';
import { later, turn, useVirtualTime } from '../../../fixtures/async/virtual-time.js';

const reason = new Error('the client has left');

/** Lets batches that follow each other run. */
async function laterBySteps(milliseconds: number): Promise<void> {
  for (let passed = 0; passed < milliseconds; passed += 10) {
    await later(10);
  }
}

describe('Calls with single flight', () => {
  useVirtualTime();
  const start = useServings();

  async function held(
    options: Partial<ServingDefinition> = {},
  ): Promise<[LocalServing, HeldFunction<unknown>]> {
    const batches = new HeldFunction<unknown>();
    const serving = await start<unknown>({
      name: 'held',
      deduplication: { singleFlight: true },
      model: { useFactory: batches.useFactory },
      ...options,
    });
    return [serving, batches];
  }

  it('Equal calls run once while one is in progress, and again after its reply', async () => {
    const [serving, batches] = await held();
    const replies = [
      { text: 'a', n: 1 },
      { n: 1, text: 'a' },
      { text: 'b', n: 1 },
    ].map((input) => serving.batchedRun(input));
    await turn();
    replies.push(serving.batchedRun({ text: 'a', n: 1 }));
    await turn();

    expect(batches.rows).toEqual([[{ text: 'a', n: 1 }, { text: 'b', n: 1 }]]); // prettier-ignore
    batches.next().finish(['A', 'B']);
    expect(await Promise.all(replies)).toEqual(['A', 'A', 'B', 'A']);

    const second = serving.batchedRun({ text: 'a', n: 1 });
    await turn();
    expect(batches.rows).toEqual([[{ text: 'a', n: 1 }]]);
    batches.next().finish(['again']);
    expect(await second).toBe('again');
  });

  it('Equal calls run separately when single flight is off, which is the default', async () => {
    const [serving, batches] = await held({ deduplication: { singleFlight: undefined } });
    const replies = ['a', 'a'].map((input) => serving.batchedRun(input));
    await turn();
    expect(batches.rows).toEqual([['a', 'a']]);
    batches.next().finish([1, 2]);
    expect(await Promise.all(replies)).toEqual([1, 2]);
  });

  it('The key function decides which calls are equal, and undefined shares with none', async () => {
    const key = jest.fn((input: unknown) => (input as { id?: string }).id);
    const [serving, batches] = await held({ deduplication: { singleFlight: true, key } });
    const inputs = [{ id: 'x', of: 1 }, { id: 'x', of: 2 }, { of: 3 }, { of: 3 }];
    const replies = inputs.map((input) => serving.batchedRun(input));
    await turn();
    expect(key).toHaveBeenCalledTimes(4);
    expect(batches.rows).toEqual([[inputs[0], inputs[2], inputs[3]]]);
    batches.next().finish([1, 2, 3]);
    expect(await Promise.all(replies)).toEqual([1, 1, 2, 3]);
  });

  it('[W7] Each call is preprocessed and postprocessed once, with an info of its own', async () => {
    const preprocess = jest.fn((text: unknown) => ({ batch: text, info: { ids: [1, 2, 3] } }));
    const postprocess = jest.fn((output: unknown, { info }: { info: { ids: number[] } }) => [
      output,
      info.ids.shift(),
    ]);
    const [serving, batches] = await held({ preprocess, postprocess: postprocess as never });
    const replies = ['abc', 'abc', 'abc'].map((input) => serving.batchedRun(input));
    await turn();
    expect(batches.rows).toEqual([['abc']]);
    batches.next().finish(['ABC']);
    expect(await Promise.all(replies)).toEqual([
      ['ABC', 1],
      ['ABC', 1],
      ['ABC', 1],
    ]);
    expect([preprocess.mock.calls.length, postprocess.mock.calls.length]).toEqual([3, 3]);
  });

  it('[W7] Shared calls are preprocessed once when no postprocess reads the info', async () => {
    const preprocess = jest.fn((text: unknown) => ({ batch: text, info: {} }));
    const [serving, batches] = await held({ preprocess });
    const replies = ['abc', 'abc'].map((input) => serving.batchedRun(input));
    await turn();
    batches.next().finish(['ABC']);
    expect(await Promise.all(replies)).toEqual(['ABC', 'ABC']);
    expect(preprocess).toHaveBeenCalledTimes(1);
  });

  it('[W7] A call fails alone when its own preprocess fails', async () => {
    let calls = 0;
    const preprocess = (text: unknown): { batch: unknown } => {
      if (++calls === 2) {
        throw new RangeError('cannot read that');
      }
      return { batch: text };
    };
    const [serving, batches] = await held({ preprocess, postprocess: (output) => output });
    const replies = ['abc', 'abc'].map((input) => serving.batchedRun(input));
    const failure = expect(replies[1]).rejects.toThrow('cannot read that');
    await turn();
    batches.next().finish(['ABC']);
    expect(await replies[0]).toBe('ABC');
    await failure;
  });

  it.each([
    ['a tensor', () => floats([1, 2], [1, 2]), (input: Tensor) => (input.data[0] = 9)],
    [
      'a batch',
      () => Batch.concatenate([floats([1, 2], [1, 2])]),
      (input: Batch) => ((input.release() as Tensor).data[0] = 9),
    ],
    ['a nested value', () => ({ ids: [1, 2] }), (input: { ids: number[] }) => (input.ids[0] = 9)],
  ] as [string, () => unknown, (input: never) => void][])(
    '[W2] The content at the time of the call runs, also when a caller changes %s after its call',
    async (_, make, change) => {
      const [serving, batches] = await held({ batchTimeout: 10 });
      const mine = make();
      const replies = [serving.batchedRun(mine), serving.batchedRun(make())];
      change(mine as never);
      await later(10);
      const [run] = batches.rows as unknown[];
      const expected = make();
      expect(Array.isArray(run) ? run : [run]).toEqual([
        expected instanceof Batch ? expected.consume() : expected,
      ]);
      batches.next().finish(Array.isArray(run) ? ['done'] : floats([1], [1]));
      await Promise.all(replies);
    },
  );

  it('[FR8] Equal calls that a full queue refuses are refused together, and calls of other terms try once for each terms', async () => {
    // Called once for each attempt.
    const cost = jest.fn(() => 1);
    const queue = { maxRows: 4, maxCost: 100, cost };
    const [serving, batches] = await held({ batchSize: 1, queue });
    const busy = [0, 1, 2, 3].map((row) => serving.batchedRun(row));
    await turn();
    cost.mockClear();
    const options = [{ priority: -1 }, { tenant: 'a' }, {}];
    const calls = Array.from({ length: 300 }, (_, i) =>
      serving.batchedRun('popular', options[Math.floor(i / 100)]),
    );
    const replies = Promise.allSettled(calls);
    await turn();

    // One place is free: not for a priority below 0, nor for a tenant.
    expect(cost).toHaveBeenCalledTimes(3);
    for (let i = 0; i < 5; i++) {
      batches.next().finish(['done']);
      await turn();
    }
    const outcomes = (await replies).map((reply) =>
      reply.status === 'fulfilled' ? reply.value : (reply.reason as OverloadedError).code,
    );
    expect(outcomes).toEqual([
      ...Array<string>(200).fill('SERVING_OVERLOADED'),
      ...Array<string>(100).fill('done'),
    ]);
    await Promise.all(busy);
  });

  it('[W6] When the first call is refused the next takes over, and no error names another tenant', async () => {
    const [serving, batches] = await held({ batchSize: 1, queue: { maxRows: 6 } });
    const running = serving.batchedRun('running');
    await turn();
    const filling = ['a', 'b', 'c'].map((input) => serving.batchedRun(input, { tenant: 'noisy' }));
    await turn();

    const refused = expect(serving.batchedRun('popular', { tenant: 'noisy' })).rejects.toThrow(
      'tenant "noisy"',
    );
    const joined = ['quiet', 'still'].map((tenant) => serving.batchedRun('popular', { tenant }));
    await refused;
    await turn();

    for (let batch = batches.next(); batch; batch = batches.next()) {
      batch.finish(batch.rows.map(String));
      await turn();
    }
    expect(await Promise.all(joined)).toEqual(['popular', 'popular']);
    await Promise.all([running, ...filling]);
  });

  /** A serving that has learned that its batches of one row take 20 ms. */
  async function learned(): Promise<LocalServing> {
    const serving = await start<unknown>({
      name: 'learned',
      batchSize: 1,
      deduplication: { singleFlight: true },
      model: {
        useFactory: () => async (rows: unknown[]) => {
          await new Promise((resolve) => setTimeout(resolve, 20));
          return rows;
        },
      },
    });
    for (let batch = 0; batch < 10; batch++) {
      const reply = serving.batchedRun(`batch ${batch}`);
      await later(20);
      await reply;
    }
    return serving;
  }

  it('[H6] A call that cannot be answered in time is refused on arrival, also with single flight', async () => {
    const serving = await learned();
    const calls = Array.from({ length: 10 }, (_, row) => serving.batchedRun(row, { timeout: 100 }));
    const ends = Promise.allSettled(calls);
    await turn();
    const refused = serving.counters().failed['SERVING_DEADLINE_TOO_SHORT'];
    await laterBySteps(100);

    expect(refused).toBe(6);
    expect((await ends).map(({ status }) => status === 'fulfilled')).toEqual(
      calls.map((_, row) => row < 4),
    );
  });

  it('[H6] A caller with more time is not refused with the call that it has joined', async () => {
    const serving = await learned();
    const running = Array.from({ length: 5 }, (_, row) => serving.batchedRun(row));
    const short: Promise<unknown>[] = [];
    const long: Promise<unknown>[] = [];
    // A call is refused some microtasks after it was made.
    for (let microtasks = 0; microtasks < 8; microtasks++) {
      const input = `popular ${microtasks}`;
      short.push(serving.batchedRun(input, { timeout: 50 }));
      for (let passed = 0; passed < microtasks; passed++) {
        await Promise.resolve();
      }
      long.push(serving.batchedRun(input, { timeout: 400 }), serving.batchedRun(input));
    }
    const ends = Promise.all([Promise.allSettled(short), Promise.all(long)]);
    await laterBySteps(300);
    const [failed, answered] = await ends;
    await Promise.all(running);

    expect(failed.map(({ status }) => status)).toEqual(short.map(() => 'rejected'));
    expect(answered).toEqual(long.map((_, call) => `popular ${call >> 1}`));
    // Callers that were not refused share one run.
    expect(serving.counters()).toMatchObject({ batches: 10 + 5 + 8 });
  });

  it('[H6] Shared rows wait in the queue for the caller with the most time', async () => {
    const [serving, batches] = await held({ batchSize: 1 });
    const running = serving.batchedRun('running');
    await turn();
    const short = expect(serving.batchedRun('popular', { timeout: 50 })).rejects.toThrow(
      'did not answer within the 50 ms that the call had',
    );
    const long = serving.batchedRun('popular', { timeout: 200 });
    await later(100);
    await short;
    batches.next().finish(['RUNNING']);
    await turn();
    batches.next().finish(['POPULAR']);

    expect(await Promise.all([running, long])).toEqual(['RUNNING', 'POPULAR']);
  });

  it('[H6] A shared call ends at its deadline while postprocess runs', async () => {
    const [serving, batches] = await held({ postprocess: () => new Promise(() => {}) });
    const ended = expect(serving.batchedRun('a', { timeout: 100 })).rejects.toThrow(
      DeadlineExceededError,
    );
    await turn();
    batches.next().finish(['A']);
    await later(100);
    await ended;
  });

  it('Each caller gets a copy of the reply of its own', async () => {
    const [serving, batches] = await held();
    const row = { tags: ['cat'] };
    const plain = ['a', 'a'].map((input) => serving.batchedRun(input) as Promise<typeof row>);
    await turn();
    batches.next().finish([row]);
    const [one, other] = await Promise.all(plain);
    one!.tags.push('dog');
    expect(other).toEqual({ tags: ['cat'] });
    expect(row).toEqual({ tags: ['cat'] });

    const input = floats([1, 2], [1, 2]);
    const tensors = [input, input].map((same) => serving.batchedRun(same) as Promise<Tensor>);
    await turn();
    batches.next().finish(floats([1, 2], [3, 4]));
    const [first, second] = await Promise.all(tensors);
    (first!.data as Float32Array).fill(0);
    expect([...(second!.data as Float32Array)]).toEqual([3, 4]);
  });

  it('Each caller gets the whole reply of a split call or of a sequence', async () => {
    const serving = await start<unknown>({
      name: 'upper',
      batchSize: 2,
      deduplication: {
        singleFlight: true,
        key: (input) => (Array.isArray(input) ? input.join('') : undefined),
      },
      preprocess: (letters: string[]) => ({
        batch: letters.length > 3 ? letters.values() : Batch.stack(letters),
      }),
      model: { useFactory: () => (rows: string[]) => rows.map((row) => row.toUpperCase()) },
    });
    const abc = 'abc'.split('');
    const abcd = 'abcd'.split('');
    expect(
      await Promise.all([abc, abc, abcd, abcd].map((input) => serving.batchedRun(input))),
    ).toEqual(['ABC'.split(''), 'ABC'.split(''), 'ABCD'.split(''), 'ABCD'.split('')]);
  });

  it.each([
    ['the first', 0],
    ['one that has joined', 1],
  ])(
    '[7.3] When %s leaves it ends at once, and the other call gets its reply',
    async (_, index) => {
      const [serving, batches] = await held();
      const leaving = new AbortController();
      const replies = [0, 1].map((call) => serving.batchedRun('a', call === index ? leaving : {}));
      await turn();

      leaving.abort(reason);

      await expect(replies[index]).rejects.toBe(reason);
      batches.next().finish(['A']);
      expect(await replies[1 - index]).toBe('A');
    },
  );

  it('[7.3] Shared rows leave the queue when the last call has left, and a later call starts anew', async () => {
    const [serving, batches] = await held();
    const busy = serving.batchedRun('busy');
    await turn();
    const leaving = [new AbortController(), new AbortController()];
    const left = leaving.map(({ signal }) => serving.batchedRun('a', { signal }));
    await turn();
    expect(depthOf(serving)).toBe(1);

    leaving[0]!.abort(reason);
    await expect(left[0]).rejects.toBe(reason);
    expect(depthOf(serving)).toBe(1);
    leaving[1]!.abort(reason);
    await expect(left[1]).rejects.toBe(reason);
    expect(depthOf(serving)).toBe(0);

    const anew = serving.batchedRun('a');
    batches.next().finish(['done']);
    await turn();
    expect(batches.rows).toEqual([['a']]);
    batches.next().finish(['A']);
    expect(await Promise.all([busy, anew])).toEqual(['done', 'A']);
  });

  it('[7.3] A call that is cancelled during preprocess never enters the queue', async () => {
    let prepared!: () => void;
    const gate = new Promise<void>((resolve) => (prepared = resolve));
    const [serving, batches] = await held({
      preprocess: async (input: unknown) => (await gate, { batch: input }),
    });
    const leaving = new AbortController();
    const left = serving.batchedRun('a', leaving);
    leaving.abort(reason);
    await expect(left).rejects.toBe(reason);
    prepared();
    await turn();
    expect(batches.batches).toEqual([]);
  });

  it('[7.3] A call whose signal has aborted before ends at once', async () => {
    const key = jest.fn(() => 'a');
    const [serving] = await held({ deduplication: { singleFlight: true, key } });
    await expect(serving.batchedRun('a', { signal: AbortSignal.abort(reason) })).rejects.toBe(
      reason,
    );
    expect(key).not.toHaveBeenCalled();
  });

  it('[6.1] Shared calls fail together, and a later call runs again', async () => {
    const [serving, batches] = await held();
    const ends: CallEndEvent[] = [];
    serving.eventsOf('call:end').subscribe((event) => ends.push(event));
    const replies = ['a', 'a'].map((input) => serving.batchedRun(input));
    await turn();
    batches.next().fail(new Error('out of paper'));
    await Promise.allSettled(replies);
    expect(ends.map(({ answeredBy, error }) => [answeredBy, error])).toEqual([
      [undefined, expect.any(BatchFailedError)],
      [undefined, expect.any(BatchFailedError)],
    ]);
    const settled = await Promise.allSettled(replies);
    expect(
      settled.map((each) => each.status === 'rejected' && each.reason instanceof BatchFailedError),
    ).toEqual([true, true]);

    const again = serving.batchedRun('a');
    await turn();
    batches.next().finish(['A']);
    expect(await again).toBe('A');
  });

  it('[7.1] Calls that join a queued call need no room in the queue', async () => {
    const [serving, batches] = await held({ batchSize: 1, queue: { maxRows: 1 } });
    const running = serving.batchedRun('running');
    await turn();
    const replies = ['a', 'a', 'a'].map((input) => serving.batchedRun(input));
    await expect(serving.batchedRun('b')).rejects.toThrow(OverloadedError);
    await turn();
    batches.next().finish(['ran']);
    await turn();
    batches.next().finish(['A']);
    expect(await Promise.all([running, ...replies])).toEqual(['ran', 'A', 'A', 'A']);
  });

  it('[4.10] Calls of different origins do not share a run when the serving separates origins', async () => {
    const [serving, batches] = await held({ queue: { separateOrigins: true } });
    const replies = ['http', 'ws', 'http'].map((origin) => serving.batchedRun('a', { origin }));
    await turn();
    batches.next().finish(['over http']);
    await turn();
    batches.next().finish(['over ws']);
    expect(await Promise.all(replies)).toEqual(['over http', 'over ws', 'over http']);
  });

  it('[3.1] [8.2] Inline runs and streams do not share a run', async () => {
    const [serving, batches] = await held();
    const calls = [serving.run('a'), serving.run('a')];
    await turn();
    batches.next().finish([1]);
    await turn();
    batches.next().finish([2]);
    expect(await Promise.all(calls)).toEqual([1, 2]);
  });

  it('[4.10] Calls whose origin and key merely concatenate to the same text do not share a run', async () => {
    const [serving, batches] = await held({
      queue: { separateOrigins: true },
      deduplication: { singleFlight: true, key: String },
    });
    const replies = [
      serving.batchedRun('b:c', { origin: 'a' }),
      serving.batchedRun('c', { origin: 'a:b' }),
    ];
    await turn();
    batches.next().finish([1]);
    await turn();
    batches.next().finish([2]);
    expect(await Promise.all(replies)).toEqual([1, 2]);
  });

  it('A call whose key cannot be computed fails alone', async () => {
    const [serving, batches] = await held();
    await expect(serving.batchedRun(() => 1)).rejects.toThrow(InvalidInputError);
    const [odd] = await held({
      name: 'odd',
      deduplication: { singleFlight: true, key: (() => 7) as never },
    });
    await expect(odd.batchedRun('a')).rejects.toThrow(
      new InvalidServingError(
        'Serving "odd": deduplication.key must return a string, or undefined for an input that shares with no other; it returned 7',
      ),
    );
    expect(batches.batches).toEqual([]);
  });

  it('A reply that cannot be copied is refused, also when no other call has joined', async () => {
    const [serving, batches] = await held();
    const reply = serving.batchedRun('a');
    await turn();
    batches.next().finish([new URL('https://example.com')]);
    await expect(reply).rejects.toThrow(InvalidOutputError);
  });

  it('[9.3] All shared calls are answered at shutdown', async () => {
    const [serving, batches] = await held({ batchTimeout: 1000 });
    const replies = ['a', 'a'].map((input) => serving.batchedRun(input));
    const closed = serving.close();
    await turn();
    batches.next().finish(['A']);
    expect(await Promise.all(replies)).toEqual(['A', 'A']);
    await closed;
  });

  it('[12.1] A call that joined is reported with no rows and listed by the batch that answered it', async () => {
    const [serving, batches] = await held();
    const ends: Partial<CallEndEvent>[] = [];
    const inBatches: (readonly number[])[] = [];
    serving
      .eventsOf('call:end')
      .subscribe(({ call, rows, stage, answeredBy, preprocessing, waiting, running }) =>
        ends.push({ call, rows, stage, answeredBy, preprocessing, waiting, running }),
      );
    serving.eventsOf('batch:start').subscribe(({ calls }) => inBatches.push(calls));
    const busy = serving.batchedRun('busy');
    await turn();
    const replies = ['a', 'a'].map((input) => serving.batchedRun(input));
    await later(2);
    replies.push(serving.batchedRun('a'));
    await later(3);
    batches.next().finish(['done']);
    await turn();
    const late = serving.batchedRun('a');
    await later(7);
    batches.next().finish(['A']);
    await Promise.all([busy, ...replies, late]);

    const common = { stage: 'postprocessing', preprocessing: 0 };
    expect(inBatches).toEqual([[1], [2, 3, 4]]);
    expect(ends).toEqual([
      { ...common, call: 1, rows: 1, answeredBy: undefined, waiting: 0, running: 5 },
      { ...common, call: 2, rows: 1, answeredBy: undefined, waiting: 5, running: 7 },
      { ...common, call: 3, rows: 0, answeredBy: 'single-flight', waiting: 5, running: 7 },
      { ...common, call: 4, rows: 0, answeredBy: 'single-flight', waiting: 3, running: 7 },
      { ...common, call: 5, rows: 0, answeredBy: 'single-flight', waiting: 0, running: 7 },
    ]);
  });
});

describe('options', () => {
  it.each([
    [{ singleFlight: 1 }, 'option "deduplication.singleFlight" is 1; allowed is true or false'],
    [{ key: 'id' }, 'option "deduplication.key" is "id"; allowed is a function'],
    [
      { cache: true },
      'option "deduplication.cache" is true; allowed is an object of ttl and timeout, in milliseconds',
    ],
    [
      { cache: {} },
      'option "deduplication.cache" is {}; allowed is an object of ttl and timeout, in milliseconds',
    ],
    [
      { cache: { ttl: 0 } },
      'option "deduplication.cache.ttl" is 0; allowed is a whole number from 1 to',
    ],
    [
      { cache: { ttl: 1, timeout: 0 } },
      'option "deduplication.cache.timeout" is 0; allowed is a whole number from 1 to',
    ],
    [{ cache: { ttl: 1, store: 'redis' } }, 'unknown option "deduplication.cache.store"'],
    [
      { cache: { ttl: 1 } },
      'deduplication.cache needs the application that has the cache manager; use ServingModule',
    ],
  ])('[1.9] Invalid options of shared calls are refused at boot: %j', (deduplication, message) => {
    const create = (): unknown =>
      createServing({
        name: 'wrong',
        model: { useFactory: () => (rows) => rows },
        deduplication,
      } as ServingDefinition);
    expect(create).toThrow(InvalidServingError);
    expect(create).toThrow(message);
  });
});

const depthOf = (serving: LocalServing): number => serving.queued;
