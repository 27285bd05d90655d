import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  InvalidBatchError,
  InvalidInputError,
  RequestTooLargeError,
  type ServingDefinition,
  type ServingError,
  Tensor,
} from 'nestjs-serving';
import { Observable } from 'rxjs';
import { Lanes } from '../../../lib/core/execution/lanes.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { collect } from '../../fixtures/async/collect.js';

const echo: ServingDefinition = {
  name: 'echo',
  model: { useFactory: () => (rows: unknown) => rows },
};
const rowsOf = (count: number): Batch => Batch.stack(Array.from({ length: count }, (_, i) => i));

const throws = (): never => {
  throw new TypeError('no');
};
const revoked = (): object => {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
};
const endless = (): unknown[] => {
  const list: unknown[] = [];
  list.length = 2 ** 32 - 1;
  return list;
};

describe('A call with hostile input', () => {
  const serve = useServings();

  it.each<[string, unknown]>([
    ['a getter that throws', Object.defineProperty({}, 'x', { get: throws, enumerable: true })],
    [
      'a proxy whose traps throw',
      new Proxy({}, { has: throws, getPrototypeOf: throws, ownKeys: throws, get: throws }),
    ],
    ['a revoked proxy', revoked()],
    [
      'a tensor whose data throws',
      Object.defineProperty(floats([1], [1]), 'data', { get: throws }),
    ],
    ['an async iterable without an iterator', { [Symbol.asyncIterator]: () => null }],
    ['an iterator without steps', { [Symbol.asyncIterator]: () => ({ next: () => 1 }) }],
    ['an iterator that cannot be asked', { [Symbol.asyncIterator]: () => ({}) }],
    ['an object that looks like a batch', Object.create(Batch.prototype)],
    [
      'a lazy sequence of getters that throw',
      new Observable((subscriber) =>
        subscriber.next(Object.defineProperty({}, 'x', { get: throws, enumerable: true })),
      ),
    ],
  ])('[4.9] [6.5] Hostile input fails its own call with a typed error: %s', async (_, input) => {
    const serving = await serve(echo);

    const replies = await Promise.allSettled(
      ['a', input, 'b'].map((row) => serving.batchedRun(row)),
    );

    expect(
      replies.map((reply) =>
        reply.status === 'fulfilled' ? reply.value : (reply.reason as unknown),
      ),
    ).toEqual(['a', expect.any(InvalidBatchError), 'b']);
    await expect(serving.run(input)).rejects.toThrow(InvalidBatchError);
    await expect(collect(serving.stream(input))).rejects.toThrow(InvalidBatchError);
  });

  it.each<[string, unknown]>([
    ['a list that is nearly endless', endless()],
    [
      'an object with the names of every object',
      JSON.parse('{"__proto__": {"polluted": 1}, "constructor": {"prototype": {}}, "toString": 1}'),
    ],
    ['a tensor in words', { dims: [1], type: 'float32', data: [1] }],
    ['a big integer', 2n ** 64n],
    ['half of a character', '\ud800'],
  ])('[1.7] Unusual input is a plain value like any other: %s', async (_, input) => {
    const serving = await serve(echo);

    expect(await serving.batchedRun(input)).toBe(input);
    expect('polluted' in {}).toBe(false);
  });

  it('[7.1] [6.5] A call with more rows than the row limit is refused as too large', async () => {
    const serving = await serve({ ...echo, queue: { maxRowsPerCall: 3 }, batchSize: 2 });

    for (const run of [
      serving.batchedRun(rowsOf(4)),
      serving.run(rowsOf(4)),
      collect(serving.stream(rowsOf(4), { inline: true, hooks: ['h'] as never })),
    ]) {
      await expect(run).rejects.toThrow(RequestTooLargeError);
      await expect(run).rejects.toThrow(
        'Serving "echo" takes at most 3 rows in one call and was given 4; give fewer at a time, or raise queue.maxRowsPerCall',
      );
    }
    expect(await serving.batchedRun(rowsOf(3))).toEqual([0, 1, 2]);
    await expect(serving.run(Batch.concatenate([floats([1], [1])]).pad(2 ** 40))).rejects.toThrow(
      RequestTooLargeError,
    );
  });

  it('[7.1] A call may have as many rows as the queue by default', async () => {
    const serving = await serve({ ...echo, queue: { maxRows: 40 } });

    expect(await serving.batchedRun(rowsOf(40))).toHaveLength(40);
    await expect(serving.batchedRun(rowsOf(41))).rejects.toMatchObject({
      code: 'SERVING_TOO_LARGE',
      statusCode: 413,
    });
  });

  it('[7.1] [8.1] A stream may have more rows than the row limit, in several batches', async () => {
    const serving = await serve({ ...echo, queue: { maxRowsPerCall: 3 }, batchSize: 2 });

    expect((await collect(serving.stream(rowsOf(5)))).length).toBe(3);
    expect(await serving.batchedRun([rowsOf(3), rowsOf(3)])).toHaveLength(6);
    await expect(serving.batchedRun([rowsOf(3), rowsOf(4)])).rejects.toThrow(RequestTooLargeError);
  });

  it('[7.1] A call with more bytes than the byte limit is refused as too large', async () => {
    const serving = await serve({ ...echo, queue: { maxBytesPerCall: 8 } });

    expect(await serving.batchedRun(floats([1, 2], [1, 2]))).toEqual(floats([1, 2], [1, 2]));
    expect(await serving.batchedRun('as long as it likes')).toBe('as long as it likes');
    const refused = serving.batchedRun(floats([3], [1, 2, 3]));
    await expect(refused).rejects.toThrow(RequestTooLargeError);
    await expect(refused).rejects.toThrow(
      'takes tensors of at most 8 bytes in one call and was given 12; give fewer rows at a time, or raise queue.maxBytesPerCall',
    );
  });

  it.each<[string, unknown]>([
    ['a string', 'squares'],
    ['an object with a length', { length: 2 }],
    ['a list of anything', [1]],
    ['an object', {}],
    ['a list without end', Array.from({ length: 1025 }, () => 'h')],
  ])('[8.3] Hooks must be a list of names and not %s', async (_, hooks) => {
    const serving = await serve(echo);

    await expect(collect(serving.stream('a', { hooks: hooks as never }))).rejects.toThrow(
      'hooks must be a list of at most 1024 names',
    );
  });

  it('[8.3] [6.5] A list of hooks that cannot be read is refused with a typed error', async () => {
    const serving = await serve(echo);

    await expect(
      collect(serving.stream('a', { hooks: new Proxy([] as never[], { get: throws }) })),
    ).rejects.toThrow(InvalidBatchError);
  });

  it.each<[string, unknown]>([
    ['an object', {}],
    ['a symbol', Symbol('http')],
    ['a long text', 'x'.repeat(257)],
  ])('[4.10] An invalid origin is refused: %s', async (_, origin) => {
    const serving = await serve({ ...echo, queue: { separateOrigins: true } });

    await expect(serving.batchedRun('a', { origin: origin as never })).rejects.toThrow(
      InvalidInputError,
    );
  });

  it('[4.6] [4.10] An origin that looks like a signature leads to no other lane', async () => {
    const lanes = new Lanes(new Map([['default', { batchSize: 2, batchTimeout: 0, runSize: 2 }]]), {
      batchSize: 2,
      batchTimeout: 0,
      runSize: 2,
    });
    const tensors = Batch.concatenate([floats([1, 2], [1, 2])]);

    const lane = lanes.laneOf(Batch.stack([1]), `${tensors.signature}\0http`);

    expect(lanes.laneOf(tensors, 'http')).not.toBe(lane);
  });

  it('[4.7] Calls with unknown keys leave no lanes behind', async () => {
    const lanes = new Lanes(new Map([['default', { batchSize: 2, batchTimeout: 0, runSize: 2 }]]), {
      batchSize: 2,
      batchTimeout: 0,
      runSize: 2,
    });
    const known = lanes.laneOf(Batch.stack([1]));

    for (let i = 0; i < 2000; i++) {
      lanes.laneOf(Batch.stack([1]).withKey(`key ${i}`));
    }

    expect(lanes.laneOf(Batch.stack([1]))).toBe(known);
  });

  it('[E10] A change of the batch size changes the limits of calls that run alone, and makes no new ones', () => {
    const options = { batchSize: 4, runSize: 4, batchTimeout: 5 };
    const lanes = new Lanes(new Map([['default', options]]), options);
    const limitsOf = () => lanes.laneAlone(Batch.stack([1]), 6).limits;
    const first = limitsOf();
    expect(first).toMatchObject({ batchSize: 4, batchTimeout: 0 });

    for (const runSize of [2, 5, 9]) {
      lanes.change(['default'], { runSize });
      expect(limitsOf()).toBe(first);
      expect(first).toMatchObject({ batchSize: Math.min(runSize, 6), batchTimeout: 0 });
    }
  });

  it('[L5] Each of more than 1024 declared keys keeps its lane', () => {
    const options = { batchSize: 4, runSize: 4, batchTimeout: 0 };
    const keys = Array.from({ length: 1100 }, (_, i) => `key ${i}`);
    const lanes = new Lanes(new Map(keys.map((key) => [key, options])), options);
    const lanesOfAll = () => keys.map((key) => lanes.laneOf(Batch.stack([1]).withKey(key)));

    const before = lanesOfAll();

    expect(new Set([...before, ...lanesOfAll()]).size).toBe(keys.length);
  });

  it('[4.7] Inline runs with ever new keys keep at most 1024 batch functions', async () => {
    const built: string[] = [];
    const serving = await serve({
      ...echo,
      model: {
        useFactory: ({ key }) => {
          built.push(key);
          return (rows: unknown) => rows;
        },
      },
    });
    const run = (key: string): Promise<unknown> => serving.run(Batch.stack([1]).withKey(key));
    const keys = Array.from({ length: 1025 }, (_, i) => `key ${i}`);

    for (const key of keys) {
      await run(key);
    }
    await run('key 1024');
    await run('key 0');

    expect(built).toEqual(['default', ...keys, 'key 0']);
  });

  it('[4.9] Refused rows do not split the batch of other rows', async () => {
    const batches: unknown[] = [];
    const serving = await serve({
      ...echo,
      batchTimeout: 20,
      batchSize: 2,
      model: { useFactory: () => (rows: unknown) => (batches.push(rows), rows) },
    });
    const strangers = Array.from({ length: 1100 }, (_, i) => Batch.stack([i]).withKey(`key ${i}`));

    const replies = await Promise.allSettled(
      ['a', ...strangers, 'b'].map((input) => serving.batchedRun(input)),
    );

    expect(replies.filter(({ status }) => status === 'fulfilled')).toHaveLength(2);
    expect(batches).toEqual([['a', 'b']]);
  });

  it.each<
    [string, (serving: { batchedRun(input: unknown): Promise<unknown> }) => Promise<unknown>]
  >([
    ['a key', (serving) => serving.batchedRun(Batch.stack([1]).withKey('k'.repeat(1000)))],
    [
      'the names of tensors',
      (serving) => serving.batchedRun({ ['n'.repeat(30_000)]: new Tensor('string', ['a'], []) }),
    ],
  ])('[6.5] The error for an oversized value is short: %s', async (_, call) => {
    const serving = await serve(echo);

    const error = (await call(serving).catch((reason: unknown) => reason)) as ServingError;

    expect(error.statusCode).toBe(400);
    expect(error.message.length).toBeLessThan(700);
  });
});
