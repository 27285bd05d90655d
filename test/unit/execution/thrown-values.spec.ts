import { types } from 'node:util';
import { describe, expect, it } from '@jest/globals';
import { isServingError, type ServingDefinition } from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { useVirtualTime } from '../../fixtures/async/virtual-time.js';

const throws = (): never => {
  throw new TypeError('no');
};
const revoked = (): object => {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
};
const unreadable = { get: throws, has: throws, getPrototypeOf: throws, ownKeys: throws };

const values: [string, unknown][] = [
  ['a revoked proxy', revoked()],
  ['a proxy whose traps throw', new Proxy({}, unreadable)],
  ['a proxy of an error whose traps throw', new Proxy(new Error('a'), unreadable)],
  [
    'an error whose getters throw',
    Object.defineProperties(new Error('a'), { code: { get: throws }, message: { get: throws } }),
  ],
  ['null', null],
  ['undefined', undefined],
  ['a symbol', Symbol('a')],
  ['a function', throws],
  ['an object without a prototype', Object.create(null)],
  [
    'an error whose cause is itself',
    Object.assign(new Error('a'), {
      get cause() {
        return this;
      },
    }),
  ],
];

describe.each(values)('A batch function that throws %s', (_, thrown) => {
  useVirtualTime();
  const start = useServings();

  const fail = (): never => {
    throw thrown;
  };
  const failFor = (rows: unknown[]): unknown[] => (rows[0] === 'bad' ? fail() : rows);
  class Handler {
    init(): void {}
    handleBatch(batch: { consume(): unknown }): { output: unknown[] } {
      return { output: failFor(batch.consume() as unknown[]) };
    }
  }
  const hosts: [string, ServingDefinition][] = [
    ['a function', { name: 'a', model: { useFactory: () => failFor } }],
    [
      'an async function',
      { name: 'a', model: { useFactory: () => async (rows: unknown[]) => failFor(rows) } },
    ],
    ['a class', { name: 'a', model: { useClass: Handler } }],
    [
      'a generator',
      {
        name: 'a',
        model: {
          useFactory: () =>
            function* (rows: unknown[]) {
              yield failFor(rows);
            },
        },
      },
    ],
    [
      'the promise of a row',
      {
        name: 'a',
        model: {
          useFactory: () => (rows: unknown[]) => rows.map(async (row) => failFor([row])[0]),
        },
      },
    ],
    [
      'an idempotent function',
      { name: 'a', recovery: { idempotent: true }, model: { useFactory: () => failFor } },
    ],
  ];

  it.each(hosts)(
    '[H11] A value that cannot be read, thrown in %s, fails its call with a typed error, and the next call is answered',
    async (host, definition) => {
      const serving = await start(definition);

      const error: unknown = await serving
        .batchedRun('bad')
        .catch((reason: unknown) => ({ reason }));
      const streamed: unknown = await collect(serving.stream('bad')).catch((reason: unknown) => ({
        reason,
      }));
      const alone: unknown = await serving.run('bad').catch((reason: unknown) => ({ reason }));

      const reasons = [error, streamed, alone].map(
        (outcome) => (outcome as { reason: unknown }).reason,
      );
      const isTyped = reasons.map(
        (reason) =>
          isServingError(reason) ||
          (host === 'the promise of a row' && types.isNativeError(reason)),
      );
      expect(isTyped).toEqual([true, true, true]);
      await expect(serving.batchedRun('good')).resolves.toBeDefined();
    },
  );

  it('[H11] A value that cannot be read, thrown in a factory, fails the start with a typed error', async () => {
    await expect(start({ name: 'a', model: { useFactory: fail } })).rejects.toMatchObject({
      code: 'SERVING_LOAD_FAILED',
    });
  });
});

describe('A signal that is aborted with a value that cannot be read', () => {
  useVirtualTime();
  const start = useServings();

  it('[H11] A call whose signal aborts with a value that cannot be read rejects with that value', async () => {
    const serving = await start({
      name: 'a',
      model: { useFactory: () => (rows: unknown) => rows },
    });
    const leaver = new AbortController();
    const reason = revoked();

    const reply = serving.batchedRun('a', { signal: leaver.signal }).then(
      () => false,
      (error: unknown) => error === reason,
    );
    leaver.abort(reason);

    expect(await reply).toBe(true);
  });
});
