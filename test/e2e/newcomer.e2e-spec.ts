import { execFile } from 'node:child_process';
import { createServer, type Socket } from 'node:net';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Controller, Get } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { Transport } from '@nestjs/microservices';
import {
  ApiKeyGuard,
  Batch,
  Batched,
  InjectServing,
  type ServingDefinition,
  ServingModule,
  ServingService,
  Tensor,
} from 'nestjs-serving';
import { ServingClusterModule } from 'nestjs-serving/distribution';
import { textEmbedding } from 'nestjs-serving/tasks';
import { VirtualTime } from 'nestjs-serving/testing';
import { recordWarnings } from '../fixtures/recorded-warnings.js';
import { useServings } from '../fixtures/serving/use-servings.js';
import { floats } from '../fixtures/values/tensors.js';

const run = promisify(execFile);
const digits = 'sample/01-digits/model/digits.onnx';
const image = floats(
  [1, 784],
  Array.from({ length: 784 }, () => 0),
);

/** Waits without giving the event loop back. */
function hold(milliseconds: number): void {
  const end = performance.now() + milliseconds;
  while (performance.now() < end);
}

/** A batch function that does so. */
const holding = (milliseconds: number) => (rows: unknown[]) => {
  hold(milliseconds);
  return rows;
};

const line = (name: string, why = '') =>
  expect.stringMatching(
    new RegExp(
      `^Serving "${name}" held the event loop for [\\d.]+ ms with a run of 1 row${why}\\. `,
    ),
  );

describe('What a newcomer meets', () => {
  const serve = useServings();
  let folder: string;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'newcomer-'));
    await mkdir(join(folder, 'models'));
    const files = {
      'models/mine.onnx': 'x',
      'empty.onnx': '',
      'rows.mjs': 'export default (rows) => rows.map((row) => row);',
      'cut.mjs': 'export default () => { return (rows) => rows;',
      'echo.mjs': 'export default () => (rows) => rows;',
      'exit.mjs': 'export default () => () => process.exit(3);',
    };
    for (const [name, content] of Object.entries(files)) {
      await writeFile(join(folder, name), content);
    }
  });

  afterAll(() => rm(folder, { recursive: true }));

  const inFolder = (name: string): string => join(folder, name);

  it.each<[string, () => object, string | RegExp]>([
    [
      '[FU13] a factory that is written as a batch function',
      () => ({ model: { useFactory: (rows: unknown[]) => rows.map((row) => row) } }),
      'Serving "net": The factory failed: rows.map is not a function. It is called once, without rows, and ' +
        'returns the batch function: () => (rows) => results',
    ],
    [
      '[FU13] the same in a file',
      () => ({ model: { useFile: inFolder('rows.mjs') } }),
      /^Serving "net": The factory failed: rows\.map is not a function\. .+ returns the batch function/,
    ],
    [
      '[FU14] the name of a model of the Hub',
      () => textEmbedding({ name: 'net', model: 'org/all-MiniLM-L6-v2' }),
      /there is no folder .+; for the model of that name on Hugging Face, write hf:org\/all-MiniLM-L6-v2$/,
    ],
    [
      '[FU17] a file with a syntax error',
      () => ({ model: { useFile: inFolder('cut.mjs') } }),
      /^Serving "net": Cannot load file:.+\/cut\.mjs: Unexpected end of input$/,
    ],
    [
      '[FU18] an empty model file',
      () => ({ model: inFolder('empty.onnx') }),
      /Cannot read the model .+\/empty\.onnx: the file is empty$/,
    ],
    [
      '[FU19] a folder as model',
      () => ({ model: inFolder('models') }),
      /it is a folder; name the ONNX file in it: mine\.onnx$/,
    ],
    [
      '[FU28] a provider that does not exist',
      () => ({ model: { file: digits, session: { executionProviders: ['gpu'] } } }),
      / on gpu \(onnxruntime-node does not offer it on [^;]+; it offers cpu, [^']+\)\.$/,
    ],
    [
      '[FU30] an option by another name',
      () => ({ modelPath: 'd.onnx' }),
      'Serving "net" has nothing to run its batches and the unknown option "modelPath"; did you mean "model"?; ' +
        'as its model give a file, endpoint(), or an object with exactly one of file, useFactory, useFile, ' +
        'useClass, useExisting',
    ],
  ])('The start explains %s', async (_, definition, message) => {
    await expect(
      (async () => serve({ name: 'net', ...definition() } as ServingDefinition))(),
    ).rejects.toThrow(message);
  });

  const echo = { useFactory: () => (rows: unknown[]) => rows };

  it.each<[string, object, unknown, string | RegExp]>([
    [
      '[FU24] which serving has a thread that cannot get a function',
      { useFile: 'echo.mjs' },
      { f: [() => 1] },
      /^Serving "net": The row cannot .* run it: row\.f\['0'\] is a function, and a thread or process gets only what structuredClone copies$/,
    ],
    [
      '[FU24] where in a row a thread cannot get a promise',
      { useFile: 'echo.mjs' },
      { user: { name: Promise.resolve('Ann') } },
      /^Serving "net": The row .* run it: row\.user\.name is a promise, and a thread or process gets only what structuredClone copies$/,
    ],
    [
      '[FU26] that a list of tensors is one row',
      { file: digits },
      [image, image],
      /"image" is missing; a list is one row, with these entries: for several rows give Batch\.stack\(\[\.\.\.\]\)$/,
    ],
    [
      '[FU27] that a list of values is one row',
      { useFactory: () => (rows: string[]) => rows.map((row) => row.toUpperCase()) },
      ['a', 'b'],
      'Serving "net": a batch of 1 row failed: row.toUpperCase is not a function; a plain list is one row: ' +
        'give several rows as Batch.stack([...])',
    ],
    [
      '[FU23] which serving lost a thread',
      { useFile: 'exit.mjs' },
      1,
      'Serving "net": The thread of partition 0 ended with code 3',
    ],
  ])('A call explains %s', async (_, model, row, message) => {
    const { useFile } = model as { useFile?: string };
    const serving = await serve({
      name: 'net',
      model: useFile === undefined ? model : { useFile: inFolder(useFile) },
    } as ServingDefinition);
    await expect(serving.batchedRun(row)).rejects.toThrow(message);
  });

  it("[FU47] A tensor of another length in preprocess is the caller's fault", async () => {
    const serving = await serve({
      name: 'net',
      preprocess: (ink: number[]) => ({
        batch: { image: new Tensor('float32', Float32Array.from(ink), [1, 784]) },
      }),
      model: digits,
    });
    await expect(serving.batchedRun([1, 2])).rejects.toMatchObject({
      statusCode: 400,
      message: 'Serving "net", preprocess: Tensor\'s size(784) does not match data length(2).',
    });
  });

  it('[FU6] A definition that a circular import has left undefined is explained', () => {
    const missing = undefined as unknown as string;
    expect(() => InjectServing(missing)).toThrow(
      /import each other; move the definition to a file of its own, or write its name: @InjectServing\('name'\)$/,
    );
  });

  it('[FU29] forRoot explains that it takes an object', () => {
    const list = [{ name: 'net', model: echo }] as never;
    expect(() => ServingModule.forRoot(list)).toThrow(
      /^ServingModule\.forRoot was given a list, and takes an object with imports, .+, servings$/,
    );
  });

  it('[FU15] A call in a test that has not started the application fails, and the error names app.init()', async () => {
    const imports = [ServingModule.forRoot({ servings: [{ name: 'net', model: echo }] })];
    const testing = await Test.createTestingModule({ imports }).compile();
    await expect(testing.get(ServingService).batchedRun('net', 1)).rejects.toThrow(
      /in a test call app\.init\(\), elsewhere start\(\)$/,
    );
  });

  it('[FU16] A wrong key is named as such, and a missing one is asked for', () => {
    const guard = new ApiKeyGuard('secret');
    const call = (headers: object) => () =>
      guard.canActivate({
        getType: () => 'http',
        switchToHttp: () => ({ getRequest: () => ({ headers }) }),
      } as never);
    expect(call({ authorization: 'Bearer wrong' })).toThrow('The key is not valid');
    expect(call({})).toThrow(
      'Send your key in the header x-api-key, or in authorization as: Bearer <key>',
    );
  });

  it('[FU31] A transport that carries no servings is called by its name', async () => {
    const module = ServingClusterModule.forRoot({ transport: Transport.RMQ } as never);
    const imports = [ServingModule.forRoot({ servings: [] }), module];
    await expect(Test.createTestingModule({ imports }).compile()).rejects.toThrow(
      'ServingClusterModule: transport Transport.RMQ does not carry servings',
    );
  });

  it.each([
    ['TCP', Transport.TCP, ''],
    ['Redis', Transport.REDIS, ' ioredis'],
    ['NATS', Transport.NATS, ' @nats-io/transport-node (with Nest 11, nats)'],
    ['gRPC', Transport.GRPC, ' @grpc/grpc-js @grpc/proto-loader'],
  ])('[FU21] One command installs all packages that %s needs', async (_, transport, client) => {
    const script = 'test/fixtures/children/no-microservices.mjs';
    const { stdout } = await run(process.execPath, [script, `${transport}`]);
    expect(stdout).toBe(
      'ServingClusterModule: Cannot find it; install all it needs: ' +
        `npm install @nestjs/microservices${client}\n`,
    );
  });

  it.each([
    [
      'NATS',
      Transport.NATS,
      (port: number) => ({ servers: `127.0.0.1:${port}` }),
      'servers or port',
    ],
    [
      'Redis',
      Transport.REDIS,
      (port: number) => ({ host: '127.0.0.1', port, retryAttempts: 0 }),
      'host and port',
    ],
    [
      'NATS',
      Transport.NATS,
      (port: number) => ({ servers: `nats://me:secret@127.0.0.1:${port}` }),
      'servers or port',
    ],
  ] as const)(
    '[FU20] A %s server that does not answer is named, with its address, without its password',
    async (name, transport, options, option) => {
      const server = createServer().listen(0, '127.0.0.1');
      await once(server, 'listening');
      const { port } = server.address() as { port: number };
      server.close();
      const cluster = { transport, options: options(port) } as never;
      const testing = await Test.createTestingModule({
        imports: [ServingModule.forRoot({ servings: [] }), ServingClusterModule.forRoot(cluster)],
      }).compile();
      await expect(testing.init()).rejects.toThrow(
        new RegExp(
          `^ServingClusterModule: the ${name} server at (?:nats://)?127\\.0\\.0\\.1:${port} cannot be used: .+; its ` +
            `address is in the options ${option}$`,
        ),
      );
    },
  );

  it('[FU20] A Redis server that takes connections and stays silent is named after 20 s', async () => {
    const silent = createServer().listen(0, '127.0.0.1');
    const connections: Socket[] = [];
    silent.on('connection', (connection) => connections.push(connection));
    await once(silent, 'listening');
    const { port } = silent.address() as { port: number };
    using time = await VirtualTime.install();
    const testing = await Test.createTestingModule({
      imports: [
        ServingModule.forRoot({ servings: [] }),
        ServingClusterModule.forRoot({
          transport: Transport.REDIS,
          options: { host: '127.0.0.1', port },
        }),
      ],
    }).compile();
    const booted = testing.init().catch((error: unknown) => error);
    while (connections.length < 2) {
      await once(silent, 'connection');
    }
    // The client gives the server some time to end the connections.
    await time.advance(60_000);

    expect(await booted).toMatchObject({
      message: `ServingClusterModule: the Redis server at 127.0.0.1:${port} cannot be used: it was not ready within 20 s; its address is in the options host and port`,
    });
    connections.forEach((connection) => connection.destroy());
    silent.close();
  });

  const slow = async (definition: ServingDefinition, rows: number): Promise<void> => {
    const serving = await serve(definition);
    for (let row = 0; row < rows; row++) {
      await serving.batchedRun(row);
    }
  };

  it('[FU8] [5.10] Functions, classes and batched methods that hold the event loop are named once', async () => {
    const warnings = recordWarnings();
    class Holding {
      init(): void {}

      handleBatch(batch: Batch): { output: unknown } {
        hold(600);
        return { output: batch.consume() };
      }
    }
    await slow({ name: 'long', model: { useFactory: () => holding(600) } }, 2);
    await slow({ name: 'often', model: { useFactory: () => holding(60) } }, 5);
    await slow({ name: 'once', model: { useFactory: () => holding(60) } }, 2);
    await slow({ name: 'class', model: { useClass: Holding } }, 1);
    await slow(
      {
        name: 'waits',
        model: {
          useFactory: () => async (rows: unknown[]) => {
            await new Promise((resolve) => setTimeout(resolve, 600));
            return rows;
          },
        },
      },
      1,
    );
    const remedy =
      'Nothing else of the application runs meanwhile; move its work to a file (useFile), which a ' +
      'thread runs, or lower batchSize';
    expect(warnings).toEqual([
      line('long'),
      line('often', ': the third run in a row above 50 ms'),
      line('class'),
    ]);
    warnings.forEach((warning) => expect(warning).toContain(remedy));
  });

  it('[FU8] [5.10] A batched method that holds the event loop is named', async () => {
    const warnings = recordWarnings();
    @Controller()
    class Numbers {
      @Get()
      @Batched()
      load(ids: number[]): number[] {
        hold(600);
        return ids;
      }
    }
    const testing = await Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings: [] })],
      controllers: [Numbers],
    }).compile();
    await testing.init();
    await (testing.get(Numbers).load(1 as never) as unknown as Promise<number>);
    await testing.close();
    expect(warnings).toEqual([expect.stringContaining('held the event loop for')]);
  });

  it('[FU3] Pictures and dashboards name options that exist', async () => {
    const table = await readFile('docs/options.md', 'utf8');
    const names = new Set(
      [...table.matchAll(/^\| `([\w.]+)`/gm)].flatMap(([, name]) => name!.split('.')),
    );
    const pictures = (await readdir('docs/pictures')).filter((name) => name.endsWith('.svg'));
    const texts = await Promise.all(
      pictures.map((name) => readFile(join('docs/pictures', name), 'utf8')),
    );
    const shown = texts.flatMap((text) =>
      [...text.matchAll(/<text[^>]*>([^<]+)/g)].flatMap(([, words]) =>
        [...words!.matchAll(/\b(\w+): (?=[[{\d'])/g)].map(([, name]) => name!),
      ),
    );
    expect(shown.length).toBeGreaterThan(5);
    expect(shown.filter((name) => !names.has(name))).toEqual([]);

    const dashboard = await readFile('docs/grafana-dashboard.json', 'utf8');
    const meant = [...dashboard.matchAll(/\bwith ((?:[a-z]+[A-Z]|\w+\.)[\w.]*\w)/g)].map(
      ([, name]) => name!,
    );
    expect(meant.length).toBeGreaterThan(0);
    expect(meant.flatMap((name) => name.split('.')).filter((name) => !names.has(name))).toEqual([]);
  });

  it('[FU12] The page on installation lists each optional package', async () => {
    const { peerDependenciesMeta } = JSON.parse(await readFile('package.json', 'utf8')) as {
      peerDependenciesMeta: Record<string, unknown>;
    };
    const page = await readFile('docs/installation.md', 'utf8');
    const missing = Object.keys(peerDependenciesMeta).filter(
      (name) => !page.includes(`\`${name}\``),
    );
    expect(missing).toEqual([]);
  });

  it('[FU43] Each main file of the manual handles an error of the start', async () => {
    const docs = await readdir('docs', { recursive: true });
    const pages = docs.filter((name) => name.endsWith('.md')).map((name) => join('docs', name));
    const texts = await Promise.all(['README.md', ...pages].map((page) => readFile(page, 'utf8')));
    const mains = texts
      .flatMap((text) => text.match(/^```ts\n[^]*?^```$/gm) ?? [])
      .filter((code) => code.includes('// src/main.ts'));
    expect(mains.length).toBeGreaterThan(2);
    expect(mains.filter((code) => !code.includes('process.exit(1)'))).toEqual([]);
  });
});
