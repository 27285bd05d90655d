import 'reflect-metadata';
import { Body } from '@nestjs/common';
import { Tensor } from '../batch/tensor.js';
import { TensorPipe } from './tensor.pipe.js';

/**
 * The body of a request, or one property of it, with its tensors:
 * `{ "$tensor": { "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3] } }` becomes a `Tensor`
 * wherever it is, and `{ "$bigint": "123" }` a bigint. An invalid tensor is answered with status 400
 * and its path in the body.
 *
 * Pipes of the application, such as a global ValidationPipe, run before it and see the JSON.
 */
export function TensorBody(property?: string): ParameterDecorator {
  return (target, key, index) => {
    const body = property === undefined ? Body(TensorPipe) : Body(property, TensorPipe);
    body(target, key, index);
    hideTensorClass(target, key!, index);
  };
}

/** ValidationPipe would construct a tensor from the JSON, and fail. It leaves `Object` alone. */
function hideTensorClass(target: object, key: string | symbol, index: number): void {
  const types = Reflect.getMetadata('design:paramtypes', target, key) as unknown[] | undefined;
  if (types?.[index] === Tensor) {
    Reflect.defineMetadata('design:paramtypes', types.with(index, Object), target, key);
  }
}
