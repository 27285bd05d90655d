import { describe, expect, it } from '@jest/globals';
import {
  BoundedReplies,
  AnyMessage,
} from '../../../../../lib/extensions/distribution/transports/nats/nats.transport.js';

const codec = new AnyMessage();

describe.each([
  ['bytes, as Nest 11 gives them', (data: Uint8Array) => data],
  [
    'a message, as Nest 12 gives it',
    (data: Uint8Array) => ({
      data,
      json: () => JSON.parse(Buffer.from(data).toString()) as unknown,
    }),
  ],
])('The NATS codec, from %s', (_, wrapped) => {
  const read = (text: string, circumstances?: object): unknown =>
    codec.deserialize(wrapped(Buffer.from(text)), circumstances);

  it('[11] Messages of Nest are kept', () => {
    expect(read('{"pattern":"p","data":[1],"id":"7"}', { channel: 'c', replyTo: 'r' })).toEqual({
      pattern: 'p',
      data: [1],
      id: '7',
    });
    expect(read('{"pattern":"p","data":[1]}', { channel: 'c' })).toEqual({
      pattern: 'p',
      data: [1],
    });
  });

  it('[11] Other messages are data, and requests when they have a reply subject', () => {
    expect(read('[1,2]', { channel: 'c', replyTo: 'r' })).toEqual({
      pattern: 'c',
      id: 'r',
      data: [1, 2],
    });
    expect(read('{"x":1}', { channel: 'c' })).toEqual({ pattern: 'c', data: { x: 1 } });
    expect(read('null')).toEqual({ pattern: undefined, data: null });
  });

  it.each(['', 'banana', '{'])('[11] %j is no message', (text) => {
    expect(() => read(text)).toThrow(SyntaxError);
  });
});

it('[11] A message without bytes is refused', () => {
  expect(() => codec.deserialize({})).toThrow('A message of NATS without its bytes');
});

it('[11] A reply too large for the server is replaced by an error', () => {
  const reply = { response: 'ä'.repeat(10), isDisposed: true, id: '7' };
  const bytes = Buffer.byteLength(JSON.stringify(reply));
  const written = (most: number): unknown =>
    JSON.parse(Buffer.from(new BoundedReplies(() => most).serialize(reply).data).toString());

  expect(written(bytes)).toEqual(reply);
  expect(written(bytes - 1)).toEqual({
    id: '7',
    err: expect.objectContaining({
      code: 'SERVING_INVALID_OUTPUT',
      message: `The reply has ${bytes} bytes, where the NATS server takes at most ${bytes - 1}`,
    }),
    isDisposed: true,
  });
});
