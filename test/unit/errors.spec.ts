import { NotFoundException } from '@nestjs/common';
import { describe, expect, it } from '@jest/globals';
import { runInNewContext } from 'node:vm';
import {
  BatchFailedError,
  CallCancelledError,
  CallCycleError,
  DeadlineExceededError,
  DeadlineTooShortError,
  InvalidBatchError,
  InvalidInputError,
  InvalidOutputError,
  InvalidServingError,
  isServingError,
  OverloadedError,
  PartitionLostError,
  ProviderUnavailableError,
  RequestTooLargeError,
  RunTimeoutError,
  ServingClosedError,
  ServingError,
  ServingLoadError,
  ServingUnavailableError,
  SlowConsumerError,
  UnknownKeyError,
  UnknownServingError,
} from 'nestjs-serving';
import { fromWire, isError, messageOf, shortenStacks, toWire } from '../../lib/core/errors.js';

const errors = [
  { type: ServingError, code: 'SERVING_ERROR', statusCode: 500 },
  { type: InvalidServingError, code: 'SERVING_INVALID', statusCode: 500 },
  { type: UnknownServingError, code: 'SERVING_UNKNOWN', statusCode: 500 },
  { type: ServingLoadError, code: 'SERVING_LOAD_FAILED', statusCode: 500 },
  { type: ProviderUnavailableError, code: 'SERVING_PROVIDER_UNAVAILABLE', statusCode: 500 },
  { type: InvalidBatchError, code: 'SERVING_INVALID_BATCH', statusCode: 400 },
  { type: InvalidInputError, code: 'SERVING_INVALID_INPUT', statusCode: 400 },
  { type: UnknownKeyError, code: 'SERVING_UNKNOWN_KEY', statusCode: 400 },
  { type: RequestTooLargeError, code: 'SERVING_TOO_LARGE', statusCode: 413 },
  { type: CallCancelledError, code: 'SERVING_CANCELLED', statusCode: 499 },
  { type: DeadlineExceededError, code: 'SERVING_DEADLINE_EXCEEDED', statusCode: 504 },
  { type: DeadlineTooShortError, code: 'SERVING_DEADLINE_TOO_SHORT', statusCode: 503 },
  { type: OverloadedError, code: 'SERVING_OVERLOADED', statusCode: 503 },
  { type: ServingClosedError, code: 'SERVING_CLOSED', statusCode: 503 },
  { type: SlowConsumerError, code: 'SERVING_SLOW_CONSUMER', statusCode: 503 },
  { type: CallCycleError, code: 'SERVING_CALL_CYCLE', statusCode: 500 },
  { type: RunTimeoutError, code: 'SERVING_RUN_TIMEOUT', statusCode: 504 },
  { type: ServingUnavailableError, code: 'SERVING_UNAVAILABLE', statusCode: 503 },
  { type: BatchFailedError, code: 'SERVING_BATCH_FAILED', statusCode: 500 },
  { type: InvalidOutputError, code: 'SERVING_INVALID_OUTPUT', statusCode: 500 },
  { type: PartitionLostError, code: 'SERVING_PARTITION_LOST', statusCode: 503 },
].map((error) => ({ ...error, name: error.type.name }));

describe('ServingError', () => {
  it.each(errors)(
    '[6.5] $name has its name, a stable code, a cause and an HTTP status',
    ({ type, name, code, statusCode }) => {
      const cause = new Error('out of memory');

      const error = new type('it failed', { cause });

      expect(error).toBeInstanceOf(ServingError);
      expect(error).toMatchObject({
        name,
        code,
        statusCode,
        status: statusCode,
        message: 'it failed',
        cause,
      });
      expect(String(error)).toBe(`${name}: it failed`);
      expect(error.stack).toContain('errors.spec');
    },
  );

  it.each(errors)(
    '[6.5] $name exposes its message to an HTTP client only when the client is at fault',
    ({ type, statusCode }) => {
      expect(new type().expose).toBe(statusCode < 500);
    },
  );

  it.each(errors)('[6.5] $name keeps its class across threads', ({ type }) => {
    const cause = new InvalidBatchError('uneven', { cause: new RangeError('3 > 2') });
    const error = new type('it failed', { cause, retryAfter: 3 });

    const received = fromWire(structuredClone(toWire(error)));

    expect(received).toBeInstanceOf(type);
    expect(received).toHaveProperty('retryAfter', 3);
    expect(received.stack).toBe(error.stack);
    expect(chainOf(received)).toEqual(chainOf(error));
    expect(chainOf(received)).toHaveLength(3);
  });

  it.each(errors)(
    '[6.5] $name is serialized without stack and cause',
    ({ type, name, code, statusCode }) => {
      const cause = new Error('password');

      expect(JSON.parse(JSON.stringify(new type('it failed', { cause })))).toEqual({
        name,
        code,
        statusCode,
        message: 'it failed',
      });
      expect(
        JSON.parse(JSON.stringify(new type('it failed', { cause, retryAfter: 3 }))),
      ).toHaveProperty('retryAfter', 3);
    },
  );
});

describe('toWire and fromWire', () => {
  it.each([
    [
      'an error of another class',
      new TypeError('x is no function'),
      { name: 'TypeError', message: 'x is no function' },
    ],
    [
      'an error with a code',
      Object.assign(new Error('no file'), { code: 'ENOENT' }),
      { name: 'Error', message: 'no file', code: 'ENOENT' },
    ],
    [
      'a thrown value that is no error',
      'out of memory',
      { name: 'Error', message: 'out of memory' },
    ],
    ['nothing', undefined, { name: 'Error', message: 'undefined' }],
    [
      'an error whose cause is no error',
      new Error('a', { cause: 'b' }),
      { name: 'Error', message: 'a' },
    ],
  ])('[6.5] An error crosses a thread: %s', (_, thrown, expected) => {
    const received = fromWire(structuredClone(toWire(thrown)));

    expect(isError(received)).toBe(true);
    expect(received).toMatchObject(expected);
  });

  it('[6.5] An error that is its own cause crosses a thread', () => {
    const error = new Error('first');
    error.cause = new Error('second', { cause: error });

    expect(chainOf(fromWire(toWire(error))).slice(0, 2)).toEqual(['Error: first', 'Error: second']);
  });
});

const crossed = (error: Error): object => fromWire(structuredClone(toWire(error)));
const propertiesOf = (error: object): object => {
  const { stack: _stack, ...others } = Object.fromEntries(
    Object.getOwnPropertyNames(error).map((name) => [name, Reflect.get(error, name) as unknown]),
  );
  return others;
};

describe('[FR5] The properties of an error that crosses', () => {
  it('are kept if they are plain data', () => {
    const data = { status: 'archived', tries: 3, last: { at: [1, null, true] } };
    const error = Object.assign(new RangeError('no room'), data, {
      retry: () => {},
      size: 1n,
      large: 'x'.repeat(5000),
    });

    expect(propertiesOf(crossed(error))).toEqual({
      name: 'RangeError',
      message: 'no room',
      ...data,
    });
  });

  it('answer over HTTP as those of the exception of Nest that it was', () => {
    const error = crossed(new NotFoundException('no such row'));

    expect(error).toMatchObject({ status: 404, statusCode: 404, expose: true });
    expect(crossed(Object.assign(new Error('of another server'), { status: 401 }))).toEqual(
      expect.not.objectContaining({ statusCode: 401 }),
    );
  });

  it('are kept with the status of a ServingError of the application', () => {
    class QuotaError extends ServingError {
      override readonly name = 'QuotaError';
      override readonly code = 'SERVING_QUOTA';
      override readonly statusCode = 429;
      readonly plan = 'free';
    }
    class GoneError extends ServingError {
      override readonly statusCode = 410;
    }
    class FieldError extends InvalidInputError {
      readonly field = 'text';
    }

    const [quota, gone, field] = [
      new QuotaError('no more', { retryAfter: 7 }),
      new GoneError('gone'),
      new FieldError('no text'),
    ].map(crossed);

    expect(quota).toBeInstanceOf(ServingError);
    expect(quota).toMatchObject({
      name: 'QuotaError',
      code: 'SERVING_QUOTA',
      statusCode: 429,
      expose: true,
      retryAfter: 7,
      plan: 'free',
    });
    expect(gone).toMatchObject({ code: 'SERVING_ERROR', statusCode: 410 });
    expect(field).toBeInstanceOf(InvalidInputError);
    expect(field).toMatchObject({ statusCode: 400, field: 'text' });
  });

  it('are kept with a code that is a number', () => {
    expect(crossed(Object.assign(new Error('duplicate key'), { code: 11000 }))).toMatchObject({
      code: 11000,
    });
  });

  it('replace nothing of an error', () => {
    const hostile = {
      ...toWire(new Error('x')),
      details: '{"__proto__":{"a":1},"toString":2,"message":"y","ok":3}',
    };
    const error = fromWire(hostile);

    expect(propertiesOf(error)).toEqual({ name: 'Error', message: 'x', ok: 3 });
    expect(String(error)).toBe('Error: x');
    expect(propertiesOf(fromWire({ ...hostile, details: '{' }))).toEqual({
      name: 'Error',
      message: 'x',
    });
    expect(
      fromWire({ ...toWire(new OverloadedError('full')), details: '{"statusCode":200}' }),
    ).toMatchObject({ statusCode: 503 });
    expect(
      fromWire({ ...toWire(new ServingError('odd')), details: '{"statusCode":200}' }),
    ).toMatchObject({ statusCode: 500 });
  });
});

describe('isServingError', () => {
  it.each([
    ['an error of this package', new OverloadedError(), true],
    [
      'an error of another copy of this package',
      Object.assign(new Error(), { code: 'SERVING_CLOSED' }),
      true,
    ],
    ['another error', Object.assign(new Error(), { code: 'ENOENT' }), false],
    ['an object with such a code', { code: 'SERVING_CLOSED' }, false],
    ['null', null, false],
  ])('isServingError accepts only errors of this package: %s', (_, value, expected) => {
    expect(isServingError(value)).toBe(expected);
  });
});

describe('isError', () => {
  it.each([
    ['an error', new Error(), true],
    ['an error of another realm', runInNewContext('new TypeError()'), true],
    ['a message', 'failed', false],
    ['null', null, false],
    ['undefined', undefined, false],
    ['a proxy whose traps throw', new Proxy({}, { getPrototypeOf: throws }), false],
  ])('isError accepts only errors: %s', (_, value, expected) => {
    expect(isError(value)).toBe(expected);
  });
});

describe('A thrown value that cannot be read', () => {
  it.each<[string, unknown]>([
    ['an object without a prototype', Object.create(null)],
    ['a symbol', Symbol('thrown')],
    ['an object that refuses to be a string', { toString: throws }],
    [
      'an error whose message is an object',
      Object.assign(new Error(), { message: Object.create(null) }),
    ],
    [
      'an error whose name is an object',
      Object.assign(new Error(), { name: Symbol('name'), stack: () => {} }),
    ],
    ['an error whose code is an object', Object.assign(new Error(), { code: Object.create(null) })],
    [
      'an error whose message throws',
      Object.defineProperty(new Error(), 'message', { get: throws }),
    ],
    ['an error whose code throws', Object.defineProperty(new Error(), 'code', { get: throws })],
  ])(
    '[6.5] A thrown value that cannot be read has a message and crosses a thread: %s',
    (_, thrown) => {
      expect(typeof messageOf(thrown)).toBe('string');
      expect(isServingError(thrown)).toBe(false);
      expect(isError(fromWire(structuredClone(toWire(thrown))))).toBe(true);
    },
  );
});

function throws(): never {
  throw new TypeError('no');
}

/** The error and its causes, the first ten of them. */
function chainOf(error: unknown): string[] {
  const chain: string[] = [];
  for (let next = error; isError(next) && chain.length < 10; next = next.cause) {
    chain.push(String(next));
  }
  return chain;
}

it('[N10] Stacks of an error and its causes are cut to three frames, and messages are not', () => {
  const nested = (depth: number): Error =>
    depth > 0 ? nested(depth - 1) : new RangeError('no such file\nin the folder');
  const cause = nested(9);
  const error = new ServingLoadError('it failed', { cause });

  shortenStacks(error);

  expect(cause.stack?.split('\n')).toEqual([
    'RangeError: no such file',
    'in the folder',
    ...Array.from({ length: 3 }, () => expect.stringMatching(/^ +at nested /)),
  ]);
  expect(error.stack?.split('\n')).toHaveLength(4);
  expect(error.cause).toBe(cause);
});

it('[N10] Stacks that cannot be cut stay as they are', () => {
  const own = new Error('again');
  own.cause = own;
  const fixed = new Error('fixed', { cause: own });
  const stack = `Error: fixed${'\n    at a (b.js:1:1)'.repeat(9)}`;
  Object.defineProperty(fixed, 'stack', { value: stack, writable: false });

  shortenStacks(fixed);
  shortenStacks('no error');

  expect(fixed.stack).toBe(stack);
  expect(own.stack?.split('\n')).toHaveLength(4);
});
