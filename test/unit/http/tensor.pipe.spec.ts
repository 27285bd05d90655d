import { expect, it } from '@jest/globals';
import { Tensor } from 'nestjs-serving';
import { TensorPipe } from '../../../lib/extensions/http-tensors/tensor-json.js';

const pipe = new TensorPipe();
const json = { $tensor: { shape: [1], datatype: 'FP32', data: [1] } };

class Inner {
  constructor(readonly vector: unknown) {}
}

it('[10.6] Only bodies are read', () => {
  expect(pipe.transform(json, { type: 'body' })).toBeInstanceOf(Tensor);
  for (const type of ['query', 'param', 'custom'] as const) {
    expect(pipe.transform(json, { type })).toBe(json);
  }
});

it.each([['text'], [1], [undefined], [null]])(
  '[10.6] A body that is no object is left: %j',
  (body) => {
    expect(pipe.transform(body, { type: 'body' })).toBe(body);
  },
);

it('[10.6] Objects of classes keep their class, and those with a content of their own are left', () => {
  const [date, bytes, map] = [new Date(0), Buffer.from('a'), new Map([['$tensor', 1]])];
  const inner = new Inner(json);

  const body = pipe.transform({ inner, date, bytes, map }, { type: 'body' }) as {
    readonly inner: Inner;
  };

  expect(body).toEqual({ inner: expect.any(Inner), date, bytes, map });
  expect(body.inner.vector).toBeInstanceOf(Tensor);
  expect(pipe.transform(bytes, { type: 'body' })).toBe(bytes);
});

it('[10.6] A name that looks like a tag is written with another $', () => {
  expect(pipe.transform({ $$tensor: 1 }, { type: 'body' })).toEqual({ $tensor: 1 });
});
