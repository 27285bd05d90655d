import { afterAll, beforeAll, expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { defineServing, ServingModule } from 'nestjs-serving';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import { GrpcDoor } from '../../../lib/extensions/inference-protocol/server/grpc/grpc-door.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import {
  clientPrints,
  clientsMissing,
  perfAnalyzer,
} from '../../fixtures/http/inference-clients.js';
import { sums } from '../../fixtures/serving/sums.js';
import { sixOfEachType } from '../../fixtures/values/tensors.js';

const echoes = sixOfEachType
  .filter(({ type }) => !type.endsWith('int4'))
  .map(({ type }) =>
    defineServing({
      name: type,
      model: {
        useFactory: () => (rows: unknown) => rows,
        signature: { template: { x: { type, shape: [null, null] } } },
      },
    }),
  );

/** Answers after as many hundreds of milliseconds as its row says; a row of -1 fails. */
const waits = defineServing({
  name: 'waits',
  batchSize: 1,
  partitions: 4,
  model: {
    useFactory: () => async (rows: number[]) => {
      await new Promise((resolve) => setTimeout(resolve, 100 * rows[0]!));
      return rows.map((row) => (row < 0 ? new Error('a row is -1') : row));
    },
  },
});

/** Answers never, for clients with a deadline. */
const slow = defineServing({
  name: 'slow',
  model: { useFactory: () => () => new Promise<number[]>(() => {}) },
  shutdown: { timeout: 100 },
});

/** Counts from 0 up to its row. */
const count = defineServing({
  name: 'count',
  model: {
    useFactory: () =>
      function* (rows: number[]) {
        for (let n = 0; n < rows[0]!; n++) {
          yield rows.map(() => n);
        }
      },
  },
});

const ofNumber = (serving: string) => ({
  serving,
  inputs: { n: 'INT32' },
  outputs: { value: 'INT32' },
});

const measure = (address: string, model: string, ...more: string[]): Promise<string> =>
  perfAnalyzer('-u', address, '-i', 'grpc', '-m', model, '--request-count', '100', ...more);

describeUnless(clientsMissing, 'Clients of the Open Inference Protocol over gRPC', () => {
  let app: INestApplication;
  let address: string;

  beforeAll(async () => {
    const digits = defineServing({ name: 'digits', model: 'sample/01-digits/model/digits.onnx' });
    const servings = [digits, sums, waits, slow, count, ...echoes];
    const module = await Test.createTestingModule({
      imports: [
        ServingModule.forRoot({ servings }),
        InferenceProtocolModule.forRoot({
          servings: [
            'digits',
            { serving: 'sums', inputs: { n: 'INT32' }, outputs: { sum: 'INT64' } },
            ofNumber('waits'),
            ofNumber('slow'),
            { ...ofNumber('count'), decoupled: true },
            ...echoes.map(({ name }) => name),
          ],
          grpc: { port: 0, host: '127.0.0.1' },
        }),
      ],
    }).compile();
    app = module.createNestApplication();
    await app.init();
    address = `127.0.0.1:${app.get(GrpcDoor).port}`;
  });
  afterAll(() => app.close());

  it('[18.16] the gRPC client of Triton works with it', async () => {
    const seen = await clientPrints('client', 'triton_grpc.py', address);
    const types = ['BOOL', 'BYTES', 'FP16', 'FP32', 'FP64', 'BF16'].concat(
      [8, 16, 32, 64].flatMap((bits) => [`INT${bits}`, `UINT${bits}`]),
    );

    expect(seen).toEqual({
      live: true,
      ready: true,
      model_ready: true,
      server: 'nestjs-serving',
      metadata: ['onnxruntime_onnx', [[-1, 784]]],
      config: [32, [784], 11],
      index: ['bool', 'count'],
      rows: [[5, 10], 'a'],
      sums: true,
      compressed: { gzip: true, deflate: true },
      types: Object.fromEntries(types.map((type) => [type, true])),
      sequence: [
        1,
        4,
        3,
        ['StatusCode.INVALID_ARGUMENT', expect.stringContaining('has no open sequence')],
      ],
      parameters: [5, 10],
      errors: [
        ['StatusCode.NOT_FOUND', expect.stringContaining('There is no model "nix"')],
        ['StatusCode.INVALID_ARGUMENT', expect.stringContaining('has the shape [5, 783]')],
        ['StatusCode.INVALID_ARGUMENT', expect.stringContaining('"image" is missing')],
        ['StatusCode.DEADLINE_EXCEEDED', expect.any(String)],
        ['StatusCode.UNIMPLEMENTED', expect.stringContaining('cannot load or unload')],
        ['StatusCode.UNIMPLEMENTED', expect.any(String)],
      ],
      streams: {
        single: [
          ['a', [3], true],
          ['b', [1], true],
          ['c', [2], true],
        ],
        decoupled: [
          ['a', [0], false],
          ['a', [1], false],
          ['a', [], true],
        ],
        'without end': [
          ['a', [0], false],
          ['a', [1], false],
        ],
        error: [
          ['error', expect.stringContaining('Internal Server Error')],
          ['b', [2], true],
        ],
      },
      statistics: ['digits', true],
    });
  });

  it('[18.16] the gRPC client of KServe works with it', async () => {
    const reply = ['probabilities', [3, 10], true];
    expect(await clientPrints('kserve', 'kserve_grpc.py', address)).toEqual({
      live: true,
      ready: true,
      model_ready: true,
      'infer True': reply,
      'infer False': reply,
    });
  });

  it('[18.16] perf_analyzer measures it by gRPC, in single calls, streams and sequences', async () => {
    expect(await measure(address, 'digits', '-b', '4', '--concurrency-range', '3')).toContain(
      'Batch size: 4',
    );
    expect(
      await measure(address, 'digits', '--streaming', '--async', '--concurrency-range', '2'),
    ).toContain('Concurrency: 2');
    expect(
      await measure(address, 'sums', '--shape', 'n:1', '--streaming', '--concurrency-range', '2'),
    ).toContain('Concurrency: 2');
  });
});
