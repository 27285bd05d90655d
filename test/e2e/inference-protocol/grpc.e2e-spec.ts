import { getEventListeners, once } from 'node:events';
import { connect as openSocket } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import {
  type CanActivate,
  type ExecutionContext,
  ForbiddenException,
  type INestApplication,
  Injectable,
  Logger,
  UnauthorizedException,
} from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { Test } from '@nestjs/testing';
import {
  type ClientDuplexStream,
  credentials,
  type Client,
  loadPackageDefinition,
  Metadata,
  type ServiceClientConstructor,
  type ServiceError,
} from '@grpc/grpc-js';
import { load } from '@grpc/proto-loader';
import {
  createServing,
  defineServing,
  ServingModule,
  ServingService,
  Tensor,
} from 'nestjs-serving';
import { endpoint } from 'nestjs-serving/inference-protocol';
import {
  InferenceProtocolModule,
  type InferenceProtocolOptions,
} from 'nestjs-serving/inference-protocol';
import { GrpcDoor } from '../../../lib/extensions/inference-protocol/server/grpc/grpc-door.js';
import {
  ProtocolCalls,
  type StreamMessage,
} from '../../../lib/extensions/inference-protocol/server/grpc/protocol-calls.js';
import {
  type GrpcInferRequest,
  type GrpcInferResponse,
  loadInferenceService,
} from '../../../lib/extensions/inference-protocol/wire/grpc-service.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { until } from '../../fixtures/async/awaited.js';
import { describeWithCertificate } from '../../fixtures/cluster/certificates.js';
import { sums } from '../../fixtures/serving/sums.js';

const digits = defineServing({ name: 'digits', model: 'sample/01-digits/model/digits.onnx' });
const held = new HeldFunction<number>();
const release = (): void =>
  held.batches.splice(0).forEach(({ rows, finish }) => finish(rows.map(String)));

/** As long a text as its row says. */
const wide = defineServing({
  name: 'wide',
  model: { useFactory: () => (rows: number[]) => rows.map((row) => 'x'.repeat(row)) },
});
const count = defineServing({
  name: 'count',
  model: {
    useFactory: () =>
      function* (rows: number[]) {
        try {
          for (let n = 0; n < rows[0]!; n++) {
            yield rows.map(() => `${n}`.padEnd(50_000));
          }
        } finally {
          hasCounted = true;
        }
      },
  },
});
/** Whether the generator of `count` has ended. */
let hasCounted = false;

@Injectable()
class KeyGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const metadata = context.switchToRpc().getContext<Metadata>();
    if (metadata.get('x-key')[0] !== 'right') {
      throw new UnauthorizedException('Give the header x-key');
    }
    return true;
  }
}

@Injectable()
class LongGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    if (context.switchToRpc().getContext<Metadata>().get('x-long').length > 0) {
      throw new ForbiddenException('😀'.repeat(50_000));
    }
    return true;
  }
}

@Injectable()
class NoGuard implements CanActivate {
  canActivate(): boolean {
    return false;
  }
}

const image = (rows: number): Partial<GrpcInferRequest> => ({
  model_name: 'digits',
  inputs: [{ name: 'image', datatype: 'FP32', shape: [rows, 784] }],
  raw_input_contents: [Buffer.alloc(rows * 784 * 4)],
});
const number = (model: string, n: number, id = ''): Partial<GrpcInferRequest> => ({
  model_name: model,
  id,
  inputs: [{ name: 'n', datatype: 'INT32', shape: [1], contents: { int_contents: [n] } }],
});

/** Images with their elements in a list. */
const listedImages = (rows: number) => [
  {
    name: 'image',
    datatype: 'FP32',
    shape: [rows, 784],
    contents: { fp32_contents: Array<number>(784 * rows).fill(0) },
  },
];

const codeOf = async (running: Promise<unknown>): Promise<number | undefined> =>
  ((await failureOf(running)) as ServiceError | undefined)?.code;

describe('The gRPC door of the Open Inference Protocol', () => {
  const clients: Client[] = [];
  let app: INestApplication | undefined;
  let service: ServiceClientConstructor;

  beforeEach(async () => {
    Logger.overrideLogger(false);
    service = await loadInferenceService('A test');
  });
  afterEach(async () => {
    clients.splice(0).forEach((client) => client.close());
    release();
    await app?.close();
    app = undefined;
  });

  const open = async (
    options: InferenceProtocolOptions = {},
    providers: object[] = [],
  ): Promise<Client> => {
    const module = await Test.createTestingModule({
      imports: [
        ServingModule.forRoot({
          servings: [
            digits,
            wide,
            count,
            sums,
            { name: 'held', model: { useFactory: held.useFactory } },
            {
              name: 'narrow',
              model: { useFactory: held.useFactory },
              batchSize: 1,
              queue: { maxRows: 1 },
            },
          ],
        }),
        InferenceProtocolModule.forRoot({
          servings: [
            'digits',
            ...['wide', 'held', 'narrow'].map((serving) => ({
              serving,
              inputs: { n: 'INT32' },
              outputs: { text: 'BYTES' },
            })),
            {
              serving: 'count',
              inputs: { n: 'INT32' },
              outputs: { text: 'BYTES' },
              decoupled: true,
            },
          ],
          grpc: { port: 0, host: '127.0.0.1' },
          ...options,
        }),
      ],
      providers: providers as never,
    }).compile();
    app = module.createNestApplication();
    await app.init();
    return connect();
  };
  const connect = (): Client => {
    const client = new service(
      `127.0.0.1:${app!.get(GrpcDoor).port}`,
      credentials.createInsecure(),
      {
        'grpc.use_local_subchannel_pool': 1,
      },
    );
    clients.push(client);
    return client;
  };
  const call = <Reply = GrpcInferResponse>(
    client: Client,
    method: string,
    request: object = {},
    { headers = {}, deadline }: { headers?: Record<string, string>; deadline?: number } = {},
  ): Promise<Reply> => {
    const { path, requestSerialize, responseDeserialize } = service.service[method]!;
    const metadata = new Metadata();
    Object.entries(headers).forEach(([name, value]) => metadata.set(name, value));
    return new Promise((resolve, reject) => {
      client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        metadata,
        deadline === undefined ? {} : { deadline },
        (error, reply) => (error ? reject(error) : resolve(reply as Reply)),
      );
    });
  };
  const streamOf = (
    client: Client,
    headers: Record<string, string> = {},
  ): ClientDuplexStream<object, StreamMessage> => {
    const { path, requestSerialize, responseDeserialize } = service.service['ModelStreamInfer']!;
    const metadata = new Metadata();
    Object.entries(headers).forEach(([name, value]) => metadata.set(name, value));
    return client.makeBidiStreamRequest(
      path,
      requestSerialize,
      responseDeserialize as (bytes: Buffer) => StreamMessage,
      metadata,
    );
  };
  const cancelledOf = (name: string): number =>
    app!.get(ServingService).get(name).counters()!.failed['SERVING_CANCELLED'] ?? 0;
  /** A call of `ModelInfer`, how to cancel it, and the code that it ends with. */
  const cancellable = (request: object) => {
    const { path, requestSerialize, responseDeserialize } = service.service['ModelInfer']!;
    let cancel!: () => void;
    const left = new Promise<number | undefined>((resolve) => {
      const running = connect().makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        (error) => resolve(error?.code),
      );
      cancel = () => running.cancel();
    });
    return { cancel, left };
  };

  it('[P11] Elements of BYTES that are not UTF-8 cross in raw and in listed contents', async () => {
    const client = await open({
      servings: [{ serving: 'held', inputs: { image: 'BYTES' }, outputs: { same: 'BYTES' } }],
    });
    const jpeg = Buffer.from([0xff, 0xd8, 0xff, 0xe0, 0, 0x10]);
    const raw = Buffer.concat([Buffer.from([6, 0, 0, 0]), jpeg]);
    const input = { name: 'image', datatype: 'BYTES', shape: [1, 1] };
    const send = async (request: object) => {
      const reply = call(client, 'ModelInfer', { model_name: 'held', ...request });
      const failed = failureOf(reply).then((error) => error && Promise.reject(error as Error));
      await Promise.race([until(() => held.batches.length === 1), failed]);
      const { rows, finish } = held.next();
      held.batches.length = 0;
      finish(rows);
      return (await reply).raw_output_contents;
    };

    expect(await send({ inputs: [input], raw_input_contents: [raw] })).toEqual([raw]);
    expect(await send({ inputs: [{ ...input, contents: { bytes_contents: [jpeg] } }] })).toEqual([
      raw,
    ]);
  });

  it('[18.2] answers a request of several rows with raw contents', async () => {
    const client = await open();
    const reply = await call(client, 'ModelInfer', { ...image(3), id: 'a' });
    expect([reply.model_name, reply.model_version, reply.id]).toEqual(['digits', '1', 'a']);
    expect(reply.outputs).toEqual([
      expect.objectContaining({ name: 'probabilities', datatype: 'FP32', shape: ['3', '10'] }),
    ]);
    expect(reply.raw_output_contents[0]!.length).toBe(3 * 10 * 4);
  });

  it('[18.4] [18.5] has the gRPC status for each error', async () => {
    const client = await open();
    const infer = (request: object) => codeOf(call(client, 'ModelInfer', request));
    const twice = { name: 'probabilities' };
    const shared = { shared_memory_region: { string_param: 'a' } };
    const tensor = { name: 'image', datatype: 'FP32', shape: [1, 784] };

    expect(await infer({ ...image(1), model_name: 'nix' })).toBe(5);
    expect(await infer({ ...image(1), model_version: '7' })).toBe(5);
    expect(await infer({ ...image(1), raw_input_contents: [Buffer.alloc(3)] })).toBe(3);
    expect(
      await infer({ ...image(1), inputs: [{ ...tensor, contents: { fp32_contents: [1] } }] }),
    ).toBe(3);
    expect(await infer({ model_name: 'digits', inputs: [{ ...tensor, parameters: shared }] })).toBe(
      12,
    );
    expect(await infer({ ...image(1), parameters: { timeout: { string_param: 'x' } } })).toBe(3);
    expect(await infer({ model_name: 'count', ...number('count', 1) })).toBe(12);
    await expect(
      call(client, 'ModelInfer', { ...image(1), outputs: [twice, twice] }),
    ).rejects.toMatchObject({
      code: 3,
      details: expect.stringContaining('"outputs.probabilities" in the request is there twice'),
    });
    expect(await codeOf(call(client, 'ModelMetadata', { name: 'nix' }))).toBe(5);
    expect(await codeOf(call(client, 'RepositoryModelLoad', { model_name: 'digits' }))).toBe(12);
  });

  it('[FZ2] Elements in lists beyond the limit are refused before they are decoded, and raw contents are not', async () => {
    const client = await open({ grpc: { port: 0, host: '127.0.0.1', listLimit: 5000 } });
    const refused = {
      code: 8,
      details: expect.stringMatching(/5000 bytes beside raw .* raw contents/),
    };
    const listed = (rows: number) =>
      call(client, 'ModelInfer', { model_name: 'digits', inputs: listedImages(rows) });

    expect((await listed(1)).raw_output_contents[0]!.length).toBe(40);
    await expect(listed(2)).rejects.toMatchObject(refused);
    const many = { ...image(1), raw_input_contents: Array<Buffer>(6).fill(Buffer.alloc(0)) };
    await expect(call(client, 'ModelInfer', many)).rejects.toMatchObject(refused);
    expect((await call(client, 'ModelInfer', image(100))).raw_output_contents[0]!.length).toBe(
      4000,
    );

    const stream = streamOf(client);
    const replies: StreamMessage[] = [];
    stream.on('data', (reply: StreamMessage) => replies.push(reply));
    stream.write({ model_name: 'digits', id: 'a', inputs: listedImages(2) });
    stream.write({ id: 'b', ...image(1) });
    stream.end();
    await until(() => replies.length === 2);
    expect(
      replies.map(({ infer_response, error_message }) => [infer_response.id, error_message]),
    ).toEqual([
      ['a', refused.details],
      ['b', ''],
    ]);
  });

  it('[18.5] states when to try again, where an overloaded serving knows it', async () => {
    const client = await open();
    const answered = call(client, 'ModelInfer', number('narrow', 1));
    await until(() => held.batches.length > 0);
    release();
    await answered;
    const running = call(client, 'ModelInfer', number('narrow', 2));
    await until(() => held.batches.length > 0);
    const queued = call(client, 'ModelInfer', number('narrow', 3));
    await until(() => app!.get(ServingService).get('narrow').queued > 0);

    const error = (await failureOf(
      call(client, 'ModelInfer', number('narrow', 4)),
    )) as ServiceError;

    expect([error.code, error.details]).toEqual([14, expect.stringMatching(/SERVING_OVERLOADED/)]);
    // A second, since batches take less than one.
    expect(error.metadata.get('grpc-retry-pushback-ms')).toEqual(['1000']);
    release();
    await running;
    await until(() => held.batches.length > 0);
    release();
    await queued;
  });

  it('[FD3] Status texts fit into the headers that clients take: of unknown models, of a caller with long names, and of errors of the application', async () => {
    const client = await open({}, [{ provide: APP_GUARD, useClass: LongGuard }]);
    const long = { ...number('wide', 1), outputs: [{ name: 'o'.repeat(20_000) }] };
    const unknown = { name: '模型'.repeat(9000) };
    const failures = [
      await failureOf(call(client, 'ModelInfer', long)),
      await failureOf(call(client, 'ModelReady', unknown)),
      await failureOf(call(client, 'ServerMetadata', {}, { headers: { 'x-long': 'yes' } })),
    ];
    expect(failures.map((error) => (error as ServiceError).code)).toEqual([3, 5, 7]);
    for (const error of failures) {
      const { details } = error as ServiceError;
      expect(encodeURI(details).length).toBeLessThan(5000);
      expect(details).not.toContain('\uFFFD');
    }
  });

  it('[18.5] states no time to try again for a request that is wrong', async () => {
    const client = await open();
    const error = (await failureOf(
      call(client, 'ModelInfer', { ...image(1), model_name: 'nix' }),
    )) as ServiceError;
    expect([error.code, error.metadata.get('grpc-retry-pushback-ms')]).toEqual([5, []]);
  });

  it('[18.13] refuses a message larger than the limit of bodies', async () => {
    const client = await open({ bodyLimit: 10_000 });
    expect(await codeOf(call(client, 'ModelInfer', image(4)))).toBe(8);
    expect((await call(client, 'ModelInfer', image(3))).outputs.length).toBe(1);
  });

  it('[18.7] ends a call at its deadline, and when its client leaves', async () => {
    const client = await open();
    const deadline = Date.now() + 200;
    expect(await codeOf(call(client, 'ModelInfer', number('held', 1), { deadline }))).toBe(4);
    const { cancel, left } = cancellable(number('held', 2));
    const serving = app!.get(ServingService).get('held');
    await until(() => held.batches.length + serving.queued > 1);
    const before = cancelledOf('held');
    cancel();
    expect(await left).toBe(1);
    await until(() => cancelledOf('held') > before);
  });

  it('[P4] closes the connections of clients that break HTTP/2 or have gone', async () => {
    await open({ grpc: { port: 0, host: '127.0.0.1', idleTimeout: 100 } });
    const { port } = app!.get(GrpcDoor);
    const preface = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
    const settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const broken = {
      'DATA of a stream that was never opened': [0, 0, 1, 0, 0, 0, 0, 0, 1, 120],
      'a PING of 3 bytes': [0, 0, 3, 6, 0, 0, 0, 0, 0, 1, 2, 3],
      'nothing more': [],
    };

    const closed = Object.values(broken).map(async (frame) => {
      const socket = openSocket({ port: port!, host: '127.0.0.1' });
      socket.on('error', () => {});
      socket.end(Buffer.concat([preface, Buffer.from([...settings, ...frame])]));
      await once(socket.resume(), 'close');
    });

    await Promise.all(closed);
  });

  it('[18.12] runs guards of the module, but not for probes', async () => {
    const client = await open({ guards: [KeyGuard] });
    const headers = { 'x-key': 'right' };
    expect(await codeOf(call(client, 'ModelInfer', image(1)))).toBe(16);
    expect(await codeOf(call(client, 'ServerMetadata'))).toBe(16);
    expect((await call(client, 'ModelInfer', image(1), { headers })).outputs.length).toBe(1);
    expect(await call(client, 'ServerLive')).toEqual({ live: true });
    expect(await call(client, 'ServerReady')).toEqual({ ready: true });
  });

  it('[18.12] runs the global guards of the application for every call', async () => {
    const client = await open({}, [{ provide: APP_GUARD, useClass: KeyGuard }]);
    expect(await codeOf(call(client, 'ServerLive'))).toBe(16);
    expect(await call(client, 'ServerLive', {}, { headers: { 'x-key': 'right' } })).toEqual({
      live: true,
    });
  });

  it('[18.12] refuses a stream by its guards, and answers the next one', async () => {
    const client = await open({ guards: [KeyGuard] });
    const refused = streamOf(client);
    refused.write(number('wide', 1));
    const [error] = (await once(refused, 'error')) as [ServiceError];
    expect([error.code, error.details]).toEqual([16, 'Give the header x-key']);
    const allowed = streamOf(client, { 'x-key': 'right' });
    allowed.write(number('wide', 1));
    const [message] = (await once(allowed, 'data')) as [StreamMessage];
    expect(message.error_message).toBe('');
    allowed.end();
    allowed.resume();
    await once(allowed, 'end');
  });

  it('[18.11] lets clients unload a model only past the guards of the repository', async () => {
    const client = await open({ repository: { guards: [NoGuard] } });
    expect(await codeOf(call(client, 'RepositoryModelUnload', { model_name: 'wide' }))).toBe(7);
    await app!.close();
    const other = await open({ repository: { guards: [{ canActivate: () => true }] } });
    await call(other, 'RepositoryModelUnload', { model_name: 'wide' });
    expect(await codeOf(call(other, 'ModelInfer', number('wide', 1)))).toBe(14);
    await call(other, 'RepositoryModelLoad', { model_name: 'wide' });
    expect((await call(other, 'ModelInfer', number('wide', 1))).outputs.length).toBe(1);
  });

  it('[18.8] gives each call the tenant of the option, and no sequence to another tenant', async () => {
    const client = await open({
      servings: [{ serving: 'sums', inputs: { n: 'INT32' }, outputs: { sum: 'INT32' } }],
      tenant: (context) =>
        context.switchToRpc().getContext<Metadata>().get('x-tenant')[0]?.toString(),
    });
    const step = async (tenant: string, isFirst: boolean): Promise<number> => {
      const parameters = {
        sequence_id: { int64_param: 7 },
        ...(isFirst && { sequence_start: { bool_param: true } }),
      };
      const request = { ...number('sums', 2), parameters };
      const reply = await call(client, 'ModelInfer', request, { headers: { 'x-tenant': tenant } });
      return reply.raw_output_contents[0]!.readInt32LE();
    };

    expect(await step('a', true)).toBe(2);
    expect(await codeOf(step('b', false))).toBe(3);
    expect(await step('b', true)).toBe(2);
    expect(await step('a', false)).toBe(4);
  });

  it('[18.1] answers probes of gRPC itself', async () => {
    const client = await open();
    const definition = await load('lib/extensions/inference-protocol/server/grpc/health.proto', {
      enums: String,
    });
    const { grpc } = loadPackageDefinition(definition) as never as {
      grpc: { health: { v1: { Health: ServiceClientConstructor } } };
    };
    const { path, requestSerialize, responseDeserialize } = grpc.health.v1.Health.service['Check']!;
    const check = (name: string): Promise<unknown> =>
      new Promise((resolve) => {
        client.makeUnaryRequest(
          path,
          requestSerialize,
          responseDeserialize,
          { service: name },
          (error, reply) => resolve(error?.code ?? (reply as { status: string }).status),
        );
      });
    expect(await Promise.all(['', 'digits', 'nix'].map(check))).toEqual(['SERVING', 'SERVING', 5]);
  });

  it('[18.9] keeps the order of single replies, and the stream after an error', async () => {
    const client = await open();
    const stream = streamOf(client);
    const messages: StreamMessage[] = [];
    stream.on('data', (message: StreamMessage) => messages.push(message));
    stream.write(number('held', 1, 'a'));
    stream.write(number('nix', 2, 'b'));
    stream.write(number('wide', 3, 'c'));
    stream.end();
    await until(() => held.batches.length > 0);
    expect(messages).toEqual([]);
    release();
    await once(stream, 'end');
    expect(messages.map(({ infer_response }) => infer_response.id)).toEqual(['a', 'b', 'c']);
    expect(messages.map(({ error_message }) => error_message !== '')).toEqual([false, true, false]);
  });

  it('[18.9] leaves nothing behind when streams have ended', async () => {
    const client = await open();
    const { signal } = app!.get(ProtocolCalls).stop;
    for (let i = 0; i < 5; i++) {
      const stream = streamOf(client);
      stream.on('data', () => undefined);
      stream.write(number('wide', i));
      stream.end();
      await once(stream, 'end');
    }

    await until(() => getEventListeners(signal, 'abort').length === 0);
  });

  it('[18.9] ends the stream with the status of the first error where the client asks for it', async () => {
    const client = await open();
    const stream = streamOf(client, { triton_grpc_error: 'true' });
    stream.on('data', () => {});
    stream.write(number('nix', 2, 'b'));
    const [error] = (await once(stream, 'error')) as [ServiceError];
    expect(error.code).toBe(5);
  });

  it('[18.9] ends a request whose client reads too slowly, and keeps the stream', async () => {
    const client = await open();
    const stream = streamOf(client);
    stream.pause();
    stream.write(number('count', 100_000));
    await until(() => hasCounted);
    const messages: string[] = [];
    stream.on('data', ({ error_message }: StreamMessage) => messages.push(error_message));
    stream.resume();
    stream.end();
    await once(stream, 'end');
    expect(messages.at(-1)).toContain('SERVING_SLOW_CONSUMER');
    expect(messages.length).toBeLessThan(20_000);
  });

  it('[18.7] ends what a stream runs when its client leaves', async () => {
    const client = await open();
    const stream = streamOf(client);
    stream.on('error', () => {}).on('data', () => {});
    stream.write(number('held', 1));
    await until(() => held.batches.length > 0);
    stream.cancel();
    await until(() => cancelledOf('held') > 0);
  });

  it('[18.19] answers the calls that run when the application shuts down, and ends idle streams', async () => {
    const client = await open();
    const idle = streamOf(client);
    idle.on('data', () => {});
    idle.write(number('wide', 1));
    await once(idle, 'data');
    const running = call(client, 'ModelInfer', number('held', 1));
    await until(() => held.batches.length > 0);
    const closing = app!.close();
    await once(idle, 'end');
    release();
    expect((await running).outputs.length).toBe(1);
    await closing;
    app = undefined;
    expect(await codeOf(call(client, 'ServerLive'))).toBe(14);
  });

  it('[18.19] answers the requests of a stream that has sent them when the application shuts down', async () => {
    const client = await open();
    const stream = streamOf(client);
    const messages: StreamMessage[] = [];
    stream.on('data', (message: StreamMessage) => messages.push(message));
    stream.write(number('wide', 1, 'before'));
    await until(() => messages.length === 1);
    const ids = Array.from({ length: 20 }, (_, i) => `${i}`);
    ids.forEach((id) => stream.write(number('held', 1, id)));
    const serving = app!.get(ServingService).get('held');
    const arrived = (): number =>
      serving.queued + held.batches.reduce((sum, { rows }) => sum + rows.length, 0);
    await until(() => arrived() === ids.length);

    const closing = app!.close();
    const ended = once(stream, 'end');
    const finishing = (async () => {
      while (messages.length <= ids.length) {
        await until(() => held.batches.length > 0 || messages.length > ids.length);
        release();
      }
    })();
    await Promise.all([ended, finishing]);

    expect(messages.map(({ error_message }) => error_message)).toEqual(
      Array.from(messages, () => ''),
    );
    expect(messages.map(({ infer_response }) => infer_response.id)).toEqual(['before', ...ids]);
    await closing;
    app = undefined;
  });

  it('[18.19] fails the boot with the address where the port is in use', async () => {
    await open();
    const { port } = app!.get(GrpcDoor);
    const first = app;
    const error = await failureOf(open({ grpc: { port: port!, host: '127.0.0.1' } }));
    expect((error as Error).message).toContain(`cannot serve gRPC at 127.0.0.1:${port}`);
    await app!.close();
    app = first;
  });

  it('[18.19] [19.1] is an endpoint for the servings of another application', async () => {
    await open();
    const serving = createServing<unknown, Record<string, Tensor>, unknown, unknown>({
      name: 'digits',
      model: endpoint(`grpc://127.0.0.1:${app!.get(GrpcDoor).port}`),
    });
    await serving.start();
    const own = app!.get(ServingService);
    const inputs = Array.from({ length: 50 }, (_, i) => ({
      image: new Tensor('float32', new Float32Array(784).fill(i / 50), [1, 784]),
    }));
    const replies = await Promise.all(inputs.map((input) => serving.batchedRun(input)));
    const expected = await Promise.all(
      inputs.map((input) => own.batchedRun<unknown, Record<string, Tensor>>('digits', input)),
    );
    replies.forEach(({ probabilities }, i) => {
      [...(probabilities!.data as Float32Array)].forEach((value, j) =>
        expect(value).toBeCloseTo(expected[i]!['probabilities']!.data[j] as number, 5),
      );
    });
    await serving.close();
  });

  describeWithCertificate('with TLS', ({ ca, cert, key }) => {
    it('[18.19] has the certificates of the options, and asks clients for theirs', async () => {
      await open({ grpc: { port: 0, host: '127.0.0.1', tls: { ca, cert, key } } });
      const address = `127.0.0.1:${app!.get(GrpcDoor).port}`;
      const trusted = new service(address, credentials.createSsl(ca, key, cert));
      const stranger = new service(address, credentials.createSsl(ca));
      clients.push(trusted, stranger);
      expect(await call(trusted, 'ServerLive')).toEqual({ live: true });
      expect(await codeOf(call(stranger, 'ServerLive'))).toBe(14);
    });
  });
});
