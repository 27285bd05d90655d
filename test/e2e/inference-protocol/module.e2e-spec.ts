import { expect, it } from '@jest/globals';
import { Body, type CanActivate, Controller, Get, Injectable, Module, Post } from '@nestjs/common';
import { DocumentBuilder, SwaggerModule } from '@nestjs/swagger';
import { defineServing, ServingModule } from 'nestjs-serving';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import { NestFactory, RouterModule } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';
import { boot } from '../../fixtures/serving/text-servings.js';

const lengths = defineServing({
  name: 'lengths',
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.length) },
});
const root = ServingModule.forRoot({ servings: [lengths] });

/** A model with a state, and an input that the rows of a batch share. */
const vad = defineServing({
  name: 'vad',
  model: {
    file: 'sample/03-audio-streams/model/silero_vad_v6.onnx',
    state: { state: 'stateN' },
  },
});

@Injectable()
class Missing {}

@Injectable()
class NeedyGuard implements CanActivate {
  constructor(private readonly missing: Missing) {}

  canActivate(): boolean {
    return this.missing !== undefined;
  }
}

@Injectable()
class Keys {
  readonly isKnown = true;
}

@Injectable()
class KeysGuard implements CanActivate {
  constructor(private readonly keys: Keys) {}

  canActivate(): Promise<boolean> {
    return Promise.resolve(!this.keys.isKnown);
  }
}

@Module({ providers: [Keys], exports: [Keys] })
class KeysModule {}

@Controller('v2')
class OtherController {
  @Get('users')
  users(): string[] {
    return ['a'];
  }
}

@Controller()
class ShopController {
  @Post(['shop/orders', 'gateway/v2/models/:model/infer'])
  create(@Body() body: unknown): unknown {
    return body ?? null;
  }
}

describeOnPlatforms('InferenceProtocolModule', (listen) => {
  it('[18.15] A factory gives the options, and guards are made with what its module imports', async () => {
    const site = await listen({
      imports: [
        root,
        InferenceProtocolModule.forRootAsync({
          imports: [KeysModule],
          useFactory: () => ({ servings: ['lengths'], guards: [KeysGuard] }),
        }),
      ],
    });

    await expect(site.get('/v2/health/live')).resolves.toMatchObject({ status: 200 });
    await expect(site.get('/v2/models/lengths')).resolves.toMatchObject({
      status: 403,
      body: { error: 'Forbidden resource' },
    });
  });

  it('[18.12] Other routes below v2 are those of the application, and nothing is there without the module', async () => {
    const withDoor = await listen({
      imports: [root, InferenceProtocolModule.forRoot({})],
      controllers: [OtherController],
    });
    const without = await listen({ imports: [root], controllers: [OtherController] });

    for (const site of [withDoor, without]) {
      await expect(site.get('/v2/users')).resolves.toMatchObject({ status: 200, body: ['a'] });
    }
    expect((await without.get('/v2/models/lengths')).status).toBe(404);
    const { paths } = SwaggerModule.createDocument(withDoor.app, new DocumentBuilder().build());
    expect(Object.keys(paths)).toEqual(['/v2/users']);
  });

  it('[P5] Bodies of other routes are parsed as ever, whatever their URLs contain', async () => {
    const site = await listen({
      imports: [root, InferenceProtocolModule.forRoot({})],
      controllers: [ShopController],
    });

    for (const path of [
      '/shop/orders',
      '/shop/orders?back=/v2/models/x/infer',
      '/shop/orders?/v2/repository/index',
      '/gateway/v2/models/a/infer',
    ]) {
      expect(await site.post(path, { item: 1 })).toMatchObject({ status: 201, body: { item: 1 } });
    }
  });

  it('[P5] Bodies of the protocol are left alone behind a prefix of the application and a path of the module', async () => {
    const protocol = InferenceProtocolModule.forRoot({});
    const site = await listen(
      {
        imports: [
          root,
          protocol,
          RouterModule.register([{ path: 'models.ai', module: InferenceProtocolModule }]),
        ],
      },
      { configure: (app) => app.setGlobalPrefix('/api/:region') },
    );
    const inputs = [{ name: 'input', shape: [1], datatype: 'BYTES', data: ['"four"'] }];

    // The body parser of Express would refuse such a type of content, and Fastify any that it does not know.
    expect(
      await site.post(
        '/api/eu/models.ai/v2/models/lengths/infer',
        { inputs },
        { 'content-type': 'application/unknown' },
      ),
    ).toMatchObject({ status: 200, body: { outputs: [{ data: ['4'] }] } });
  });

  it('[18.7] The tenant of a request is that of the option', async () => {
    const seen: unknown[] = [];
    const site = await listen({
      imports: [
        ServingModule.forRoot({
          servings: [
            defineServing({
              name: 'sums',
              model: { useFactory: () => (rows: unknown[]) => rows, sessions: {} },
            }),
          ],
        }),
        InferenceProtocolModule.forRoot({
          tenant(context) {
            const { headers } = context
              .switchToHttp()
              .getRequest<{ readonly headers: Readonly<Record<string, string>> }>();
            seen.push(headers['x-tenant']);
            return headers['x-tenant'];
          },
        }),
      ],
    });
    const step = (tenant: string, more: object) =>
      site.post(
        '/v2/models/sums/infer',
        {
          inputs: [{ name: 'input', shape: [1], datatype: 'BYTES', data: ['1'] }],
          parameters: { sequence_id: 1, ...more },
        },
        { 'x-tenant': tenant },
      );

    expect((await step('a', { sequence_start: true })).status).toBe(200);
    expect((await step('b', {})).status).toBe(400);
    expect((await step('a', {})).status).toBe(200);
    expect(seen).toEqual(['a', 'b', 'a']);
  });

  it('[18.8] [18.1] A model with a state and a shared input has sequences, and full shapes', async () => {
    const site = await listen({
      imports: [ServingModule.forRoot({ servings: [vad] }), InferenceProtocolModule.forRoot({})],
    });
    const window = Array.from({ length: 576 }, (_, i) => Math.sin(i / 7));
    const step = async (id: number, more: object = {}) => {
      const { status, body } = await site.post('/v2/models/vad/infer', {
        inputs: [
          { name: 'input', shape: [1, 576], datatype: 'FP32', data: window },
          { name: 'sr', shape: [], datatype: 'INT64', data: [16_000] },
        ],
        parameters: { sequence_id: id, ...more },
      });
      expect(status).toBe(200);
      return (body as { outputs: { data: number[] }[] }).outputs[0]!.data[0]!;
    };

    const [first, second] = [await step(1, { sequence_start: true }), await step(1)];
    const other = [await step(2, { sequence_start: true }), await step(2)];
    expect(first).not.toBe(second);
    expect(other).toEqual([first, second]);

    const { body } = await site.get('/v2/models/vad/config');
    expect(body).toMatchObject({
      max_batch_size: 0,
      input: expect.arrayContaining([{ name: 'sr', data_type: 'TYPE_INT64', dims: [] }]),
      sequence_batching: { max_sequence_idle_microseconds: 60_000_000 },
    });
  });
});

it('[18.15] An application without an HTTP server boots', async () => {
  const module = { module: class {}, imports: [root, InferenceProtocolModule.forRoot({})] };
  const app = await NestFactory.createApplicationContext(module, { logger: false });

  await expect(app.close()).resolves.toBeUndefined();
});

it.each([
  [
    'without a ServingModule',
    { imports: [InferenceProtocolModule.forRoot({})] },
    'InferenceProtocolModule needs the servings of the application; import ServingModule.forRoot',
  ],
  [
    'with an unknown serving',
    { imports: [root, InferenceProtocolModule.forRoot({ servings: ['length'] })] },
    'there is no serving "length"; did you mean "lengths"? registered are: lengths',
  ],
  [
    'with a wrong option',
    { imports: [root, InferenceProtocolModule.forRoot({ bodyLimit: -1 })] },
    'InferenceProtocolModule: option "bodyLimit" is -1',
  ],
  [
    'with a guard that cannot be made',
    { imports: [root, InferenceProtocolModule.forRoot({ guards: [NeedyGuard] })] },
    "Nest can't resolve dependencies of the NeedyGuard",
  ],
])('[18.15] An application %s does not boot', async (_, metadata, message) => {
  await expect(boot(metadata)).rejects.toThrow(message);
});

it.each([{ ignoreTrailingSlash: true }, { routerOptions: { ignoreTrailingSlash: true } }])(
  '[P11] An application on Fastify may ignore slashes at the end of all paths: %j',
  async (options) => {
    const app = await NestFactory.create(
      { module: class {}, imports: [root, InferenceProtocolModule.forRoot({})] },
      new FastifyAdapter(options),
      { logger: false },
    );
    await app.listen(0, '127.0.0.1');

    expect((await fetch(`${await app.getUrl()}/v2/`)).status).toBe(200);
    await app.close();
  },
);
