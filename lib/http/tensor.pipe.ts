import { type ArgumentMetadata, Injectable, type PipeTransform } from '@nestjs/common';
import { type JsonLimits, ReadContext } from '../json/read-context.js';
import { readJson } from '../json/read-json.js';

/** The body parser has limited the bytes before, and with them all counts. */
const limits: JsonLimits = {
  bytes: Infinity,
  tensors: Infinity,
  nodes: Infinity,
  rank: 16,
  depth: 64,
};

/**
 * Makes tensors of `{ "$tensor": { "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3] } }`
 * wherever they are in the body of a request, and bigints of `{ "$bigint": "123" }`. An invalid
 * tensor is answered with status 400 and its path in the body.
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
