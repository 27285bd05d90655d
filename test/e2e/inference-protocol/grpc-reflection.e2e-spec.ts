import { once } from 'node:events';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { type CanActivate, type INestApplication, Logger, type Provider } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { Test } from '@nestjs/testing';
import {
  Client,
  type ClientDuplexStream,
  credentials,
  loadPackageDefinition,
  Metadata,
  type MethodDefinition,
  type ServerDuplexStream,
  type ServiceClientConstructor,
  type ServiceError,
} from '@grpc/grpc-js';
import { load, loadFileDescriptorSetFromBuffer, type PackageDefinition } from '@grpc/proto-loader';
import { ApiKeyGuard, ServingModule } from 'nestjs-serving';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import type { GrpcDoorOptions, InferenceProtocolOptions } from 'nestjs-serving/inference-protocol';
import { GrpcDoor } from '../../../lib/extensions/inference-protocol/server/grpc/grpc-door.js';
import { until } from '../../fixtures/async/awaited.js';

interface Answer {
  readonly valid_host: string;
  readonly original_request: object;
  readonly file_descriptor_response?: { readonly file_descriptor_proto: readonly Buffer[] };
  readonly list_services_response?: { readonly service: readonly { readonly name: string }[] };
  readonly error_response?: { readonly error_code: number; readonly error_message: string };
}

const KEY = 'a-key-of-the-test';
const digits = { name: 'digits', model: 'sample/01-digits/model/digits.onnx' };

/** As a client does that has the descriptor only. */
function described({ file_descriptor_response: files }: Answer): PackageDefinition {
  const set = files!.file_descriptor_proto.map((file) => {
    expect(file.length).toBeLessThan(2 ** 14);
    return Buffer.concat([Buffer.from([10, (file.length % 128) + 128, file.length >> 7]), file]);
  });
  return loadFileDescriptorSetFromBuffer(Buffer.concat(set), { keepCase: true, enums: String });
}

describe('Reflection of gRPC', () => {
  const clients: Client[] = [];
  let app: INestApplication | undefined;
  let method: MethodDefinition<object, Answer>;

  beforeEach(async () => {
    Logger.overrideLogger(false);
    const definition = await load('test/fixtures/http/reflection.proto', { keepCase: true });
    const service = definition['grpc.reflection.v1.ServerReflection'] as never as {
      readonly ServerReflectionInfo: typeof method;
    };
    method = service.ServerReflectionInfo;
  });
  afterEach(async () => {
    clients.splice(0).forEach((client) => client.close());
    await app?.close();
    app = undefined;
  });

  const open = async (
    grpc: Partial<GrpcDoorOptions> = { reflection: true },
    options: InferenceProtocolOptions = {},
    providers: Provider[] = [],
  ): Promise<void> => {
    const module = await Test.createTestingModule({
      imports: [
        ServingModule.forRoot({ servings: [digits] }),
        InferenceProtocolModule.forRoot({
          grpc: { port: 0, host: '127.0.0.1', ...grpc },
          ...options,
        }),
      ],
      providers,
    }).compile();
    app = module.createNestApplication();
    await app.init();
  };
  const address = () => `127.0.0.1:${app!.get(GrpcDoor).port}`;
  const connect = (
    type: new (...args: ConstructorParameters<typeof Client>) => Client = Client,
  ) => {
    const options = { 'grpc.use_local_subchannel_pool': 1 };
    const client = new type(address(), credentials.createInsecure(), options);
    clients.push(client);
    return client;
  };
  const streamOf = (version = 'v1', key?: string): ClientDuplexStream<object, Answer> => {
    const metadata = new Metadata();
    if (key !== undefined) {
      metadata.set('x-api-key', key);
    }
    return connect().makeBidiStreamRequest(
      method.path.replace('.v1.', `.${version}.`),
      method.requestSerialize,
      method.responseDeserialize,
      metadata,
    );
  };
  /** The answers to some questions on one stream. */
  const ask = async (questions: readonly object[], version?: string): Promise<Answer[]> => {
    const stream = streamOf(version);
    const answers: Answer[] = [];
    stream.on('data', (answer: Answer) => answers.push(answer));
    questions.forEach((question) => stream.write(question));
    stream.end();
    await once(stream, 'end');
    return answers;
  };
  const codeOf = async (stream: ClientDuplexStream<object, Answer>): Promise<number> => {
    stream.write({ list_services: '' });
    const [{ code }] = (await once(stream.resume(), 'error')) as [ServiceError];
    return code;
  };

  it.each(['v1', 'v1alpha'])(
    '[18.22] A client that has no proto file lists the services, and calls a model as their descriptor says, by %s',
    async (version) => {
      await open();
      const [listed] = await ask([{ list_services: '*', host: 'me' }], version);
      expect(listed).toMatchObject({
        valid_host: 'me',
        original_request: { host: 'me', list_services: '*' },
        list_services_response: {
          service: [{ name: 'inference.GRPCInferenceService' }, { name: 'grpc.health.v1.Health' }],
        },
      });
      const [answer] = await ask(
        [{ file_containing_symbol: 'inference.GRPCInferenceService' }],
        version,
      );

      const { inference } = loadPackageDefinition(described(answer!)) as never as {
        readonly inference: { readonly GRPCInferenceService: ServiceClientConstructor };
      };
      const { path, requestSerialize, responseDeserialize } =
        inference.GRPCInferenceService.service['ModelInfer']!;
      const request = {
        model_name: 'digits',
        parameters: [{ key: 'priority', value: { int64_param: 1 } }], // A map, as its descriptor says.
        inputs: [{ name: 'image', datatype: 'FP32', shape: [1, 784] }],
        raw_input_contents: [Buffer.alloc(784 * 4)],
      };
      const reply = await new Promise((resolve, reject) => {
        connect().makeUnaryRequest(
          path,
          requestSerialize,
          responseDeserialize,
          request,
          (error, each) => (error ? reject(error) : resolve(each)),
        );
      });

      expect(reply).toMatchObject({ model_name: 'digits', outputs: [{ name: 'probabilities' }] });
    },
  );

  it('[18.22] describes files by their name, and services, methods, types and fields by theirs', async () => {
    await open();
    const inference = [
      { file_by_filename: 'inference.proto' },
      { file_containing_symbol: 'inference.GRPCInferenceService.ModelInfer' },
      { file_containing_symbol: 'inference.ModelInferRequest.InferInputTensor' },
      { file_containing_symbol: 'inference.ModelInferRequest.id' },
    ];
    const health = [
      { file_by_filename: 'health.proto' },
      { file_containing_symbol: 'grpc.health.v1.Health.Watch' },
      { file_containing_symbol: 'grpc.health.v1.HealthCheckResponse.ServingStatus' },
      { file_containing_symbol: 'grpc.health.v1.HealthCheckResponse.ServingStatus.SERVING' },
    ];
    const [first, second] = [await ask(inference), await ask(health)];

    for (const answer of first) {
      expect(described(answer)).toHaveProperty(['inference.GRPCInferenceService', 'ModelInfer']);
      // Go's clients refuse entries of maps by other names.
      expect(String(answer.file_descriptor_response!.file_descriptor_proto[0])).toContain(
        '.inference.ModelInferRequest.ParametersEntry',
      );
    }
    for (const answer of second) {
      expect(described(answer)).toHaveProperty(['grpc.health.v1.Health', 'Watch']);
    }
  });

  it('[18.22] answers questions that it cannot answer with an error of its own, and then goes on', async () => {
    await open();
    const questions = [
      { file_containing_symbol: 'nix' },
      { file_containing_symbol: 'a.'.repeat(1_000_000) },
      { file_containing_symbol: 'inference' },
      { file_containing_symbol: '__proto__' },
      { file_containing_symbol: '' },
      { file_by_filename: 'nix.proto' },
      {
        file_containing_extension: {
          containing_type: 'inference.ModelInferRequest',
          extension_number: 1,
        },
      },
      { all_extension_numbers_of_type: 'inference.ModelInferRequest' },
      {},
      { list_services: '' },
    ];
    const answers = await ask(questions);

    expect(answers.map(({ error_response }) => error_response?.error_code)).toEqual([
      ...Array.from({ length: 6 }, () => 5),
      12,
      12,
      12,
      undefined,
    ]);
    expect(answers[0]!.error_response!.error_message).toBe(
      'There is no "nix"; the files are inference.proto, health.proto',
    );
    expect(answers.at(-1)!.list_services_response!.service.length).toBe(2);
  });

  it('[18.22] is behind the guards of the module and of the application, and off unless the option says so', async () => {
    await open({ reflection: true }, { guards: [new ApiKeyGuard(KEY)] });
    expect(await codeOf(streamOf('v1'))).toBe(16);
    expect(await codeOf(streamOf('v1alpha', 'wrong'))).toBe(16);
    const allowed = streamOf('v1alpha', KEY);
    allowed.write({ list_services: '' });
    await once(allowed, 'data');
    allowed.end();
    await app!.close();

    await open({ reflection: true }, {}, [
      { provide: APP_GUARD, useValue: { canActivate: () => false } },
    ]);
    expect(await codeOf(streamOf())).toBe(7);
    await app!.close();

    await open({});
    expect(await codeOf(streamOf())).toBe(12);
  });

  it('[18.15] [18.22] An option reflection that is neither true nor false fails the boot', async () => {
    await expect(open({ reflection: 'v1' as never })).rejects.toThrow(
      'option "grpc.reflection" is "v1"; allowed is true or false',
    );
  });

  it('[18.22] reads no further questions of a client that does not read its answers', async () => {
    const calls: ServerDuplexStream<object, object>[] = [];
    const look: CanActivate = {
      canActivate: (context) => calls.push(context.getArgByIndex(2)) > 0,
    };
    await open({ reflection: true }, { guards: [look] });
    const question = { file_containing_symbol: 'inference.GRPCInferenceService' };
    const slow = streamOf();
    let answers = 0;
    slow.on('data', () => answers++);
    // The package's client reads until its application pauses it.
    slow.once('data', () => slow.pause());
    for (let i = 0; i < 2000; i++) {
      slow.write(question);
    }
    slow.end();
    await until(() => calls[0]?.writableNeedDrain === true);
    // Another client gets as many answers meanwhile.
    const fast = await ask(Array.from({ length: 2000 }, () => question));

    expect(fast.length).toBe(2000);
    expect(calls[0]!.writableLength).toBeLessThan(100);
    slow.resume();
    await once(slow, 'end');
    expect(answers).toBe(2000);
  });

  it('[18.22] Idle streams end when the application shuts down', async () => {
    await open();
    const stream = streamOf();
    stream.write({ list_services: '' });
    await once(stream, 'data');
    let hasEnded = false;
    stream.resume().once('end', () => (hasEnded = true));

    await app!.close();

    app = undefined;
    await until(() => hasEnded);
  });
});
