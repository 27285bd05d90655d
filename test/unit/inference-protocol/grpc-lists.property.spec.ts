import { beforeAll, describe, expect, it } from '@jest/globals';
import type { MethodDefinition } from '@grpc/grpc-js';
import * as fc from 'fast-check';
import {
  type GrpcInferRequest,
  loadInferenceService,
  withLimitOfLists,
} from '../../../lib/extensions/inference-protocol/wire/grpc-service.js';

type Infer = MethodDefinition<object, unknown> & MethodDefinition<GrpcInferRequest, unknown>;

const tensors = fc.record({
  name: fc.string(),
  datatype: fc.constantFrom('FP32', 'INT32', 'BYTES'),
  shape: fc.array(fc.nat(), { maxLength: 3 }),
  contents: fc.record({
    fp32_contents: fc.array(fc.float({ noNaN: true })),
    int_contents: fc.array(fc.integer()),
    bytes_contents: fc.array(fc.uint8Array().map((bytes) => Buffer.from(bytes))),
  }),
});
const requests = fc.record({
  model_name: fc.string(),
  model_version: fc.string(),
  id: fc.string(),
  parameters: fc.dictionary(
    fc.string({ minLength: 1 }).filter((name) => name !== '__proto__'),
    fc.record({ string_param: fc.string() }),
  ),
  inputs: fc.array(tensors, { maxLength: 3 }),
  raw_input_contents: fc.array(
    fc.uint8Array({ maxLength: 5000 }).map((bytes) => Buffer.from(bytes)),
    { maxLength: 3 },
  ),
});
/** Fields that the protocol does not have, of each type on the wire. */
const unknown = fc.constantFrom(
  [],
  [0x78, 1],
  [0x79, ...Array<number>(8).fill(1)],
  [0x7a, 2, 1, 1],
  [0x7d, 1, 1, 1, 1],
  [0x7b, 0x7c],
);

let infer: Infer;
beforeAll(async () => {
  infer = (await loadInferenceService('A test')).service['ModelInfer'] as Infer;
});

const limited = (limit: number): Infer =>
  withLimitOfLists({ ModelInfer: infer, ModelStreamInfer: infer }, limit)['ModelInfer'] as Infer;

describe('The limit of lists in requests over gRPC', () => {
  it('[FZ2] Requests up to the limit are decoded as ever, and larger ones have their model and id alone', () => {
    fc.assert(
      fc.property(
        requests,
        unknown,
        fc.integer({ min: 100, max: 9000 }),
        (request, more, limit) => {
          const message = Buffer.concat([infer.requestSerialize(request), Buffer.from(more)]);
          const whole = infer.requestDeserialize(message);
          const raw = request.raw_input_contents;
          const others = infer.requestSerialize({ ...request, raw_input_contents: [] }).length;
          const cost = others + more.length + raw.length * 1024;

          const decoded = limited(limit).requestDeserialize(message);

          const { model_name, model_version, id } = whole as GrpcInferRequest;
          expect(decoded).toEqual(
            cost > limit
              ? {
                  ...infer.requestDeserialize(
                    infer.requestSerialize({ model_name, model_version, id }),
                  ),
                  isUndecoded: true,
                }
              : whole,
          );
        },
      ),
    );
  });

  it('[FZ2] Bytes that are no request are left to the decoder, or not read at all', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
        const message = Buffer.from(bytes);
        const outcome = (method: Infer): unknown => {
          try {
            return method.requestDeserialize(message);
          } catch (error) {
            return String(error);
          }
        };
        expect(outcome(limited(400_000))).toEqual(outcome(infer));
        if (message.length > 40) {
          expect([String(outcome(limited(20))), '[object Object]']).toContain('[object Object]');
        }
      }),
    );
  });
});
