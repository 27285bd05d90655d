import { beforeEach, expect, it } from '@jest/globals';
import {
  ClassSerializerInterceptor,
  Controller,
  Get,
  type MessageEvent,
  Post,
  Query,
  Sse,
  StreamableFile,
  UseInterceptors,
  ValidationPipe,
} from '@nestjs/common';
import { APP_INTERCEPTOR, APP_PIPE } from '@nestjs/core';
import { Exclude } from 'class-transformer';
import { IsObject, IsString } from 'class-validator';
import {
  Batched,
  InvalidServingError,
  ServingModule,
  ServingService,
  Tensor,
  TensorBody,
  TensorJsonInterceptor,
} from 'nestjs-serving';
import { from, type Observable } from 'rxjs';
import { describeOnPlatforms, type Site } from '../../fixtures/partitions/platforms.js';
import { floats } from '../../fixtures/values/tensors.js';

class PictureDto {
  @IsString()
  readonly title!: string;

  @IsObject()
  readonly image!: Tensor;
}

class Account {
  @Exclude()
  readonly password = 'secret';

  constructor(readonly vector: Tensor) {}
}

class Money {
  constructor(private readonly cents: number) {}

  toJSON(): string {
    return `${this.cents / 100} EUR`;
  }
}

const bytes = Buffer.from([1, 2, 3]);

/** The replies of `/replies/<name>`. */
const replies: Readonly<Record<string, () => unknown>> = {
  vector: () => Float32Array.of(1, 2.5),
  tensor: () => floats([1, 2], [1, 2]),
  nested: () => ({ of: [{ it: new Tensor('int64', [1n], []) }], at: new Date(0), no: undefined }),
  bigint: () => ({ id: 2n ** 64n }),
  plain: () => ({ at: new Date(0), price: new Money(250), nan: NaN, zero: -0, $tensor: 1 }),
  bytes: () => ({ inner: Uint8Array.of(1, 2), buffer: bytes }),
  file: () => new StreamableFile(bytes),
  text: () => 'text',
  list: () => [1, null, [true]],
  account: () => new Account(floats([1], [7])),
  lost: () => {
    const tensor = floats([1, 2], [1, 2]);
    structuredClone(tensor.data, { transfer: [(tensor.data as Float32Array<ArrayBuffer>).buffer] });
    return { tensor };
  },
  cycle: () => {
    const cycle: Record<string, unknown> = {};
    // Each level has twice as many paths as the one before.
    cycle['self'] = cycle;
    cycle['list'] = [cycle];
    return cycle;
  },
};

@Controller()
class TensorsController {
  @Get('replies')
  reply(@Query('name') name: string): unknown {
    return replies[name]!();
  }

  @Post('echo')
  echo(@TensorBody() body: unknown): unknown {
    return body;
  }

  @Post('base64')
  @UseInterceptors(new TensorJsonInterceptor({ tensors: 'base64' }))
  base64(@TensorBody() body: unknown): unknown {
    return body;
  }

  @Post('shapes')
  shape(@TensorBody('image') image: Tensor): unknown {
    return [image instanceof Tensor, image.dims];
  }

  @Post('pictures')
  picture(@TensorBody() body: PictureDto): unknown {
    const { title, image } = body;
    return [body instanceof PictureDto, title, image instanceof Tensor, image.dims];
  }

  @Post('sums')
  @Batched({ batchSize: 2, batchTimeout: 1_000_000, types: [Object] })
  sums(@TensorBody() rows: Tensor[]): Tensor[] {
    return rows.map(({ data }) => floats([1], [(data as Float32Array).reduce((a, b) => a + b)]));
  }

  @Sse('events')
  events(): Observable<MessageEvent> {
    return from([{ data: floats([1], [1]) }, { data: { vector: floats([1], [2]) } }]);
  }

  @Get('lines')
  async *lines(): AsyncGenerator {
    yield { vector: floats([1], [1]) };
    yield floats([1], [2]);
  }

  @Get('pieces')
  async *pieces(): AsyncGenerator {
    yield bytes;
    yield Uint8Array.of(4);
  }
}

@Controller()
class DigitsController {
  constructor(private readonly servings: ServingService) {}

  @Post('digits')
  digits(@TensorBody() image: Tensor): Promise<unknown> {
    return this.servings.batchedRun('digits', { image });
  }
}

const metadata = {
  imports: [ServingModule.forRoot()],
  controllers: [TensorsController],
  providers: [
    { provide: APP_INTERCEPTOR, useClass: ClassSerializerInterceptor },
    { provide: APP_INTERCEPTOR, useClass: TensorJsonInterceptor },
    {
      provide: APP_PIPE,
      useValue: new ValidationPipe({ transform: true, whitelist: true }),
    },
  ],
};

const tensor = (datatype: string, shape: unknown, data: unknown) => ({
  $tensor: { shape, datatype, data },
});
const base64 = (array: Uint8Array | Float32Array): string =>
  Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString('base64');

/** Each type as a client writes and reads it. */
const types: [string, unknown[]][] = [
  ['FP32', [0.5, -1.5, 2, 1e10, '-0', 'NaN']],
  ['FP64', [0.1, -1e300, 2, 3, 'Infinity', '-Infinity']],
  ['FP16', [1, -2, 'Infinity', 'NaN', 0.5, 65_504]],
  ['INT8', [-128, 127, 1, 2, 3, 4]],
  ['UINT8', [0, 255, 1, 2, 3, 4]],
  ['INT16', [-32_768, 32_767, 1, 2, 3, 4]],
  ['UINT16', [0, 65_535, 1, 2, 3, 4]],
  ['INT32', [-2_147_483_648, 2_147_483_647, 1, 2, 3, 4]],
  ['UINT32', [0, 4_294_967_295, 1, 2, 3, 4]],
  ['INT64', ['-9223372036854775808', 9_007_199_254_740_991, '9007199254740993', 2, 3, 4]],
  ['UINT64', [0, '18446744073709551615', 1, 2, 3, 4]],
  ['BOOL', [true, false, true, true, false, false]],
  ['BYTES', ['', 'größer', 'c', 'd', 'e', 'f']],
  ['UINT4', [0, 15, 1, 2, 3, 4]],
  ['INT4', [0, 7, 1, 2, 3, 4]],
];

describeOnPlatforms('Tensors over HTTP', (listen) => {
  let site: Site;

  beforeEach(async () => {
    site = await listen(metadata);
  });

  it.each(types)(
    '[10.6] A client sends and receives elements of %s exactly',
    async (type, data) => {
      const body = { deep: [tensor(type, [2, 3], data)] };

      expect((await site.post('/echo', body)).body).toEqual(body);
    },
  );

  it('[10.6] Elements may be nested in bodies, and come as one list', async () => {
    const nested = [
      [1, 2, 3],
      [4, 5, 6],
    ];
    expect((await site.post('/echo', tensor('INT32', [2, 3], nested))).body).toEqual(
      tensor('INT32', [2, 3], nested.flat()),
    );
  });

  it('[10.6] Elements may be base64 of their bytes, in both directions', async () => {
    const body = tensor('FP32', [2], base64(Float32Array.of(1.5, -2)));

    expect((await site.post('/echo', body)).body).toEqual(tensor('FP32', [2], [1.5, -2]));
    expect((await site.post('/base64', body)).body).toEqual(body);
  });

  it('[10.6] A tensor without elements and one without axes cross', async () => {
    const body = [tensor('FP32', [0, 3], []), tensor('INT64', [], [7])];

    expect((await site.post('/echo', body)).body).toEqual(body);
  });

  it('[10.6] A model answers to a body that is a tensor', async () => {
    const image = tensor(
      'FP32',
      [1, 784],
      Array.from({ length: 784 }, () => 0),
    );
    const digits = { name: 'digits', model: 'sample/01-digits/model/digits.onnx' };
    const withModel = await listen({
      ...metadata,
      imports: [ServingModule.forRoot({ servings: [digits] })],
      controllers: [DigitsController],
    });
    const { status, body } = await withModel.post('/digits', image);

    expect(status).toBe(201);
    expect(body).toEqual({
      probabilities: tensor(
        'FP32',
        [1, 10],
        Array.from({ length: 10 }, () => expect.any(Number)),
      ),
    });
  });

  it('[10.6] Bodies of a batched method become its rows, and each client gets its own tensor', async () => {
    const [first, second] = await Promise.all([
      site.post('/sums', tensor('FP32', [2], [1, 2])),
      site.post('/sums', tensor('FP32', [3], [3, 4, 5])),
    ]);

    expect([first.body, second.body]).toEqual([
      tensor('FP32', [1], [3]),
      tensor('FP32', [1], [12]),
    ]);
  });

  it('[10.6] One property of a body may be a tensor, behind a ValidationPipe', async () => {
    const image = tensor('UINT8', [1, 2], [1, 2]);

    expect((await site.post('/shapes', { title: 'a', image })).body).toEqual([true, [1, 2]]);
  });

  it('[10.6] A DTO keeps its class, and a tensor in it passes its validation', async () => {
    const image = tensor('UINT8', [1, 2], [1, 2]);

    expect((await site.post('/pictures', { title: 'a', image })).body).toEqual([
      true,
      'a',
      true,
      [1, 2],
    ]);
    expect((await site.post('/pictures', { title: 1, image })).status).toBe(400);
  });

  it.each<[string, unknown]>([
    ['vector', tensor('FP32', [2], [1, 2.5])],
    ['tensor', tensor('FP32', [1, 2], [1, 2])],
    ['nested', { of: [{ it: tensor('INT64', [], [1]) }], at: '1970-01-01T00:00:00.000Z' }],
    ['bigint', { id: { $bigint: '18446744073709551616' } }],
    ['plain', { at: '1970-01-01T00:00:00.000Z', price: '2.5 EUR', nan: null, zero: 0, $tensor: 1 }],
    ['bytes', { inner: tensor('UINT8', [2], [1, 2]), buffer: { type: 'Buffer', data: [1, 2, 3] } }],
    ['file', '\u0001\u0002\u0003'],
    ['text', 'text'],
    ['list', [1, null, [true]]],
    ['account', { vector: tensor('FP32', [1], [7]) }],
  ])('[10.6] A reply is sent as JSON: %s', async (name, body) => {
    const reply = await site.get(`/replies?name=${name}`);

    expect([reply.status, reply.body]).toEqual([200, body]);
  });

  it.each(['lost', 'cycle'])(
    '[10.6] A reply that cannot be written is answered with 500, and the next one is sent: %s',
    async (name) => {
      expect((await site.get(`/replies?name=${name}`)).status).toBe(500);
      expect((await site.get('/replies?name=text')).status).toBe(200);
    },
  );

  it.each<[string, unknown, string]>([
    [
      'a shape that does not fit the data',
      { image: tensor('FP32', [2, 2], [1, 2, 3]) },
      '"body.image.$tensor.data" in the request has 3 elements, which are not those of the shape [ 2, 2 ]',
    ],
    [
      'a shape beyond all memory',
      tensor('FP32', [4_294_967_295, 4_294_967_295], []),
      '"body.$tensor.data" in the request has 0 elements',
    ],
    ['a negative axis', tensor('FP32', [-1], []), '"body.$tensor.shape.0" in the request is -1'],
    [
      'no shape',
      { $tensor: { datatype: 'FP32', data: [] } },
      '"body.$tensor.shape" in the request',
    ],
    [
      'too many axes',
      tensor(
        'FP32',
        Array.from({ length: 17 }, () => 1),
        [1],
      ),
      'up to 16 axes',
    ],
    ['an unknown type', tensor('FP8', [1], [1]), '"body.$tensor.datatype" in the request is "FP8"'],
    [
      'a wrong element',
      tensor('INT8', [2], [1, 128]),
      '"body.$tensor.data.1" in the request is 128',
    ],
    [
      'a float that its type turns into Infinity',
      tensor('FP32', [2], [3.4028235677973362e38, 3.4028235677973366e38]),
      '"body.$tensor.data.1" in the request is 3.4028235677973366e+38; FP32 holds numbers in its range, "NaN"',
    ],
    [
      'a half float that its type turns into Infinity',
      tensor('FP16', [2], [65_519, -65_520]),
      '"body.$tensor.data.1" in the request is -65520; FP16 holds numbers in its range',
    ],
    [
      'a wrong element in a nested list',
      tensor('INT8', [1, 2], [[1, 'x']]),
      '"body.$tensor.data.0.1" in the request is "x"',
    ],
    [
      'an integer that has lost digits',
      [tensor('INT64', [1], [2 ** 60])],
      '"body.0.$tensor.data.0" in the request is',
    ],
    ['uneven lists', tensor('INT8', [2, 2], [[1, 2], [3]]), '"body.$tensor.data.1" in the request'],
    ['base64 of another length', tensor('FP32', [2], 'AAAA'), 'has 3 bytes of base64'],
    ['no base64', tensor('UINT8', [3], '!!!!'), 'no base64'],
    ['null', { $tensor: null }, '"body.$tensor" in the request'],
    ['another field', { $tensor: { ...tensor('FP32', [0], []).$tensor, type: 1 } }, 'has "type"'],
    [
      'a name beside it',
      { a: { ...tensor('FP32', [0], []), b: 1 } },
      '"body.a" in the request has',
    ],
    ['a bigint that is none', { $bigint: '1x' }, '"body.$bigint" in the request is "1x"'],
    ['a body that is too deep', `${'['.repeat(200)}${']'.repeat(200)}`, 'deeper than 64 levels'],
  ])('[10.6] A body is answered with 400 and the place: %s', async (_, body, message) => {
    const headers = { 'content-type': 'application/json' };
    const reply = await fetch(`${await site.app.getUrl()}/echo`, {
      method: 'POST',
      headers,
      body: typeof body === 'string' ? body : JSON.stringify(body),
    });

    expect(reply.status).toBe(400);
    expect(await reply.json()).toMatchObject({
      statusCode: 400,
      message: expect.stringContaining(message),
    });
  });

  it('[10.6] The body parser limits the size of tensors', async () => {
    const zeros = Array.from({ length: 1_000_000 }, () => 0);

    expect((await site.post('/echo', tensor('INT8', [1_000_000], zeros))).status).toBe(413);
  });

  it('[10.6] Tensors in server-sent events are JSON', async () => {
    const { body } = await site.get('/events');
    const events = [...(body as string).matchAll(/^data: (.*)$/gm)].map(([, data]) =>
      JSON.parse(data!),
    );

    expect(events).toEqual([tensor('FP32', [1], [1]), { vector: tensor('FP32', [1], [2]) }]);
  });

  it('[10.6] Tensors in a streamed reply are lines of JSON, and bytes stay bytes', async () => {
    const lines = await fetch(`${await site.app.getUrl()}/lines`);
    const pieces = await fetch(`${await site.app.getUrl()}/pieces`);

    expect(
      (await lines.text())
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line)),
    ).toEqual([{ vector: tensor('FP32', [1], [1]) }, tensor('FP32', [1], [2])]);
    expect(new Uint8Array(await pieces.arrayBuffer())).toEqual(Uint8Array.of(1, 2, 3, 4));
  });
});

it('[10.6] [1.9] An unknown form of tensors is refused', () => {
  expect(() => new TensorJsonInterceptor({ tensors: 'hex' as 'list' })).toThrow(
    new InvalidServingError(
      'TensorJsonInterceptor: option "tensors" is "hex"; allowed is "list" or "base64"',
    ),
  );
});
