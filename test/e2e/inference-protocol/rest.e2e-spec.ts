import { request as httpRequest, type IncomingMessage } from 'node:http';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { deflateSync, gunzipSync, gzipSync, inflateSync } from 'node:zlib';
import { beforeEach, describe, expect, it, jest } from '@jest/globals';
import {
  type CanActivate,
  Controller,
  type ExecutionContext,
  type INestApplication,
  Injectable,
  Post,
  Body,
  UnauthorizedException,
  VersioningType,
} from '@nestjs/common';
import { map } from 'rxjs';
import {
  defineServing,
  type ServingDefinition,
  ServingModule,
  ServingService,
  Tensor,
} from 'nestjs-serving';
import {
  InferenceProtocolModule,
  type InferenceProtocolOptions,
} from 'nestjs-serving/inference-protocol';
import { JobThread } from '../../../lib/encoding/job-thread.js';
import { datatypeOf } from '../../../lib/encoding/json-tensor.js';
import { gainModel } from '../../fixtures/models/models.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { until } from '../../fixtures/async/streams.js';
import { withResolvers } from '../../fixtures/async/with-resolvers.js';
import { describeOnPlatforms, type Site } from '../../fixtures/partitions/platforms.js';
import { sixOfEachType } from '../../fixtures/values/tensors.js';

const digits = defineServing({ name: 'digits', model: 'sample/01-digits/model/digits.onnx' });

const tensorsOf = (type: Tensor.Type) =>
  defineServing({
    name: type,
    model: {
      useFactory: () => (rows: unknown) => rows,
      signature: { template: { x: { type, shape: [null, null] } } },
    },
  });

const tensors = sixOfEachType.filter(({ type }) => !type.endsWith('int4'));
const held = new HeldFunction();

@Injectable()
class KeyGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const { headers } = context.switchToHttp().getRequest<IncomingMessage>();
    if (headers['x-key'] !== 'right') {
      throw new UnauthorizedException('Give the header x-key');
    }
    return true;
  }
}

@Controller()
class OtherController {
  @Post('other')
  other(@Body() body: unknown): unknown {
    return body;
  }
}

const listOf = (value: string, count: number) => `[${Array(count).fill(value).join()}]`;

interface Sent {
  readonly status: number;
  readonly headers: Headers;
  readonly bytes: Buffer;
  /** The JSON of the reply, and the bytes behind it. */
  readonly json: { readonly [name: string]: unknown };
  readonly binary: Buffer;
}

/** Calls of a client that sends what it likes. */
class Client {
  private constructor(readonly url: string) {}

  static async of({ app }: Site, base = ''): Promise<Client> {
    return new Client((await app.getUrl()) + base);
  }

  async send(path: string, init: RequestInit = {}): Promise<Sent> {
    const response = await fetch(this.url + path, init);
    const bytes = Buffer.from(await response.arrayBuffer());
    const header = response.headers.get('inference-header-content-length');
    const length = header === null ? bytes.length : Number(header);
    const text = bytes.subarray(0, length).toString();
    const json = text === '' ? {} : (JSON.parse(text) as Sent['json']);
    const { status, headers } = response;
    return { status, headers, bytes, json, binary: bytes.subarray(length) };
  }

  /** Without a content type, as tritonclient. */
  infer(
    model: string,
    json: unknown,
    binary: readonly Uint8Array[] = [],
    headers: Record<string, string> = {},
  ): Promise<Sent> {
    const head = Buffer.from(typeof json === 'string' ? json : JSON.stringify(json));
    const length = { 'inference-header-content-length': String(head.length) };
    return this.send(`/v2/models/${model}/infer`, {
      method: 'POST',
      headers: { ...(binary.length > 0 && length), ...headers },
      body: Buffer.concat([head, ...binary]),
    });
  }
}

const bytesOf = ({ data }: Tensor): Buffer =>
  Array.isArray(data)
    ? Buffer.concat(
        data.map((text) => {
          const length = Buffer.alloc(4);
          length.writeUInt32LE(Buffer.byteLength(text));
          return Buffer.concat([length, Buffer.from(text)]);
        }),
      )
    : Buffer.from(data.buffer, data.byteOffset, data.byteLength);

const zeros = (rows: number) => ({
  name: 'image',
  shape: [rows, 784],
  datatype: 'FP32',
  data: Array(784 * rows).fill(0) as number[],
});

const inputX = (others: object) => ({ inputs: [{ name: 'x', shape: [1, 1], ...others }] });

/** Engines name the place in JSON of which only spaces differ. */
const withoutPosition = (answer: unknown): unknown =>
  JSON.parse(JSON.stringify(answer).replace(/position \d+[^"]*/, 'position'));

describeOnPlatforms('The Open Inference Protocol', (listen) => {
  const start = async (
    { more = [], ...options }: InferenceProtocolOptions & { more?: ServingDefinition[] } = {},
    configure?: (app: INestApplication) => unknown,
  ): Promise<{ readonly client: Client; readonly site: Site }> => {
    const site = await listen(
      {
        imports: [
          ServingModule.forRoot({
            servings: [
              digits,
              ...more,
              ...tensors.map(({ type }) => tensorsOf(type)),
              defineServing({ name: 'held', batchSize: 1, model: { useFactory: held.useFactory } }),
              defineServing({ name: 'echo', model: { useFactory: () => (rows: unknown) => rows } }),
              defineServing({
                name: 'failing',
                model: {
                  useFactory: () => () => {
                    throw new Error('the secret of the application');
                  },
                },
              }),
            ],
          }),
          InferenceProtocolModule.forRoot(options),
        ],
        controllers: [OtherController],
      },
      { ...(configure && { configure }) },
    );
    return { client: await Client.of(site), site };
  };

  beforeEach(() => {
    held.batches.length = 0;
  });

  it('[18.1] Servers, models, versions and health answer with status 200 and JSON', async () => {
    const { client } = await start({ servings: ['digits'] });
    const get = async (path: string) => {
      const { status, headers, json } = await client.send(path);
      expect([path, status, headers.get('content-type')]).toEqual([path, 200, 'application/json']);
      return json;
    };

    expect(await get('/v2/health/live')).toEqual({ live: true });
    expect(await get('/v2/health/ready')).toEqual({ ready: true, live: true });
    expect(await get('/v2')).toMatchObject({
      name: 'nestjs-serving',
      extensions: expect.arrayContaining(['binary_tensor_data', 'statistics']),
    });
    const metadata = {
      name: 'digits',
      versions: ['1'],
      platform: 'onnxruntime_onnx',
      inputs: [{ name: 'image', datatype: 'FP32', shape: [-1, 784] }],
      outputs: [{ name: 'probabilities', datatype: 'FP32', shape: [-1, 10] }],
    };
    expect(await get('/v2/models/digits')).toEqual(metadata);
    expect(await get('/v2/models/digits/versions/1')).toEqual(metadata);
    expect(await get('/v2/models/digits/ready')).toEqual({ name: 'digits', ready: true });
    expect(await get('/v2/models/digits/config')).toMatchObject({ max_batch_size: 32 });
    expect(await get('/v2/models/stats')).toMatchObject({ model_stats: [{ name: 'digits' }] });
    expect(await get('/v2/models/digits/stats')).toMatchObject({ model_stats: [{ version: '1' }] });
  });

  it.each([
    ['/v2/models/echo/infer', [200]],
    ['http://other.example:81/v2/models/echo/infer', [200]],
    ['HTTP://other.example/v2/models/echo/infer?x=1', [200]],
    ['/v2/models/echo/infer#part', [200]],
    ['/v2/models/echo/infer?x=1#part', [200]],
    ['/v2/models/echo/%69nfer', [200, 404]],
    ['/v2/mod%65ls/%65cho/infer/', [200, 404]],
    ['/v2/models/%65cho/infer', [200]],
    [String.raw`/v2/models/echo\infer#part`, [400, 404]],
    ['/v2/models/echo/infer;x=1', [400, 404]],
    ['//v2/models/echo/infer', [400, 404]],
  ])(
    '[FD4] The URL %s is answered as the one of the protocol, or refused',
    async (path, allowed) => {
      const { client } = await start({ servings: ['echo'] });
      const row = { inputs: [{ name: 'input', shape: [1], datatype: 'BYTES', data: ['7'] }] };
      const call = httpRequest(client.url, {
        method: 'POST',
        path,
        headers: { 'content-type': 'application/json' },
      });
      const status = await new Promise<number | undefined>((resolve, reject) => {
        call.once('response', (response) => resolve(response.resume().statusCode));
        call.once('error', reject);
        call.end(JSON.stringify(row));
      });
      expect(allowed).toContain(status);
    },
  );

  it('[FD5] Calls that register shared memory are answered with 501, whatever their content type', async () => {
    const { client } = await start();
    const paths = [
      'systemsharedmemory/region/r/register',
      'systemsharedmemory/region/r/unregister',
      'cudasharedmemory/unregister',
    ];
    for (const path of paths) {
      for (const type of [undefined, 'text/odd']) {
        const headers: Record<string, string> = type === undefined ? {} : { 'content-type': type };
        const body = Buffer.from('{"key":"/r"}');
        const { status, json } = await client.send(`/v2/${path}`, {
          method: 'POST',
          headers,
          body,
        });
        expect([status, json]).toEqual([501, { error: expect.stringContaining('Shared memory') }]);
      }
    }
  });

  it.each(tensors.map((tensor) => [tensor.type, tensor] as const))(
    '[18.3] Elements of %s cross unchanged, as JSON, as binary data, and mixed',
    async (type, tensor) => {
      const { client } = await start();
      const bytes = bytesOf(tensor);
      const {
        json: { inputs },
      } = await client.send(`/v2/models/${type}`);
      const [{ datatype }] = inputs as [{ datatype: string }];
      const described = { name: 'x', shape: [2, 3], datatype };

      const parameters = { binary_data_size: bytes.length };
      const binary = await client.infer(
        type,
        {
          // A part of the JSON whose length moves the bytes to every offset.
          id: 'x'.repeat(bytes.length % 7),
          inputs: [{ ...described, parameters }],
          outputs: [{ name: 'x', parameters: { binary_data: true } }],
        },
        [bytes],
      );
      expect(binary.binary).toEqual(bytes);

      const asJson = await client.infer(
        type,
        { inputs: [{ ...described, parameters }], outputs: [{ name: 'x' }] },
        [bytes],
      );
      const [{ data }] = asJson.json['outputs'] as [{ data: unknown[] }];
      expect(asJson.json).toMatchObject({ outputs: [{ name: 'x', shape: [2, 3], datatype }] });

      const back = await client.infer(type, {
        inputs: [{ ...described, data: [data.slice(0, 3), data.slice(3)] }],
        parameters: { binary_data_output: true },
      });
      expect(back.binary).toEqual(bytes);
    },
  );

  it('[18.3] Binary and JSON inputs mix, and each output has the form that it asks for', async () => {
    const { client } = await start({
      servings: [
        {
          serving: 'echo',
          inputs: { a: 'FP32', b: 'INT64' },
          outputs: { a: 'FP32', b: 'INT64' },
        },
      ],
    });

    const { json, binary } = await client.infer(
      'echo',
      {
        id: 'mixed',
        inputs: [
          { name: 'a', shape: [2], datatype: 'FP32', data: [1, 'NaN'] },
          { name: 'b', shape: [2], datatype: 'INT64', parameters: { binary_data_size: 16 } },
        ],
        outputs: [{ name: 'b' }, { name: 'a', parameters: { binary_data: true } }],
        parameters: { binary_data_output: false },
      },
      [Buffer.from(BigInt64Array.of(5n, 2n ** 60n).buffer)],
    );

    expect(json).toEqual({
      model_name: 'echo',
      model_version: '1',
      id: 'mixed',
      outputs: [
        { name: 'b', datatype: 'INT64', shape: [2], data: [5, String(2n ** 60n)] },
        { name: 'a', datatype: 'FP32', shape: [2], parameters: { binary_data_size: 8 } },
      ],
    });
    expect(binary).toEqual(Buffer.from(Float32Array.of(1, NaN).buffer));
  });

  it('[18.2] The rows of several requests share a batch of the model', async () => {
    const { client, site } = await start();
    const counters = () => site.app.get(ServingService).counters().get('digits')!;

    const replies = await Promise.all(
      [1, 2, 3].map((rows) => client.infer('digits', { inputs: [zeros(rows)] })),
    );

    expect(replies.map(({ json }) => (json['outputs'] as [{ shape: unknown }])[0].shape)).toEqual([
      [1, 10],
      [2, 10],
      [3, 10],
    ]);
    expect(counters()).toMatchObject({ answered: 3, rows: 6 });
  });

  it('[18.18] With a header length of 0 the body is one row, and all outputs are binary', async () => {
    const { client } = await start();
    const raw = (model: string, body: Buffer) =>
      client.infer(model, '', [body], { 'inference-header-content-length': '0' });

    const { json, binary } = await raw('digits', Buffer.alloc(784 * 4));
    expect(json['outputs']).toMatchObject([{ shape: [1, 10] }]);
    expect(binary).toHaveLength(40);
    expect((await raw('float32', Buffer.alloc(20))).json['outputs']).toMatchObject([
      { shape: [1, 5] },
    ]);
    expect((await raw('echo', Buffer.from('"text"'))).binary.subarray(4).toString()).toBe('"text"');
    expect(await raw('digits', Buffer.alloc(12))).toMatchObject({
      status: 400,
      json: { error: expect.stringContaining('12 bytes') },
    });
  });

  describe('refuses', () => {
    const image = zeros(1);
    const binary = { ...image, data: undefined, parameters: { binary_data_size: 784 * 4 } };
    const bytes = Buffer.alloc(784 * 4);

    it.each<[string, unknown, Uint8Array[], Record<string, string>, string]>([
      ['no JSON', '{', [], {}, 'The body of the request is not JSON'],
      ['a list', '[]', [], {}, '"body" in the request is an instance of Array'],
      ['null', 'null', [], {}, '"body" in the request is null, and must be a plain object'],
      ['no inputs', {}, [], {}, '"body.inputs" in the request is undefined'],
      ['an input of no name', { inputs: [{}] }, [], {}, '"body.inputs.0.name" in the request'],
      ['an input twice', { inputs: [image, image] }, [], {}, 'has the name "image", which another'],
      [
        'another datatype',
        { inputs: [{ ...image, datatype: 'FP64' }] },
        [],
        {},
        'the input "image" is FP64 and must be FP32',
      ],
      [
        'a negative size',
        { inputs: [{ ...image, shape: [-1, 784] }] },
        [],
        {},
        '"body.inputs.0.shape.0" in the request is -1',
      ],
      [
        'a size that overflows',
        { inputs: [{ ...image, shape: [2 ** 31, 2 ** 31] }] },
        [],
        {},
        '784 elements, which are not those of the shape',
      ],
      ['no rows', { inputs: [{ ...image, shape: [0, 784], data: [] }] }, [], {}, 'without rows'],
      ['an unknown output', { inputs: [image], outputs: [{ name: 'x' }] }, [], {}, 'no output "x"'],
      [
        'an output twice',
        { inputs: [image], outputs: [{ name: 'x' }, { name: 'x' }] },
        [],
        {},
        'has the name "x", which another output has',
      ],
      ['too few bytes', { inputs: [binary] }, [bytes.subarray(1)], {}, '3135 bytes are left'],
      ['too many bytes', { inputs: [binary] }, [bytes, bytes], {}, '3136 bytes after those of its'],
      [
        'bytes and data',
        { inputs: [{ ...binary, data: image.data }] },
        [bytes],
        {},
        'has both data and binary_data_size',
      ],
      [
        'a header of no length',
        { inputs: [binary] },
        [bytes],
        { 'inference-header-content-length': '-1' },
        'Inference-Header-Content-Length is "-1", and no length',
      ],
      [
        'a header beyond the body',
        { inputs: [image] },
        [],
        { 'inference-header-content-length': '999999' },
        'Inference-Header-Content-Length is 999999',
      ],
      [
        'a parameter of an object',
        { inputs: [image], parameters: { priority: {} } },
        [],
        {},
        '"body.parameters.priority" in the request',
      ],
      ['a wrong priority', { inputs: [image], parameters: { priority: -1 } }, [], {}, 'is -1'],
      ['an id of no string', { inputs: [image], id: 5 }, [], {}, '"body.id" in the request is 5'],
      [
        'no gzip',
        { inputs: [image] },
        [],
        { 'content-encoding': 'gzip' },
        'The body cannot be decompressed',
      ],
    ])('[18.4] %s, with status 400', async (_, json, parts, headers, message) => {
      const { client } = await start({ servings: ['digits'] });
      const reply = await client.infer('digits', json, parts, headers);

      expect(reply.json).toEqual({ error: expect.stringContaining(message) });
      expect([reply.status, reply.headers.get('content-type')]).toEqual([400, 'application/json']);
      // The connection and the server are as before.
      expect((await client.infer('digits', { inputs: [zeros(1)] })).status).toBe(200);
    });
  });

  it('[18.5] Errors have the status of the table, and those of the application no details', async () => {
    const { client } = await start();
    const input = { inputs: [{ name: 'input', shape: [1], datatype: 'BYTES', data: ['1'] }] };
    const shared = {
      inputs: [
        {
          name: 'input',
          shape: [1],
          datatype: 'BYTES',
          parameters: { shared_memory_region: 'r', shared_memory_byte_size: 8 },
        },
      ],
    };
    const seen = await Promise.all([
      client.infer('nix', input),
      client.infer('digits/versions/2', input),
      client.infer('failing', input),
      client.infer('echo', shared),
      client.infer('held', { ...input, parameters: { timeout: 1000 } }),
      client.infer('echo', input, [], { 'content-encoding': 'br' }),
      client.send('/v2/models/echo/infer'),
      client.send('/v2/models/echo', { method: 'DELETE' }),
      client.send('/v2/systemsharedmemory/status'),
      client.send('/v2/models/echo/trace/setting'),
    ]);
    held.batches.forEach((batch) => batch.finish(batch.rows));

    expect(seen.map(({ status, json }) => [status, json])).toEqual([
      [404, { error: expect.stringContaining('There is no model "nix"') }],
      [404, { error: 'Model "digits" has no version "2"; it has 1' }],
      [500, { error: 'Internal Server Error (SERVING_BATCH_FAILED)' }],
      [501, { error: 'Shared memory is not supported; send the tensors themselves' }],
      [504, { error: 'Gateway Timeout (SERVING_DEADLINE_EXCEEDED)' }],
      [415, { error: 'The content encoding is "br"; allowed are gzip and deflate' }],
      [404, expect.objectContaining({ error: 'Not Found' })],
      [404, expect.objectContaining({ error: 'Not Found' })],
      [501, { error: 'Shared memory is not supported; send the tensors themselves' }],
      [404, expect.objectContaining({ error: 'Not Found' })],
    ]);
    const types = seen.slice(0, 6).map(({ headers }) => headers.get('content-type'));
    expect(new Set(types)).toEqual(new Set(['application/json']));
  });

  it('[18.7] A client that leaves frees the place of its rows', async () => {
    const { client, site } = await start();
    const servings = site.app.get(ServingService);
    const queued = () => servings.get('held').queued;
    const body = JSON.stringify({
      inputs: [{ name: 'input', shape: [1], datatype: 'BYTES', data: ['1'] }],
    });
    const leave = new AbortController();
    const init = { method: 'POST', body };

    const first = client.send('/v2/models/held/infer', init);
    await until(() => held.batches.length === 1);
    const leaving = client.send('/v2/models/held/infer', { ...init, signal: leave.signal });
    const left = expect(leaving).rejects.toThrow();
    await until(() => queued() === 1);
    leave.abort();
    await until(() => queued() === 0);

    held.next().finish([1]);
    await left;
    expect((await first).status).toBe(200);
    expect(servings.counters().get('held')!.failed).toEqual({ SERVING_CANCELLED: 1 });
  });

  it('[18.12] Guards refuse before a byte of the body is read, and probes pass them', async () => {
    const { client } = await start({ guards: [KeyGuard] });
    const { hostname, port } = new URL(client.url);

    // The body has begun and never ends; the answer is there all the same.
    const status = await new Promise((resolve, reject) => {
      const request = httpRequest(
        { hostname, port, method: 'POST', path: '/v2/models/digits/infer' },
        (response) => {
          resolve(response.statusCode);
          request.destroy();
        },
      );
      request.on('error', reject);
      request.write('{"inputs":');
    });
    expect(status).toBe(401);
    expect(await client.send('/v2')).toMatchObject({
      status: 401,
      json: { error: 'Give the header x-key' },
    });
    expect((await client.send('/v2/health/ready')).status).toBe(200);
    expect((await client.send('/v2', { headers: { 'x-key': 'right' } })).status).toBe(200);
  });

  it('[18.12] Guards, interceptors, prefix and versions of the application apply, and not to the form', async () => {
    const seen: string[] = [];
    const { site } = await start({ servings: ['digits'] }, (app) => {
      app.setGlobalPrefix('api');
      app.enableVersioning({ type: VersioningType.URI, defaultVersion: '1' });
      app.useGlobalGuards({
        canActivate(context: ExecutionContext) {
          seen.push(context.switchToHttp().getRequest<{ url: string }>().url);
          return true;
        },
      });
      app.useGlobalInterceptors({
        intercept: (_, next) => next.handle().pipe(map((data: unknown) => ({ wrapped: data }))),
      });
    });
    const client = await Client.of(site, '/api');

    expect((await client.send('/v2/health/live')).json).toEqual({ live: true });
    expect((await client.infer('digits', { inputs: [zeros(1)] })).json).toMatchObject({
      model_name: 'digits',
    });
    expect(seen).toEqual(['/api/v2/health/live', '/api/v2/models/digits/infer']);
  });

  it('[18.12] The bodies of other routes are parsed as before', async () => {
    const { site } = await start();

    await expect(site.post('/other', { a: [1] })).resolves.toMatchObject({
      status: 201,
      body: { a: [1] },
    });
    expect((await site.post('/other', 'x'.repeat(3 * 2 ** 20))).status).toBe(413);
  });

  it('[18.13] Bodies beyond a limit are refused with status 413, compressed or not', async () => {
    const { client } = await start({ bodyLimit: 100_000, jsonLimit: 20_000 });
    const large = Buffer.alloc(200_000);
    const stream = () =>
      new ReadableStream({
        start(controller) {
          controller.enqueue(large);
          controller.close();
        },
      });
    const send = (init: RequestInit) =>
      client.send('/v2/models/digits/infer', { method: 'POST', ...init });

    const replies = [
      await send({ body: large }),
      await send({ body: stream(), duplex: 'half' }),
      await send({ body: gzipSync(large), headers: { 'content-encoding': 'gzip' } }),
      await send({ body: large.subarray(0, 50_000) }),
    ];
    expect(replies.map(({ status }) => status)).toEqual([413, 413, 413, 413]);
    for (const { json } of replies.slice(0, 3)) {
      expect(json['error']).toContain('more than 100000 bytes');
    }
    expect(replies[3]!.json['error']).toContain('(jsonLimit); send tensors as binary data');
    const deep = await send({ body: `{"inputs":${'['.repeat(65)}` });
    expect(deep).toMatchObject({ status: 400, json: { error: expect.stringContaining('deeper') } });
    expect((await client.infer('digits', { inputs: [zeros(1)] })).status).toBe(200);
  });

  it('[FZ2] More than 256 KiB of JSON, which a thread reads, has the answers and refusals of less', async () => {
    const { client } = await start();
    const bytes = Buffer.from([0xff, 0xfe]);
    const size = { parameters: { binary_data_size: 6 } };
    const part = Buffer.concat([Buffer.from([2, 0, 0, 0]), bytes]);
    const answers = async (padding: number): Promise<unknown[]> => {
      const infer = async (model: string, json: string | object, ...binary: Buffer[]) => {
        const text = typeof json === 'string' ? json : JSON.stringify(json);
        const { status, json: reply } = await client.infer(
          model,
          text + ' '.repeat(padding),
          binary,
        );
        return [status, reply];
      };
      return Promise.all([
        ...tensors.map((tensor) => {
          const { type } = tensor;
          const elements = {
            shape: [3, 2],
            parameters: { binary_data_size: bytesOf(tensor).length },
          };
          const datatype = datatypeOf(type);
          return infer(type, inputX({ datatype, ...elements }), bytesOf(tensor));
        }),
        infer('float32', inputX({ datatype: 'FP32', data: ['NaN'] })),
        infer('int64', inputX({ datatype: 'INT64', data: ['-9007199254740993'] })),
        infer('string', inputX({ datatype: 'BYTES', ...size }), part),
        infer('float32', inputX({ datatype: 'FP32', data: ['one'] })),
        infer('float32', inputX({ datatype: 'FP32', data: [1, 2] })),
        infer('float32', inputX({ datatype: 'FP32', data: [1] }), Buffer.alloc(1)),
        infer('float32', '{"inputs": ['),
        infer('float32', '['.repeat(70)),
        infer('float32', {
          ...inputX({ datatype: 'FP32', data: [1] }),
          outputs: [{ name: 'none' }],
        }),
      ]);
    };
    const inThread = jest.spyOn(JobThread.prototype, 'run');
    const few = (await answers(0)) as [number, object][];
    expect(few.map(([status]) => status)).toEqual([
      ...tensors.map(() => 200),
      200,
      200,
      ...Array<number>(7).fill(400),
    ]);
    expect(inThread).not.toHaveBeenCalled();
    expect((await answers(300_000)).map(withoutPosition)).toEqual(few.map(withoutPosition));
    expect(inThread).toHaveBeenCalledTimes(few.length);
    inThread.mockRestore();
  });

  it('[FZ2] A body with much JSON whose client leaves is not waited for', async () => {
    const { client } = await start();
    const leave = new AbortController();
    const body = `${JSON.stringify({ inputs: [zeros(100)] })}${' '.repeat(2 ** 20)}`;
    const send = (signal: AbortSignal | null) =>
      client.send('/v2/models/digits/infer', { method: 'POST', body, signal });
    const left = send(leave.signal);
    leave.abort();
    await expect(left).rejects.toThrow('aborted');
    const { status, json } = await send(null);
    expect([status, json['outputs']]).toEqual([
      200,
      [expect.objectContaining({ shape: [100, 10] })],
    ]);
  });

  it('[FZ2] JSON rows beyond the limit of JSON are refused, however they are sent', async () => {
    const { client } = await start({ servings: ['echo'], jsonLimit: 1000 });
    const send = (rows: readonly string[]) => {
      const tensor = new Tensor('string', [...rows], [rows.length]);
      const binary_data_size = bytesOf(tensor).length;
      return client.infer(
        'echo',
        {
          inputs: [
            {
              name: 'input',
              shape: [rows.length],
              datatype: 'BYTES',
              parameters: { binary_data_size },
            },
          ],
        },
        [bytesOf(tensor)],
      );
    };
    const row = JSON.stringify('x'.repeat(498));
    expect((await send([row, row])).status).toBe(200);
    const { status, json } = await send([row, row, '1']);
    expect([status, json['error']]).toEqual([
      413,
      expect.stringMatching(/1001 bytes of JSON .* is 1000 \(jsonLimit\); send fewer rows/),
    ]);
  });

  it('[FZ2] A row of JSON with too many values is refused before it is parsed, and many rows are not', async () => {
    const { client } = await start({ servings: ['echo'] });
    const send = async (...rows: readonly string[]) => {
      const { status, json } = await client.infer('echo', {
        inputs: [{ name: 'input', shape: [rows.length], datatype: 'BYTES', data: rows }],
      });
      return [status, json['error'] ?? (json['outputs'] as [{ data: string[] }])[0].data];
    };

    const most = [listOf('1', 32_769), listOf('{"a":{}}', 2047), listOf('[]', 4095)];
    expect(isDeepStrictEqual(await send(...most), [200, most])).toBe(true);
    expect(await send('1', listOf('1', 32_770))).toEqual([
      400,
      '"input.1" in the request has more than 32768 values; put numbers into a $tensor, with base64 ' +
        'as its data (for plain text, give the input the parameter content_type "str")',
    ]);
    for (const much of [listOf('[]', 4096), listOf('{"a":{}}', 2048), '['.repeat(10_000)]) {
      expect(await send(much)).toEqual([
        400,
        expect.stringMatching(/"input.0" in the request has (?:more than 4096 lists|lists or obj)/),
      ]);
    }
  });

  it('[FZ2] A tensor of more than 65536 texts is refused, in JSON and in bytes', async () => {
    const { client } = await start({ servings: ['string'] });
    const send = async (count: number) => {
      const x = { name: 'x', shape: [1, count], datatype: 'BYTES' };
      const bytes = Buffer.alloc(4 * count);
      const parameters = { binary_data_size: bytes.length };
      const replies = [
        await client.infer('string', { inputs: [{ ...x, data: Array(count).fill('') }] }),
        await client.infer('string', { inputs: [{ ...x, parameters }] }, [bytes]),
      ];
      return replies.map(({ status, json }) => [
        status,
        json['error'] ?? (json['outputs'] as [{ data: string[] }])[0].data.length,
      ]);
    };

    expect(await send(65_536)).toEqual([
      [200, 65_536],
      [200, 65_536],
    ]);
    const refusal = expect.stringMatching(/more than 65536 texts; send fewer/);
    expect(await send(65_537)).toEqual([
      [400, refusal],
      [400, refusal],
    ]);
  });

  it('[FZ2] A thread reads JSON of thousands of lists, however short it is', async () => {
    const { client } = await start({ servings: ['float32'] });
    const send = async (rows: number) => {
      const data = Array.from({ length: rows }, (_, i) => [i]);
      const { json } = await client.infer('float32', {
        inputs: [{ name: 'x', shape: [rows, 1], datatype: 'FP32', data }],
      });
      return (json['outputs'] as [{ data: number[] }])[0].data;
    };
    const inThread = jest.spyOn(JobThread.prototype, 'run');

    expect(await send(4000)).toHaveLength(4000);
    expect(inThread).not.toHaveBeenCalled();
    expect(await send(5000)).toEqual(Array.from({ length: 5000 }, (_, i) => i));
    expect(inThread).toHaveBeenCalledTimes(1);
    inThread.mockRestore();
  });

  it('[18.13] Large binary bodies need no larger limit of the application', async () => {
    const { client } = await start();
    const rows = 1000;
    const bytes = Buffer.alloc(rows * 784 * 4);

    const { status, json } = await client.infer(
      'digits',
      {
        inputs: [
          {
            name: 'image',
            shape: [rows, 784],
            datatype: 'FP32',
            parameters: { binary_data_size: bytes.length },
          },
        ],
      },
      [bytes],
      // Nest's parser would take this type, and refuse its size.
      { 'content-type': 'application/json' },
    );
    expect([status, json['outputs']]).toEqual([
      200,
      [expect.objectContaining({ shape: [rows, 10] })],
    ]);
  });

  it('[18.14] Requests may be compressed, and replies are where the client accepts it', async () => {
    const { client } = await start();
    const body = Buffer.from(JSON.stringify({ inputs: [zeros(60)] }));
    const send = (encoding: string, accept: string) =>
      new Promise<IncomingMessage & { body: Buffer }>((resolve, reject) => {
        const request = httpRequest(
          `${client.url}/v2/models/digits/infer`,
          {
            method: 'POST',
            headers: { 'content-encoding': encoding, 'accept-encoding': accept },
          },
          (response) => {
            const chunks: Buffer[] = [];
            response.on('data', (chunk: Buffer) => chunks.push(chunk));
            response.on('end', () =>
              resolve(Object.assign(response, { body: Buffer.concat(chunks) })),
            );
          },
        );
        request.on('error', reject);
        request.end(encoding === 'gzip' ? gzipSync(body) : deflateSync(body));
      });

    const gzipped = await send('gzip', 'br, gzip, deflate');
    const deflated = await send('deflate', 'gzip;q=0, deflate');
    const plain = await send('gzip', 'identity');

    expect([gzipped, deflated, plain].map(({ headers }) => headers['content-encoding'])).toEqual([
      'gzip',
      'deflate',
      undefined,
    ]);
    expect(gunzipSync(gzipped.body)).toEqual(plain.body);
    expect(inflateSync(deflated.body)).toEqual(plain.body);
  });

  it('[18.11] Models are loaded and unloaded behind guards, and the index shows it', async () => {
    const { client } = await start({
      servings: ['digits', 'echo'],
      repository: { guards: [KeyGuard] },
    });
    const post = (path: string, headers: Record<string, string> = {}, body?: string) =>
      client.send(`/v2/repository/${path}`, { method: 'POST', headers, ...(body && { body }) });
    const key = { 'x-key': 'right' };

    expect((await post('models/digits/unload')).status).toBe(401);
    const unloaded = await post('models/digits/unload', key, '{"parameters":{}}');
    expect([unloaded.status, unloaded.bytes.length]).toEqual([200, 0]);
    expect((await post('index')).json).toEqual([
      { name: 'digits', version: '1', state: 'UNAVAILABLE', reason: 'unloaded' },
      { name: 'echo', version: '1', state: 'READY', reason: '' },
    ]);
    expect((await post('index', {}, '{"ready":true}')).json).toHaveLength(1);
    expect(await client.infer('digits', { inputs: [zeros(1)] })).toMatchObject({
      status: 503,
      json: { error: expect.stringContaining('was unloaded') },
    });
    expect((await client.send('/v2/models/digits/ready')).status).toBe(503);
    expect((await client.send('/v2/health/ready')).status).toBe(200);

    const config = '{"parameters":{"config":"{}"}}';
    expect((await post('models/digits/load', key, config)).status).toBe(501);
    expect((await post('models/digits/load', key)).status).toBe(200);
    expect((await client.infer('digits', { inputs: [zeros(1)] })).status).toBe(200);
  });

  it('[18.11] [P3] Loading a model reads its file again, also after unloading and several at a time, loses no call, and says why it fails', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'protocol-'));
    const model = join(folder, 'gain.onnx');
    await writeFile(model, gainModel(2));
    const { client } = await start({
      servings: ['gain'],
      repository: { guards: [KeyGuard] },
      more: [defineServing({ name: 'gain', model })],
    });
    const x = { name: 'x', datatype: 'FP32', shape: [1, 2], data: [1, 1] };
    const gain = async () => (await client.infer('gain', { inputs: [x] })).json;
    const post = (call: string) =>
      client.send(`/v2/repository/models/gain/${call}`, {
        method: 'POST',
        headers: { 'x-key': 'right' },
      });
    const load = () => post('load');
    expect(await gain()).toMatchObject({ outputs: [{ data: [2, 2] }] });

    await writeFile(model, gainModel(3));
    const [loaded, during] = await Promise.all([load(), gain()]);
    expect(loaded.status).toBe(200);
    expect(during).toMatchObject({ model_version: '1' });
    expect(await gain()).toMatchObject({ outputs: [{ data: [3, 3] }] });

    await writeFile(model, 'no model');
    expect(await load()).toMatchObject({
      status: 400,
      json: {
        error: expect.stringMatching(/^Loading model "gain" failed: .* it is not an ONNX file/),
      },
    });
    expect(await gain()).toMatchObject({ outputs: [{ data: [3, 3] }] });

    await writeFile(model, gainModel(4));
    expect((await Promise.all([load(), load(), load()])).map(({ status }) => status)).toEqual([
      200, 200, 200,
    ]);
    expect(await gain()).toMatchObject({ outputs: [{ data: [4, 4] }] });

    await post('unload');
    await writeFile(model, 'no model');
    expect((await load()).status).toBe(400);
    expect((await client.infer('gain', { inputs: [x] })).status).toBe(503);
    await writeFile(model, gainModel(5));
    expect((await load()).status).toBe(200);
    expect(await gain()).toMatchObject({ outputs: [{ data: [5, 5] }] });
    await rm(folder, { recursive: true });
  });

  it('[FU62] A model that is unloaded while it loads stays unloaded, until a later load', async () => {
    const [entered, gate] = [withResolvers(), withResolvers()];
    let isLater = false;
    const { client } = await start({
      servings: [{ serving: 'gated', inputs: { x: 'FP32[2]' }, outputs: { y: 'FP32[2]' } }],
      repository: { guards: [KeyGuard] },
      more: [
        defineServing({
          name: 'gated',
          model: { file: gainModel(2) },
          warmUp: [new Tensor('float32', [1, 1], [1, 2])],
          // The load waits for its warm-up.
          preprocess: async (x: Tensor) => {
            if (isLater) {
              entered.resolve();
              await gate.promise;
            }
            return { batch: { x } };
          },
        }),
      ],
    });
    const post = async (call: string) => {
      const path = `/v2/repository/models/gated/${call}`;
      const headers = { 'x-key': 'right' };
      return (await client.send(path, { method: 'POST', headers })).status;
    };
    const ready = async () => (await client.send('/v2/models/gated/ready')).status;

    isLater = true;
    const loading = post('load');
    await entered.promise;
    expect(await post('unload')).toBe(200);
    gate.resolve();
    expect([await loading, await ready()]).toEqual([200, 503]);
    expect([await post('load'), await ready()]).toEqual([200, 200]);
  });

  it('[FU63] A reply names the version that ran it, also if a reload has replaced it meanwhile', async () => {
    const [entered, gate] = [withResolvers(), withResolvers()];
    const { client, site } = await start({
      servings: [{ serving: 'gain', inputs: { x: 'FP32[2]' }, outputs: { y: 'FP32[2]' } }],
      more: [
        defineServing({
          name: 'gain',
          model: { file: gainModel(2) },
          rollout: { version: 'july' },
          preprocess: ({ x }: { x: Tensor }) => ({ batch: { x } }),
          postprocess: async ({ y }: { y: Tensor }) => {
            entered.resolve();
            await gate.promise;
            return y;
          },
        }),
      ],
    });
    const x = { name: 'x', datatype: 'FP32', shape: [1, 2], data: [1, 1] };
    const infer = async () => (await client.infer('gain', { inputs: [x] })).json;

    const early = infer();
    await entered.promise;
    const serving = site.app.get(ServingService).get('gain');
    await serving.reload({ model: gainModel(3), version: 'august' });
    gate.resolve();
    expect(await early).toMatchObject({ model_version: 'july', outputs: [{ data: [2, 2] }] });
    const late = { model_version: 'august', outputs: [{ data: [3, 3] }] };
    expect(await infer()).toMatchObject(late);
  });

  it.each([
    [
      'is answered by the next one',
      true,
      [200, { model_version: 'august', outputs: [{ data: ['3', '6', '9'] }] }],
    ],
    [
      'fails if its rows must not run twice',
      false,
      [503, { error: 'Service Unavailable (SERVING_UNAVAILABLE)' }],
    ],
  ])('[18.23] A request whose version ends between two rows %s', async (_, idempotent, reply) => {
    let onRow: (() => unknown) | undefined;
    const { client, site } = await start({
      servings: ['gain'],
      more: [
        defineServing({
          name: 'gain',
          model: { file: gainModel(2), isolation: 'none' },
          rollout: { version: 'july', versions: { august: { model: gainModel(3) } } },
          recovery: { idempotent },
          preprocess: (value: number) => {
            onRow?.();
            return { batch: { x: new Tensor('float32', [value, 0], [1, 2]) } };
          },
          postprocess: ({ y }: { y: Tensor }) => y.data[0],
        }),
      ],
    });
    const serving = site.app.get(ServingService).get('gain');
    let promoted: Promise<void> | undefined;
    onRow = () => (promoted ??= serving.version('august').promote());
    const rows = { name: 'input', datatype: 'BYTES', shape: [3], data: ['1', '2', '3'] };
    const { status, json } = await client.infer('gain', { inputs: [rows] });

    await promoted;
    expect([status, json]).toMatchObject(reply);
  });

  it('[18.11] Without the option nobody loads or unloads', async () => {
    const { client } = await start();
    const { status } = await client.send('/v2/repository/models/digits/unload', { method: 'POST' });

    expect(status).toBe(501);
    expect((await client.infer('digits', { inputs: [zeros(1)] })).status).toBe(200);
  });

  it('[P11] Numbers that JSON cannot hold exactly are refused, with what to send in their place', async () => {
    const { client } = await start();
    const infer = (model: string, datatype: string, data: string) =>
      client.infer(
        model,
        `{"inputs":[{"name":"x","shape":[1,1],"datatype":"${datatype}","data":[${data}]}]}`,
      );

    const replies = [
      await infer('float32', 'FP32', '1e999'),
      await infer('float64', 'FP64', '-1e999'),
      await infer('int64', 'INT64', '9007199254740993'),
      await infer('uint64', 'UINT64', '18446744073709551615'),
    ];
    expect(replies.map(({ status, json }) => [status, json])).toEqual([
      [
        400,
        { error: expect.stringContaining('"body.inputs.0.data.0" in the request is Infinity') },
      ],
      [400, { error: expect.stringContaining('is -Infinity') }],
      [400, { error: expect.stringContaining('a number beyond 2 ** 53, which JSON has rounded') }],
      [400, { error: expect.stringContaining('send it as a string of digits') }],
    ]);
    expect((await infer('float32', 'FP32', '"Infinity"')).status).toBe(200);
    expect((await infer('int64', 'INT64', '"9007199254740993"')).json['outputs']).toMatchObject([
      { data: ['9007199254740993'] },
    ]);
    const row = { name: 'input', shape: [1], datatype: 'BYTES', data: ['{"a":1e999}'] };
    expect(await client.infer('echo', { inputs: [row] })).toMatchObject({ status: 400 });
  });

  it('[P11] A part of a request that is null is as one that is missing', async () => {
    const { client } = await start();
    const x = { name: 'x', shape: [1, 1], datatype: 'FP32', data: [1], parameters: null };
    const { status, json } = await client.infer('float32', {
      id: null,
      parameters: null,
      outputs: null,
      inputs: [x],
    });

    expect([status, 'id' in json]).toEqual([200, false]);
    const outputs = [{ name: 'x', parameters: null }];
    expect((await client.infer('float32', { inputs: [x], outputs })).status).toBe(200);
  });

  it('[P11] A path of the protocol may end with a slash', async () => {
    const { client } = await start({ servings: ['digits'] });
    const infer = { method: 'POST', body: JSON.stringify({ inputs: [zeros(1)] }) };

    expect((await client.send('/v2/')).json).toMatchObject({ name: 'nestjs-serving' });
    expect((await client.send('/v2/health/ready/')).status).toBe(200);
    expect((await client.send('/v2/models/digits/')).json).toMatchObject({ name: 'digits' });
    expect((await client.send('/v2/models/digits/infer/', infer)).status).toBe(200);
  });

  it('[P11] Replies of an application that shuts down close their connections', async () => {
    const { client, site } = await start();
    const row = { name: 'input', shape: [1], datatype: 'BYTES', data: ['1'] };

    expect((await client.send('/v2')).headers.get('connection')).toBe('keep-alive');
    const running = client.infer('held', { inputs: [row] });
    await until(() => held.batches.length === 1);
    const closed = site.app.close();
    await until(
      () =>
        !site.app
          .get(ServingService)
          .health()
          .every(({ isReady }) => isReady),
    );
    held.next().finish([1]);
    const { status, headers } = await running;

    expect([status, headers.get('connection')]).toEqual([200, 'close']);
    await closed;
  });

  it('[P11] Elements of BYTES that are not UTF-8 reach functions as Uint8Arrays, and come back', async () => {
    const { client } = await start({
      servings: [
        { serving: 'echo', inputs: { image: 'BYTES' }, outputs: { same: 'BYTES' } },
        { serving: 'held', model: 'json' },
      ],
    });
    const jpeg = Buffer.from([0xff, 0xd8, 0xff, 0xe0, 0, 0x10]);
    const bytes = Buffer.concat([
      Buffer.from([6, 0, 0, 0]),
      jpeg,
      Buffer.from([2, 0, 0, 0]),
      Buffer.from('ab'),
    ]);
    const image = {
      name: 'image',
      datatype: 'BYTES',
      shape: [2, 1],
      parameters: { binary_data_size: bytes.length },
    };
    const parameters = { binary_data_output: true };

    const { json, binary } = await client.infer('echo', { inputs: [image], parameters }, [bytes]);
    expect(json['outputs']).toMatchObject([{ name: 'same', datatype: 'BYTES', shape: [2] }]);
    expect(binary).toEqual(bytes);

    expect(await client.infer('echo', { inputs: [image] }, [bytes])).toMatchObject({
      status: 400,
      json: { error: expect.stringContaining('ask for it with the parameter binary_data') },
    });
    const raw = { 'inference-header-content-length': '0' };
    expect((await client.infer('echo', '', [jpeg], raw)).binary.subarray(4)).toEqual(jpeg);
    expect(
      await client.infer('json', { inputs: [{ ...image, name: 'input', shape: [2] }] }, [bytes]),
    ).toMatchObject({ status: 400, json: { error: expect.stringContaining('is not UTF-8') } });
  });

  it('[P7] Only the outputs of a model are compressed, which every client reads', async () => {
    const names = Array.from({ length: 40 }, (_, i) => `a-serving-of-a-long-name-${i}`);
    const { client } = await start({
      more: names.map((name) =>
        defineServing({ name, model: { useFactory: () => (rows: unknown) => rows } }),
      ),
    });
    const encodingOf = async (path: string, init: RequestInit = {}) => {
      const { bytes, headers } = await client.send(path, init);
      expect(bytes.length).toBeGreaterThan(1024);
      return headers.get('content-encoding');
    };

    expect(await encodingOf('/v2/repository/index', { method: 'POST' })).toBeNull();
    expect(await encodingOf('/v2/models/stats')).toBeNull();
    expect(await encodingOf('/v2/models/nix')).toBeNull();
    const body = JSON.stringify({ inputs: [zeros(60)] });
    expect(await encodingOf('/v2/models/digits/infer', { method: 'POST', body })).toBe('gzip');
  });
});
