import {
  type sendUnaryData,
  Server,
  ServerCredentials,
  type ServerUnaryCall,
  type ServiceDefinition,
} from '@grpc/grpc-js';
import * as fc from 'fast-check';
import { createServing, isServingError, type LocalServing, Tensor } from 'nestjs-serving';
import { endpoint } from 'nestjs-serving/inference-protocol';
import type * as grpcService from '../../dist/esm/extensions/inference-protocol/wire/grpc-service.js';
import { mutated } from '../fixtures/values/mutated-bytes.js';
import { randomFrom } from '../chaos/random.js';
import type { Attack, Entry, Outcome } from './entry.js';

interface Request {
  readonly raw_input_contents: readonly Buffer[];
}

/** A model server that answers rows of a negative first element with garbage. */
export async function endpointAnswers(): Promise<Entry & { close(): Promise<void> }> {
  const { server, port } = await openServer();
  const serving: LocalServing<unknown, { readonly y: Tensor }> = createServing({
    name: 'remote',
    model: endpoint({ url: `grpc://127.0.0.1:${port}`, concurrency: 16 }),
    batchSize: 1,
    recovery: { restartDelay: 0, maxRestarts: Number.MAX_SAFE_INTEGER },
  });
  await serving.start();
  return {
    name: 'endpoint, answers',
    hostile: fc.integer({ min: 1, max: 2 ** 24 }).map((seed) => hostile(serving, seed)),
    valid: fc.nat({ max: 2 ** 20 }).map((n) => valid(serving, n)),
    async close() {
      await serving.close();
      server.forceShutdown();
    },
  };
}

const row = (first: number) => ({ x: new Tensor('float32', [first, 1], [1, 2]) });

function hostile(serving: LocalServing<unknown, { readonly y: Tensor }>, seed: number): Attack {
  return {
    async send(): Promise<Outcome> {
      try {
        const { y } = await serving.batchedRun(row(-seed));
        const elements = y.dims.reduce((product, size) => product * size, 1);
        return y.dims[0] === 1 && y.data.length === elements
          ? { word: 'read' }
          : { word: 'wrong', fault: `read the shape ${y.dims.join()} of ${y.data.length}` };
      } catch (error) {
        return isServingError(error)
          ? { word: error.code }
          : { word: 'untyped', fault: `failed with ${String(error)}` };
      }
    },
    toString: () => `a row whose answer has the seed ${seed}`,
  };
}

function valid(serving: LocalServing<unknown, { readonly y: Tensor }>, n: number): Attack {
  return {
    async send(): Promise<Outcome> {
      const { y } = await serving.batchedRun(row(n));
      return y.data[0] === 2 * n && y.data[1] === 2
        ? { word: 'right' }
        : { word: 'wrong', fault: `got ${y.data.join()}` };
    },
    toString: () => `a row of ${n}`,
  };
}

/** A server whose answers are written as bytes, so that they need not be messages. */
async function openServer(): Promise<{ readonly server: Server; readonly port: number }> {
  const file = new URL(
    '../../../../dist/esm/extensions/inference-protocol/wire/grpc-service.js',
    import.meta.url,
  ).href;
  const { loadInferenceService }: typeof grpcService = await import(file);
  const { service } = await loadInferenceService('The fuzzer');
  const infer = service['ModelInfer']!;
  const bytesOf = (answer: object): Buffer => infer.responseSerialize(answer);
  const definition: ServiceDefinition = {
    ModelReady: service['ModelReady']!,
    ModelMetadata: service['ModelMetadata']!,
    ModelInfer: { ...infer, responseSerialize: (bytes: Buffer) => bytes },
  };
  const server = new Server();
  server.addService(definition, {
    ModelReady: (_: unknown, reply: sendUnaryData<object>) => reply(null, { ready: true }),
    ModelMetadata: (_: unknown, reply: sendUnaryData<object>) =>
      reply(null, { inputs: [portOf('x')], outputs: [portOf('y')] }),
    ModelInfer: (
      { request }: ServerUnaryCall<Request, Buffer>,
      reply: sendUnaryData<Buffer>,
    ): void => {
      const [first] = new Float32Array(Uint8Array.from(request.raw_input_contents[0]!).buffer);
      const answer = first! < 0 ? garbage(-first!, bytesOf) : bytesOf(rightAnswer(2 * first!));
      if (Buffer.isBuffer(answer)) {
        reply(null, answer);
      } else {
        reply(answer);
      }
    },
  });
  const found = await new Promise<number>((resolve, reject) => {
    server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (error, bound) =>
      error ? reject(error) : resolve(bound),
    );
  });
  return { server, port: found };
}

const portOf = (name: string): object => ({ name, datatype: 'FP32', shape: [-1, 2] });

const floats = (...elements: readonly number[]): Buffer =>
  Buffer.from(Float32Array.from(elements).buffer);

function rightAnswer(first: number): object {
  return {
    model_name: 'remote',
    outputs: [{ name: 'y', datatype: 'FP32', shape: [1, 2] }],
    raw_output_contents: [floats(first, 2)],
  };
}

const NAMES = ['y', 'y', 'y', 'x', '', '__proto__', 'constructor', 'y'.repeat(1000)];
const TYPES = ['FP32', 'FP32', 'FP16', 'BF16', 'INT64', 'BOOL', 'BYTES', 'UINT4', '', 'toString'];
const SIZES = ['1', '2', '0', '-1', '3', '4294967296', '9223372036854775807', '65536'];

/** An answer that follows from the seed: mutated bytes, wrong tensors, or the status of an error. */
function garbage(
  seed: number,
  bytesOf: (answer: object) => Buffer,
): Buffer | { readonly code: number; readonly details: string } {
  const random = randomFrom(seed);
  const oneOf = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)]!;
  const some = <T>(make: () => T): T[] => Array.from({ length: Math.floor(random() * 4) }, make);
  const kind = random();
  if (kind < 0.02) {
    return { code: Math.floor(random() * 20) + 1, details: oneOf(['', 'larger than max', 'no']) };
  }
  if (kind < 0.5) {
    const [bytes] = mutated([bytesOf(rightAnswer(1))], 1, seed);
    return Buffer.from(bytes!);
  }
  return bytesOf({
    outputs: some(() => ({
      name: oneOf(NAMES),
      datatype: oneOf(TYPES),
      shape: some(() => oneOf(SIZES)),
      ...(random() < 0.3 && {
        contents: {
          fp32_contents: some(() => oneOf([1, NaN, Infinity, -0])),
          int64_contents: some(() => oneOf(SIZES)),
          bytes_contents: some(() => Buffer.from([oneOf([65, 0xff])])),
        },
      }),
    })),
    raw_output_contents: some(() => Buffer.alloc(Math.floor(random() * 12), seed % 256)),
  });
}
