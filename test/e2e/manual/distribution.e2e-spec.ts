import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type DynamicModule, type INestApplicationContext, Logger } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
// #region imports
import { Body, Controller, Get, Module, Post } from '@nestjs/common';
import { Transport } from '@nestjs/microservices';
import { Batched, defineServing, ServingModule, ServingService } from 'nestjs-serving';
import { ServingCluster, ServingClusterModule } from 'nestjs-serving/distribution';
// #endregion
import { MemoryNetwork } from 'nestjs-serving/distribution';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { Test } from '@nestjs/testing';
import { freePort } from '../../fixtures/http/free-port.js';

process.env['SERVING_PEERS'] = `127.0.0.1:${await freePort()}`;
process.env['SERVING_PORT'] = process.env['SERVING_PEERS'].split(':')[1]!;
process.env['SERVING_SOCKET'] = join(tmpdir(), `manual-${process.pid}.sock`);

// #region nodes
const peers = process.env['SERVING_PEERS']?.split(',') ?? []; // host:port of each model node
const port = Number(process.env['SERVING_PORT']); // where a model node listens

const shouter = defineServing({
  name: 'shouter',
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.toUpperCase()) },
});

@Module({
  imports: [
    ServingModule.forRoot({ servings: [shouter] }),
    ServingClusterModule.forRoot({ transport: Transport.TCP, options: { port }, peers }),
  ],
})
export class ModelNode {}

@Module({
  imports: [
    ServingModule.forRoot(),
    ServingClusterModule.forRoot({ transport: Transport.TCP, peers, remotes: ['shouter'] }),
  ],
})
export class WebNode {}
// #endregion

// #region call
@Controller()
export class ShoutController {
  constructor(private readonly servings: ServingService) {}

  @Post('shout')
  shout(@Body('text') text: string): Promise<string> {
    return this.servings.batchedRun('shouter', text);
  }

  @Post('cry')
  @Batched('shouter')
  cry(@Body('text') text: string): string {
    return `${text}!`;
  }
}
// #endregion

// #region sides
export class Sides {
  constructor(private readonly servings: ServingService) {}

  async all(text: string): Promise<unknown[]> {
    return [
      // In this application if it has the serving, else on another node.
      await this.servings.batchedRun('shouter', text),
      // On any node of the cluster, this one included.
      await this.servings.batchedRun({ distributed: 'shouter' }, text),
      // In this application, else UnknownServingError.
      await this.servings.batchedRun({ local: 'shouter' }, text),
    ];
  }
}
// #endregion

// #region known
@Controller('nodes')
export class NodesController {
  constructor(private readonly cluster: ServingCluster) {}

  @Get()
  nodes() {
    return this.cluster.nodes().map(({ id, state, servings }) => ({
      id,
      state, // 'up', 'draining' or 'silent'
      servings: servings.map(({ name, weight, partitions, queued }) => ({
        name,
        weight,
        partitions,
        queued,
      })),
    }));
  }
}
// #endregion

// #region nats
export const overNats = {
  transport: Transport.NATS as const,
  options: { servers: 'nats://nats:4222', user: 'serving', pass: process.env['NATS_PASS'] },
  namespace: 'production',
  secret: process.env['SERVING_SECRET'], // Signs every packet.
};
// #endregion

// #region unix
const socket = process.env['SERVING_SOCKET'] ?? '/run/app/models.sock';

/** The process with the models. */
export const modelProcess = {
  transport: Transport.TCP as const,
  options: { path: socket },
};

/** Each of the processes that answer HTTP. */
export const webProcess = {
  transport: Transport.TCP as const,
  peers: [socket],
};
// #endregion

// #region shared
export const thumbnails = defineServing({
  name: 'thumbnails',
  distribution: {
    // On the caller's side: drops the alpha channel before the image is sent.
    preprocess: (image: Uint8ClampedArray) => image.filter((_, byte) => byte % 4 < 3),
    // On the model's side: sends only the first three values back.
    postprocess: (output: Float32Array) => Array.from(output.subarray(0, 3)),
  },
  model: {
    useFactory: () => (images: Uint8ClampedArray[]) =>
      images.map((image) => Float32Array.from(image, (value) => value / 255)),
  },
});
// #endregion

describe('The chapter on distribution', () => {
  const apps: INestApplicationContext[] = [];
  const start = async (
    module: Parameters<typeof NestFactory.createApplicationContext>[0],
  ): Promise<INestApplicationContext> => {
    const app = await NestFactory.createApplicationContext(module, {
      logger: false,
      abortOnError: false,
    });
    apps.push(app);
    return app;
  };

  beforeEach(() => Logger.overrideLogger(false));
  afterEach(() => Promise.all(apps.splice(0).map((app) => app.close())));

  it("[11] The manual's node without models calls the one with models", async () => {
    const owner = await start(ModelNode);
    const web = await start(WebNode);

    expect(await web.get(ServingService).batchedRun('shouter', 'a')).toBe('A');
    expect(await new ShoutController(web.get(ServingService)).shout('b')).toBe('B');
    expect(await new Sides(owner.get(ServingService)).all('c')).toEqual(['C', 'C', 'C']);
  });

  it("[11.1] The manual's processes of one machine meet at a Unix socket", async () => {
    await start({
      module: class {},
      imports: [
        ServingModule.forRoot({ servings: [shouter] }),
        ServingClusterModule.forRoot(modelProcess),
      ],
    });
    const web = await start({
      module: class {},
      imports: [ServingModule.forRoot(), ServingClusterModule.forRoot(webProcess)],
    });

    expect(await web.get(ServingService).batchedRun('shouter', 'a')).toBe('A');
  });

  it("[11] The manual's @Batched() method runs on another node", async () => {
    await start(ModelNode);
    const app = await NestFactory.create(
      { module: class {}, imports: [WebNode], controllers: [ShoutController] },
      { logger: false },
    );
    apps.push(app);
    await app.listen(0, '127.0.0.1');

    const response = await fetch(`${await app.getUrl()}/cry`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ text: 'wolf' }),
    });

    expect(await response.text()).toBe('WOLF!');
  });

  it("[M3] The manual's controller lists the nodes with their servings and weights", async () => {
    const owner = await start(ModelNode);
    const web = await start(WebNode);
    await web.get(ServingService).batchedRun('shouter', 'a');

    const nodes = new NodesController(web.get(ServingCluster)).nodes();
    const shouters = [{ name: 'shouter', weight: 1, partitions: 1, queued: 0 }];
    expect(nodes).toEqual(
      expect.arrayContaining([
        { id: expect.any(String), state: 'up', servings: [] },
        { id: expect.any(String), state: 'up', servings: shouters },
      ]),
    );
    expect(nodes).toHaveLength(2);
    expect(
      web
        .get(ServingCluster)
        .nodes()
        .filter(({ isSelf }) => isSelf),
    ).toMatchObject([{ role: 'client' }]);
    expect(
      owner
        .get(ServingCluster)
        .nodes()
        .filter(({ isSelf }) => isSelf),
    ).toMatchObject([{ role: 'node' }]);
  });

  it("[11] The manual's serving preprocesses at the caller and postprocesses at the owner", async () => {
    await start({ module: class {}, imports: nodeWith(thumbnails) });
    const web = await start(WebNode);

    expect(
      await web
        .get(ServingService)
        .batchedRun(thumbnails, Uint8ClampedArray.of(255, 0, 51, 9, 255, 1, 1, 9)),
    ).toEqual([1, 0, expect.closeTo(0.2)]);
  });
});

describe('A cluster in one process', () => {
  beforeEach(() => Logger.overrideLogger(false));

  it("[11] The manual's test calls another node over the memory network", async () => {
    // #region memory
    const network = new MemoryNetwork();
    const owner = await build(
      ServingModule.forRoot({ servings: [shouter] }),
      ServingClusterModule.forRoot({ transport: network.transport() }),
    );
    const caller = await build(
      ServingModule.forRoot(),
      ServingClusterModule.forRoot({ transport: network.transport() }),
    );
    await Promise.all([owner.init(), caller.init()]);

    expect(await caller.get(ServingService).batchedRun('shouter', 'hello')).toBe('HELLO');
    // #endregion
    await Promise.all([owner.close(), caller.close()]);
  });
});

function nodeWith(serving: typeof thumbnails) {
  return [
    ServingModule.forRoot({ servings: [serving] }),
    ServingClusterModule.forRoot({ transport: Transport.TCP, options: { port }, peers }),
  ];
}

function build(...imports: DynamicModule[]) {
  return Test.createTestingModule({ imports }).compile();
}
