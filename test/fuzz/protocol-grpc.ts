import type { INestApplication } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { type Client, credentials, type ServiceError, status } from '@grpc/grpc-js';
import * as fc from 'fast-check';
import { defineServing, ServingModule } from 'nestjs-serving';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import type * as doors from '../../dist/esm/extensions/inference-protocol/server/grpc/grpc-door.js';
import type * as grpcService from '../../dist/esm/extensions/inference-protocol/wire/grpc-service.js';
import { mutated } from '../fixtures/values/mutated-bytes.js';
import { randomFrom } from '../chaos/random.js';
import type { Attack, Entry, Outcome } from './entry.js';

const echo = (rows: unknown): unknown => rows;
const servings = ['wholes', 'texts'].map((name) =>
  defineServing({
    name,
    model: {
      useFactory: () => echo,
      signature: {
        template: { x: { type: name === 'wholes' ? 'int64' : 'string', shape: [null, null] } },
      },
    },
  }),
);

/** The statuses that a hostile request may end with. */
const ALLOWED = new Map([
  [3, 'INVALID_ARGUMENT'],
  [4, 'DEADLINE_EXCEEDED'],
  [5, 'NOT_FOUND'],
  [8, 'RESOURCE_EXHAUSTED'],
  [12, 'UNIMPLEMENTED'],
  [14, 'UNAVAILABLE'],
]);

/** Calls the gRPC door of an application with bytes that need not be messages. */
export async function protocolOverGrpc(): Promise<Entry & { close(): Promise<void> }> {
  const app = await open();
  const { loadInferenceService } = await load<typeof grpcService>(
    'extensions/inference-protocol/wire/grpc-service.js',
  );
  const { GrpcDoor } = await load<typeof doors>(
    'extensions/inference-protocol/server/grpc/grpc-door.js',
  );
  const service = await loadInferenceService('The fuzzer');
  const { port } = app.get(GrpcDoor, { strict: false });
  const client = new service(`127.0.0.1:${port}`, credentials.createInsecure());
  const { path, requestSerialize, responseDeserialize } = service.service['ModelInfer']!;
  const infer = (bytes: Buffer): Promise<Reply> =>
    call(client, path, bytes, responseDeserialize as (bytes: Buffer) => Reply);
  const hostile = (seed: number): Attack => ({
    send: () => answerTo(infer(garbage(seed, requestSerialize))),
    toString: () => `a request of the seed ${seed}`,
  });
  const valid = (n: number): Attack => ({
    async send() {
      const { raw_output_contents: raw } = await infer(requestSerialize(rightRequest(n)));
      return raw[0]!.readBigInt64LE() === BigInt(n)
        ? { word: 'right' }
        : { word: 'wrong', fault: 'came back as another number' };
    },
    toString: () => `a row of ${n}`,
  });
  return {
    name: 'inference protocol, gRPC',
    hostile: fc.integer({ min: 1 }).map(hostile),
    valid: fc.nat().map(valid),
    async close() {
      client.close();
      await app.close();
    },
  };
}

const load = <T>(file: string): Promise<T> =>
  import(new URL(`../../../../dist/esm/${file}`, import.meta.url).href) as Promise<T>;

interface Reply {
  readonly raw_output_contents: readonly Buffer[];
}

async function open(): Promise<INestApplication> {
  const module = {
    module: class {},
    imports: [
      ServingModule.forRoot({ servings }),
      InferenceProtocolModule.forRoot({
        bodyLimit: 2 ** 20,
        grpc: { port: 0, host: '127.0.0.1' },
      }),
    ],
  };
  const app = await NestFactory.create(module, { logger: false });
  await app.init();
  return app;
}

function call(
  client: Client,
  path: string,
  bytes: Buffer,
  read: (bytes: Buffer) => Reply,
): Promise<Reply> {
  return new Promise((resolve, reject) => {
    client.makeUnaryRequest(
      path,
      (given: Buffer) => given,
      read,
      bytes,
      (error, reply) => (error ? reject(error) : resolve(reply!)),
    );
  });
}

async function answerTo(reply: Promise<Reply>): Promise<Outcome> {
  try {
    await reply;
    return { word: 'answered' };
  } catch (error) {
    const { code, details } = error as ServiceError;
    // Bytes that are no message do not get as far as the door.
    if (code === status.INTERNAL && details.startsWith('Error deserializing request')) {
      return { word: 'no message' };
    }
    const word = ALLOWED.get(code);
    return word === undefined
      ? { word: String(code), fault: `failed with ${code}: ${details}` }
      : { word };
  }
}

function rightRequest(n: number): object {
  const raw = Buffer.alloc(8);
  raw.writeBigInt64LE(BigInt(n));
  return {
    model_name: 'wholes',
    inputs: [{ name: 'x', datatype: 'INT64', shape: [1, 1] }],
    raw_input_contents: [raw],
  };
}

const NAMES = ['x', 'x', 'y', '', '__proto__', 'constructor', 'x'.repeat(5000)];
const TYPES = ['INT64', 'INT64', 'BYTES', 'FP32', 'FP16', 'BF16', 'BOOL', 'UINT4', '', 'toString'];
const SIZES = ['1', '2', '0', '-1', '4294967296', '9223372036854775807', '65536'];
const PARAMETERS = ['priority', 'timeout', 'sequence_id', 'sequence_start', 'content_type', 'a'];

/** A request that follows from the seed: mutated bytes, or a message of wrong parts. */
function garbage(seed: number, bytesOf: (request: object) => Buffer): Buffer {
  const random = randomFrom(seed);
  const oneOf = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)]!;
  const some = <T>(make: () => T): T[] => Array.from({ length: Math.floor(random() * 4) }, make);
  if (random() < 0.4) {
    const [bytes] = mutated([bytesOf(rightRequest(seed))], 1, seed);
    return Buffer.from(bytes!);
  }
  const parameters = (): object =>
    Object.fromEntries(
      some(() => [
        oneOf(PARAMETERS),
        oneOf<object>([
          { int64_param: oneOf(SIZES) },
          { uint64_param: '18446744073709551615' },
          { string_param: oneOf(NAMES) },
          { double_param: oneOf([NaN, -0.5, Infinity]) },
          { bool_param: true },
          {},
        ]),
      ]),
    );
  return bytesOf({
    model_name: oneOf(['wholes', 'wholes', 'texts', ...NAMES]),
    model_version: oneOf(['', '', '1', '\0']),
    id: oneOf(NAMES),
    parameters: parameters(),
    inputs: some(() => ({
      name: oneOf(NAMES),
      datatype: oneOf(TYPES),
      shape: some(() => oneOf(SIZES)),
      parameters: parameters(),
      ...(random() < 0.4 && {
        contents: {
          int64_contents: some(() => oneOf(SIZES)),
          fp32_contents: some(() => NaN),
          bytes_contents: some(() => Buffer.from([oneOf([65, 0xff])])),
        },
      }),
    })),
    outputs: some(() => ({ name: oneOf(NAMES), parameters: parameters() })),
    raw_input_contents: some(() => Buffer.alloc(Math.floor(random() * 20), seed & 255)),
  });
}
