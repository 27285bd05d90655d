import { expect, it } from '@jest/globals';
import { StreamableFile } from '@nestjs/common';
import { ExecutionContextHost } from '@nestjs/core/helpers/execution-context-host.js';
import { firstValueFrom, of } from 'rxjs';
import { Readable } from 'node:stream';
import { TensorJsonInterceptor } from '../../../lib/extensions/http-tensors/tensor-json.js';
import { floats } from '../../fixtures/values/tensors.js';

const written = { $tensor: { shape: [1], datatype: 'FP32', data: [1] } };

/** The reply that Nest gets for this one of the handler. */
function sent(reply: unknown, type = 'http'): Promise<unknown> {
  const context = new ExecutionContextHost([]);
  context.setType(type);
  return firstValueFrom(
    new TensorJsonInterceptor().intercept(context, { handle: () => of(reply) }),
  );
}

it('[10.6] Only replies over HTTP are written', async () => {
  const reply = { vector: floats([1], [1]) };

  expect(await sent(reply)).toEqual({ vector: written });
  expect(await sent(reply, 'rpc')).toBe(reply);
});

it.each<[string, unknown]>([
  ['plain data', { list: [1, 'a', null, undefined, { inner: true }] }],
  ['a list', [1, 2]],
  ['a file', new StreamableFile(Buffer.from('a'))],
  ['a Buffer', Buffer.from('a')],
  ['a Uint8Array', Uint8Array.of(1)],
  ['a stream of Node', Readable.from(['a'])],
  ['a web stream', new ReadableStream()],
  ['a map', new Map([['vector', floats([1], [1])]])],
])('[10.6] A reply without tensors is not copied: %s', async (_, reply) => {
  expect(await sent(reply)).toBe(reply);
});

it('[10.6] A reply with a tensor is copied, and the original is unchanged', async () => {
  const vector = floats([1], [1]);
  const other = { list: [1] };
  const reply = { vector, other, list: [vector, other] };

  const copy = await sent(reply);

  expect(copy).toEqual({ vector: written, other, list: [written, other] });
  expect(copy).toHaveProperty('other', other);
  expect(reply).toEqual({ vector, other, list: [vector, other] });
});

it('[10.6] An object in two places of a reply is written in both', async () => {
  const shared = { vector: floats([1], [1]) };

  expect(await sent([shared, { shared }])).toEqual([
    { vector: written },
    { shared: { vector: written } },
  ]);
});

it('[10.6] Ending a streamed reply ends the original at once, also while it waits for an item', async () => {
  let isEnded = false;
  const waiting = {
    [Symbol.asyncIterator]: () => ({
      next: () => new Promise<never>(() => {}),
      return: async () => {
        isEnded = true;
        return { done: true, value: undefined };
      },
    }),
  };
  const reply = (await sent(waiting)) as AsyncIterable<unknown>;
  const items = reply[Symbol.asyncIterator]();
  void items.next();

  await items.return!();
  expect(isEnded).toBe(true);
});
