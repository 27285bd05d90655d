import { expect, it } from '@jest/globals';
import { RequestTooLargeError } from 'nestjs-serving';
import { MessageMemory } from '../../../../lib/extensions/inference-protocol/client/infer-messages.js';

it('The memory of a message serves the next one of at most its size', () => {
  const memory = new MessageMemory();
  const first = memory.take(1000);
  memory.give(first);

  const second = memory.take(600);

  expect(second).toHaveLength(600);
  expect(second.buffer).toBe(first.buffer);
  memory.give(second);
  expect(memory.take(1000).buffer).toBe(first.buffer);
});

it('Messages at the same time, and larger ones, get memory of their own', () => {
  const memory = new MessageMemory();
  const first = memory.take(1000);
  memory.give(first);

  const buffers = [memory.take(1000), memory.take(1000), memory.take(10)];
  memory.give(buffers[2]!);

  expect(new Set(buffers.map(({ buffer }) => buffer)).size).toBe(3);
  expect(memory.take(1000)).toHaveLength(1000);
});

it('Memory of more than 16 MB is not kept', () => {
  const memory = new MessageMemory();
  const large = memory.take(16 * 2 ** 20 + 1);
  memory.give(large);

  expect(memory.take(10).buffer).not.toBe(large.buffer);
});

it('[19.7] More than a gRPC message can hold is refused, so that the batch runs in halves', () => {
  const memory = new MessageMemory();

  expect(() => memory.take(2 ** 32)).toThrow(RequestTooLargeError);
  expect(() => memory.take(2 ** 32)).toThrow('4294967296 bytes in a gRPC message');
});
