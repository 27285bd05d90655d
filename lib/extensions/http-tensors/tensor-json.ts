import 'reflect-metadata';
import {
  type ArgumentMetadata,
  Body,
  type CallHandler,
  type ExecutionContext,
  Injectable,
  type NestInterceptor,
  Optional,
  type PipeTransform,
  StreamableFile,
} from '@nestjs/common';
import { map, type Observable } from 'rxjs';
import { formatValue, InvalidServingError } from '../../doors/text.js';
import { Tensor } from '../../doors/values.js';
import type { TensorForm } from '../../encoding/json-tensor.js';
import { type JsonLimits, ReadContext, readJson, writeTensors } from '../../encoding/json.js';

/** Options of {@link TensorJsonInterceptor}. */
export interface TensorJsonOptions {
  /**
   * How to write elements: as a list of numbers, which every client reads, or as base64 of their
   * little-endian bytes, which is faster and smaller. Strings and booleans are always lists.
   *
   * @default 'list'
   */
  readonly tensors?: TensorForm;
}

/**
 * Writes tensors, typed arrays and bigints in HTTP replies as JSON: `{ "$tensor": { "shape": [1,
 * 3], "datatype": "FP32", "data": [1, 2, 3] } }`. Other values and binary replies stay unchanged.
 */
@Injectable()
export class TensorJsonInterceptor implements NestInterceptor {
  private readonly form: TensorForm;

  /** @throws InvalidServingError for an unknown form */
  constructor(@Optional() { tensors = 'list' }: TensorJsonOptions = {}) {
    if (tensors !== 'list' && tensors !== 'base64') {
      throw new InvalidServingError(
        `TensorJsonInterceptor: option "tensors" is ${formatValue(tensors)}; allowed is "list" or ` +
          '"base64"',
      );
    }
    this.form = tensors;
  }

  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    const replies$ = next.handle();
    return context.getType() === 'http'
      ? replies$.pipe(map((reply) => this.write(reply)))
      : replies$;
  }

  private write(reply: unknown): unknown {
    if (reply instanceof Uint8Array || reply instanceof StreamableFile) {
      return reply;
    }
    return isStreamedReply(reply)
      ? mapStreamedReply(reply, (item) => this.write(item))
      : writeTensors(reply, this.form);
  }
}

/** Nest sends other async iterables as lines of JSON. */
function isStreamedReply(reply: unknown): reply is AsyncIterable<unknown> {
  return (
    typeof reply === 'object' &&
    reply !== null &&
    Symbol.asyncIterator in reply &&
    !('getReader' in reply) &&
    !('pipe' in reply && typeof reply.pipe === 'function' && 'readable' in reply)
  );
}

function mapStreamedReply(
  reply: AsyncIterable<unknown>,
  change: (item: unknown) => unknown,
): AsyncIterable<unknown> {
  return {
    [Symbol.asyncIterator](): AsyncIterator<unknown> {
      const items = reply[Symbol.asyncIterator]();
      return {
        async next() {
          const { done, value } = await items.next();
          return done ? { done, value } : { done: false, value: change(value) };
        },
        // A generator would end it only after the pending item.
        async return(value: unknown) {
          await items.return?.(value);
          return { done: true, value };
        },
      };
    },
  };
}

/**
 * Injects the body, or a property of it. `{ "$tensor": { "shape": [1, 3], "datatype": "FP32",
 * "data": [1, 2, 3] } }` becomes a `Tensor` anywhere, and `{ "$bigint": "123" }` a bigint. An
 * invalid tensor is answered with status 400 and its path.
 *
 * Global pipes, such as a ValidationPipe, run first and see the JSON.
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
