import 'reflect-metadata';
import { Body, type ArgumentMetadata, Injectable, type PipeTransform } from '@nestjs/common';
import { Tensor } from '../../internal.js';
import { type JsonLimits, ReadContext, readJson } from '../../encoding/json.js';

/**
 * Injects the body, or a property of it.
 * `{ "$tensor": { "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3] } }` becomes a `Tensor`
 * wherever it is, and `{ "$bigint": "123" }` a bigint. An invalid tensor is answered with status
 * 400 and its path.
 *
 * The application's pipes, such as a global ValidationPipe, run first and see the JSON.
 */
export function TensorBody(property?: string): ParameterDecorator {
  return (target, key, index) => {
    const body = property === undefined ? Body(TensorPipe) : Body(property, TensorPipe);
    body(target, key, index);
    hideTensorClass(target, key!, index);
  };
}

/** ValidationPipe would construct a tensor from JSON and fail. It ignores `Object`. */
function hideTensorClass(target: object, key: string | symbol, index: number): void {
  const types = Reflect.getMetadata('design:paramtypes', target, key) as unknown[] | undefined;
  if (types?.[index] === Tensor) {
    Reflect.defineMetadata('design:paramtypes', types.with(index, Object), target, key);
  }
}

/** The body parser has bounded the bytes. */
const limits: JsonLimits = {
  bytes: Infinity,
  tensors: Infinity,
  nodes: Infinity,
  rank: 16,
  depth: 64,
};

/**
 * Turns `{ "$tensor": ... }` anywhere in a body into a tensor, and `{ "$bigint": "123" }` into a
 * bigint.
 */
@Injectable()
export class TensorPipe implements PipeTransform<unknown, unknown> {
  /** @throws InvalidInputError */
  transform(value: unknown, { type }: ArgumentMetadata): unknown {
    return type === 'body' && typeof value === 'object' && value !== null
      ? readJson(
          value,
          new ReadContext({ limits, name: 'body', source: 'the request', allowsInstances: true }),
        )
      : value;
  }
}
