import { createHash } from 'node:crypto';
import { deflateSync, gzipSync } from 'node:zlib';
import type { INestApplication } from '@nestjs/common';
import type { Arbitrary } from 'fast-check';
import * as fc from 'fast-check';
import { defineServing, ServingModule } from 'nestjs-serving';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import { images, sameProbabilities } from './digits.js';
import type { Attack, Entry, Outcome } from './entry.js';
import { jsonText, names, noise } from './hostile-json.js';
import { listening, type Platform } from './listening.js';

/** The bytes of a body that the server takes. */
const LIMIT = 2 ** 20;

const echo = (rows: unknown): unknown => rows;
const servings = [
  defineServing({ name: 'digits', model: 'sample/01-digits/model/digits.onnx' }),
  defineServing({ name: 'echo', model: { useFactory: () => echo } }),
  defineServing({
    name: 'texts',
    model: {
      useFactory: () => echo,
      signature: { template: { x: { type: 'string', shape: [null, null] } } },
    },
  }),
  defineServing({
    name: 'wholes',
    model: {
      useFactory: () => echo,
      signature: { template: { x: { type: 'int64', shape: [null, null] } } },
    },
  }),
];

/** An application with the door that is attacked, listening. */
export function openProtocol(platform: Platform): Promise<INestApplication> {
  const module = {
    module: class {},
    imports: [
      ServingModule.forRoot({ servings }),
      InferenceProtocolModule.forRoot({ bodyLimit: LIMIT }),
    ],
  };
  return listening(platform, module);
}

interface Request {
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Buffer;
}

const path = fc.oneof(
  {
    arbitrary: fc
      .constantFrom('digits', 'echo', 'texts', 'wholes')
      .map((model) => `/v2/models/${model}/infer`),
    weight: 12,
  },
  fc.constantFrom(
    '/v2/models/echo/versions/1/infer',
    '/v2/models/echo/versions/x/infer',
    '/v2/models/%00/infer',
    '/v2/models/%zz/infer',
    '/V2/models/echo/INFER/',
    '/v2/models/echo/infer?a=b',
    '/v2/repository/index',
    '/v2/repository/models/echo/load',
  ),
  // Without a name, the path is none of the protocol.
  names
    .filter((name) => name !== '' && name !== '.')
    .map((name) => `/v2/models/${encodeURIComponent(Buffer.from(name).toString())}/infer`),
);

const names64 = fc.oneof(fc.constantFrom('image', 'x', 'input', 'output'), names);
const sizes = fc.oneof(
  fc.nat({ max: 8 }),
  fc.constantFrom(784, -1, 0.5, 2 ** 31, 2 ** 32, 2 ** 53, 1e300),
);
const datatypes = fc.oneof(
  fc.constantFrom('FP32', 'INT64', 'BYTES', 'BOOL', 'FP16', 'BF16', 'UINT4', 'TYPE_FP32'),
  names,
);

/** What could pass for a parameter of a request or tensor. */
const parameters = fc
  .dictionary(
    fc.oneof(
      fc.constantFrom(
        'binary_data_size',
        'binary_data',
        'binary_data_output',
        'priority',
        'timeout',
        'sequence_id',
        'sequence_start',
        'content_type',
        'shared_memory_region',
        'classification',
      ),
      names,
    ),
    fc.oneof(sizes, fc.boolean(), names, fc.constant('str'), fc.constant(null), fc.constant([])),
    { maxKeys: 3 },
  )
  .filter((given) => !('shared_memory_region' in given) || Object.keys(given).length > 1);

const tensor = fc.record(
  {
    name: names64,
    shape: fc.array(sizes, { maxLength: 18 }),
    datatype: datatypes,
    data: fc.array(fc.oneof(sizes, names, fc.boolean(), fc.array(sizes, { maxLength: 3 })), {
      maxLength: 8,
    }),
    parameters,
  },
  { requiredKeys: ['name'] },
);

/** A request that might be one, or anything else. */
const json: Arbitrary<string> = fc.oneof(
  {
    arbitrary: fc
      .record(
        {
          id: names,
          parameters,
          inputs: fc.array(tensor, { maxLength: 3 }),
          outputs: fc.array(fc.record({ name: names64, parameters }), { maxLength: 3 }),
        },
        { requiredKeys: ['inputs'] },
      )
      .map((request) => JSON.stringify(request)),
    weight: 4,
  },
  jsonText.map(
    (text) => `{"inputs":[{"name":"x","shape":[1,1],"datatype":"BYTES","data":${text}}]}`,
  ),
  jsonText.map((text) => `{"inputs":${text}}`),
  jsonText,
);

const BOMB = gzipSync(Buffer.alloc(32 * LIMIT));
type Encode = (body: Buffer) => { readonly encoding: string; readonly body: Buffer };
const encodings = fc.oneof(
  { arbitrary: fc.constant<Encode | undefined>(undefined), weight: 6 },
  fc.constantFrom<Encode>(
    (body) => ({ encoding: 'gzip', body: gzipSync(body) }),
    (body) => ({ encoding: 'deflate', body: deflateSync(body) }),
    (body) => ({ encoding: 'gzip', body: gzipSync(body).subarray(0, -5) }),
    (body) => ({ encoding: 'gzip', body }),
    (body) => ({ encoding: 'deflate', body: gzipSync(body) }),
    (body) => ({ encoding: 'zstd', body }),
    () => ({ encoding: 'gzip', body: BOMB }),
  ),
);

const lengths = fc.oneof(
  fc.constantFrom('-1', '0', '1e3', '99999999999', '9'.repeat(30), 'x', '1, 2', ' 5 ', '0x10'),
  fc.nat({ max: 3000 }).map(String),
);

const requests: Arbitrary<Request> = fc
  .record({
    path,
    json,
    binary: fc.option(fc.uint8Array({ maxLength: 4000 })),
    length: fc.option(lengths, { freq: 3 }),
    encode: encodings,
    type: fc.constantFrom(undefined, 'application/json', 'text/plain', 'application/octet-stream'),
    cut: fc.option(fc.double({ min: 0, max: 1, noNaN: true }), { freq: 6 }),
    spoil: fc.option(noise, { freq: 6 }),
  })
  .map(({ path: target, json: text, binary, length, encode, type, cut, spoil }) => {
    const head = Buffer.from(spoil === null ? text : text.replace(/[,:[{]/, spoil));
    const whole = Buffer.concat([head, binary ?? Buffer.alloc(0)]);
    const body = cut === null ? whole : whole.subarray(0, Math.floor(cut * whole.length));
    const encoded = encode?.(body);
    return {
      path: target,
      headers: {
        ...(type !== undefined && { 'content-type': type }),
        ...(encoded && { 'content-encoding': encoded.encoding }),
        ...((binary ?? length) !== null && {
          'inference-header-content-length': length ?? String(head.length),
        }),
      },
      body: encoded?.body ?? body,
    };
  });

interface Answer {
  readonly status: number;
  readonly type: string | null;
  readonly body: Buffer;
}

async function send(url: string, { path: target, headers, body }: Request): Promise<Answer> {
  const init = { method: 'POST', headers, body };
  const response = await fetch(url + target, init);
  return {
    status: response.status,
    type: response.headers.get('content-type'),
    body: Buffer.from(await response.arrayBuffer()),
  };
}

/** Answered, or refused in the form of the protocol; what it does not support is 501. */
function judge({ status, type, body }: Answer): Outcome {
  const word = String(status);
  if (status === 200) {
    return { word };
  }
  const text = body.toString();
  const isRefused = (status >= 400 && status < 500) || status === 501;
  if (!isRefused || text.length > 2000 || !type?.startsWith('application/json')) {
    return { word, fault: `failed badly: ${status}, ${type}, ${text.slice(0, 2000)}` };
  }
  const { error } = JSON.parse(text) as { error?: unknown };
  return typeof error === 'string'
    ? { word }
    : { word, fault: `has no error: ${text.slice(0, 2000)}` };
}

const attack = (request: Request, sent: () => Promise<Outcome>): Attack => ({
  send: sent,
  toString: () =>
    `POST ${request.path} ${JSON.stringify(request.headers)} ${createHash('md5').update(request.body).digest('hex')} ` +
    JSON.stringify(request.body.subarray(0, 400).toString('latin1')),
});

const probabilitiesIn = ({ body }: Answer): Float32Array =>
  new Float32Array(Uint8Array.from(body.subarray(-40)).buffer);

/** The Open Inference Protocol over HTTP: the JSON, the bytes behind it, and all that says where. */
export async function protocolOverHttp(name: string, url: string): Promise<Entry> {
  const valid = images.map((pixels): Request => {
    const bytes = Buffer.from(Float32Array.from(pixels).buffer);
    const head = Buffer.from(
      JSON.stringify({
        inputs: [
          {
            name: 'image',
            shape: [1, 784],
            datatype: 'FP32',
            parameters: { binary_data_size: bytes.length },
          },
        ],
        outputs: [{ name: 'probabilities', parameters: { binary_data: true } }],
      }),
    );
    return {
      path: '/v2/models/digits/infer',
      headers: { 'inference-header-content-length': String(head.length) },
      body: Buffer.concat([head, bytes]),
    };
  });
  // One after the other, each alone.
  const alone: Float32Array[] = [];
  for (const request of valid) {
    alone.push(probabilitiesIn(await send(url, request)));
  }
  return {
    name,
    hostile: requests.map((request) =>
      attack(request, async () => judge(await send(url, request))),
    ),
    valid: fc.nat(valid.length - 1).map((i) => {
      const request = valid[i]!;
      return attack(request, async () => {
        const answer = await send(url, request);
        const isRight =
          answer.status === 200 && sameProbabilities(probabilitiesIn(answer), alone[i]!);
        return isRight
          ? { word: 'right' }
          : { word: 'wrong', fault: `${answer.status} ${answer.body.toString()}` };
      });
    }),
  };
}
