import { afterEach, describe, expect, it } from '@jest/globals';
import { Controller } from '@nestjs/common';
// #region imports
import { ClientProxyFactory, Transport } from '@nestjs/microservices';
import { firstValueFrom } from 'rxjs';
// #endregion
import { type ClientProxy, MessagePattern, Payload } from '@nestjs/microservices';
import { NestFactory } from '@nestjs/core';
import { Batched, ServingModule, ServingService, Tensor } from 'nestjs-serving';
import { ServingClusterModule } from 'nestjs-serving/distribution';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
import type { ClusterOptions } from '../../../lib/extensions/distribution/options.js';
import { execFile, spawnSync } from 'node:child_process';
import type { AddressInfo, Server } from 'node:net';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { lastValueFrom, toArray } from 'rxjs';
import { MemoryNetwork } from '../../../lib/extensions/distribution/memory-network.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { natsMissing, NatsServer } from '../../fixtures/cluster/nats-server.js';
import { until } from '../../fixtures/async/streams.js';
import { floats } from '../../fixtures/values/tensors.js';
import { type TcpApp, useTcpCluster } from '../../fixtures/cluster/use-tcp-cluster.js';

const { node, clientOf } = useTcpCluster();

const echo: FunctionServingDefinition = {
  name: 'echo',
  model: { useFactory: () => (rows: readonly unknown[]) => rows },
};

/** The length of each row and the number of rows in its batch. */
const norms = (options: Partial<FunctionServingDefinition> = {}): FunctionServingDefinition => ({
  name: 'norms',
  ...options,
  model: {
    useFactory: () => (rows: Tensor) => {
      const [count = 0, width = 0] = rows.dims;
      const all = rows.data as Float32Array;
      const lengths = Float32Array.from({ length: count }, (_, i) =>
        Math.hypot(...all.subarray(i * width, (i + 1) * width)),
      );
      return new Tensor(
        'float32',
        Float32Array.from({ length: 2 * count }, (_, i) => (i % 2 === 0 ? lengths[i / 2]! : count)),
        [count, 2],
      );
    },
  },
});

/** Counts up to its row. */
async function* countTo([last]: readonly number[]): AsyncGenerator<unknown[], void> {
  for (let step = 1; step <= last!; step++) {
    yield [Float32Array.of(step)];
  }
}

const counter: FunctionServingDefinition = {
  name: 'counter',
  model: { useFactory: () => countTo },
};

const tensor = (datatype: string, shape: readonly number[], data: unknown) => ({
  $tensor: { shape, datatype, data },
});
const send = (client: ClientProxy, serving: string, message: object): Promise<unknown> =>
  firstValueFrom(client.send(`sv.default.s.${serving}`, message));
const stream = (client: ClientProxy, serving: string, message: object): Promise<unknown[]> =>
  lastValueFrom(
    client.send(`sv.default.s.${serving}`, { method: 'stream', ...message }).pipe(toArray()),
    { defaultValue: [] },
  );

describe('A client of Nest over TCP', () => {
  it('[11] A client of Nest calls a serving with values', async () => {
    const owner = await node({ servings: [echo] });
    const client = clientOf(owner.port);

    expect(await send(client, 'echo', { input: 'größer' })).toBe('größer');
    expect(
      await send(client, 'echo', {
        input: { a: [1, null, { $bigint: '-7' }, { $number: 'NaN' }] },
        method: 'run',
      }),
    ).toEqual({
      a: [1, null, { $bigint: '-7' }, { $number: 'NaN' }],
    });
    expect(await send(client, 'echo', { input: null })).toBeNull();
  });

  it('[11] A client of Nest sends and receives tensors in base64 and in lists', async () => {
    const owner = await node({ servings: [norms()] });
    const client = clientOf(owner.port);
    const bytes = Buffer.from(Float32Array.of(3, 4, NaN, 0).buffer).toString('base64');

    expect(await send(client, 'norms', { input: tensor('FP32', [1, 2], [3, 4]) })).toEqual(
      tensor('FP32', [1, 2], Buffer.from(Float32Array.of(5, 1).buffer).toString('base64')),
    );
    expect(
      await send(client, 'norms', { input: tensor('FP32', [2, 2], bytes), tensors: 'list' }),
    ).toEqual(tensor('FP32', [2, 2], [5, 2, 'NaN', 2]));
  });

  it('[11] Clients of Nest and nodes share batches and a port', async () => {
    const owner = await node({ servings: [norms({ batchSize: 3, batchTimeout: 1_000_000 })] });
    const web = await node({ peers: [owner] });

    const replies = await Promise.all([
      web.servings.batchedRun('norms', floats([1, 2], [3, 4])),
      send(clientOf(owner.port), 'norms', {
        input: tensor('FP32', [2, 2], [6, 8, 5, 12]),
        tensors: 'list',
      }),
    ]);

    expect(replies).toEqual([floats([1, 2], [5, 3]), tensor('FP32', [2, 2], [10, 3, 13, 3])]);
  });

  it('[11] A client of Nest receives a stream as one message per event', async () => {
    const owner = await node({ servings: [counter] });
    const client = clientOf(owner.port);

    expect(await stream(client, 'counter', { input: 3, tensors: 'list' })).toEqual(
      [1, 2, 3].map((step) => ({
        batch: { offset: 0, rows: 1 },
        output: tensor('FP32', [1], [step]),
      })),
    );
    expect(await stream(client, 'counter', { input: 0 })).toEqual([]);
  });

  it('[11] A client of Nest receives hooks', async () => {
    const hooked: FunctionServingDefinition = {
      name: 'hooked',
      model: {
        useFactory:
          () =>
          (rows: readonly number[], { emit }) => {
            emit(
              'half',
              rows.map((row) => row / 2),
            );
            return rows;
          },
      },
    };
    const owner = await node({ servings: [hooked] });

    expect(await stream(clientOf(owner.port), 'hooked', { input: 3, hooks: ['half'] })).toEqual([
      { hook: 'half', value: 1.5 },
      { batch: { offset: 0, rows: 1 }, output: 3 },
    ]);
  });

  it("[11] A client of Nest receives outputs after the owner's postprocessing", async () => {
    const owner = await node({
      servings: [{ ...echo, distribution: { postprocess: (output) => `${String(output)}!` } }],
    });
    const client = clientOf(owner.port);

    expect(await send(client, 'echo', { input: 'a' })).toBe('a!');
    expect(await stream(client, 'echo', { input: 'a' })).toMatchObject([{ output: 'a!' }]);
  });

  it('[11] [6.5] A client of Nest receives errors as plain objects', async () => {
    const broken: FunctionServingDefinition = {
      name: 'broken',
      model: {
        useFactory: () => () => {
          throw new TypeError('a secret path');
        },
      },
    };
    // Its row waits for another one until its deadline.
    const late: FunctionServingDefinition = {
      ...echo,
      name: 'late',
      batchSize: 2,
      batchTimeout: 1_000_000,
    };
    const owner = await node({ servings: [echo, broken, late] });
    const client = clientOf(owner.port);
    const failure = (serving: string, message: object) => failureOf(send(client, serving, message));

    expect(await failure('echo', { input: { image: tensor('FP32', [2], [1]) } })).toEqual({
      name: 'InvalidInputError',
      code: 'SERVING_INVALID_INPUT',
      statusCode: 400,
      message:
        '"input.image.$tensor.data" in the message has 1 elements, which are not those of the shape [ 2 ]',
    });
    expect(await failure('echo', { input: 1, priority: 11 })).toMatchObject({
      code: 'SERVING_INVALID_INPUT',
      statusCode: 400,
    });
    expect(await failure('echo', { inputs: 1 })).toMatchObject({
      message: expect.stringContaining('"inputs"'),
    });
    expect(await failureOf(stream(client, 'echo', { input: 1, timeout: -1 }))).toMatchObject({
      code: 'SERVING_INVALID_INPUT',
    });
    expect(await failure('broken', { input: 1 })).toEqual({
      name: 'BatchFailedError',
      code: 'SERVING_BATCH_FAILED',
      statusCode: 500,
      message: 'Internal Server Error',
    });
    expect(await failure('late', { input: 1, timeout: 1 })).toMatchObject({
      code: 'SERVING_DEADLINE_EXCEEDED',
      statusCode: 504,
    });
  });

  it('[11] A serving that is not distributed is unknown to clients of Nest', async () => {
    const owner = await node({
      servings: [echo, { ...echo, name: 'private', distribution: { enabled: false } }],
    });

    expect(await failureOf(send(clientOf(owner.port), 'private', { input: 1 }))).toBe(
      'There is no matching message handler defined in the remote service.',
    );
  });

  it('[11] The servings of a node with a secret are unknown to clients of Nest, which cannot prove it', async () => {
    const secret = 'known to nodes alone';
    const owner = await node({ servings: [echo], secret });
    const web = await node({ peers: [owner], secret });

    expect(await failureOf(send(clientOf(owner.port), 'echo', { input: 1 }))).toBe(
      'There is no matching message handler defined in the remote service.',
    );
    expect(await web.servings.batchedRun('echo', 1)).toBe(1);
  });

  it.each<[NonNullable<ClusterOptions['role']>, string[]]>([
    ['node', ['echo']],
    ['client', []],
  ])(
    '[11] An application with the role %s offers clients of Nest the servings %j',
    async (role, servings) => {
      const transport = new MemoryNetwork().transport();
      const root = {
        module: class {},
        imports: [
          ServingModule.forRoot({ servings: [echo] }),
          ServingClusterModule.forRoot({ transport, role }),
        ],
      };
      const app = await NestFactory.createApplicationContext(root, {
        logger: false,
        abortOnError: false,
      });

      expect([...transport.context.jsonHandlers.keys()]).toEqual(servings);
      await app.close();
    },
  );

  it('[11] [9.3] A client of Nest is answered by a node that shuts down, and refused after that', async () => {
    const held = new HeldFunction();
    const owner = await node({
      servings: [{ name: 'held', batchSize: 1, model: { useFactory: held.useFactory } }],
    });
    const client = clientOf(owner.port);
    const reply = send(client, 'held', { input: 'first' });
    await until(() => held.batches.length === 1);
    let isClosed = false;

    const closed = owner.app.close().then(() => (isClosed = true));
    const refused = await failureOf(send(client, 'held', { input: 'second' }));
    const ran = [...held.rows];
    expect(isClosed).toBe(false);
    held.next().finish(['done']);

    expect(refused).toEqual({
      name: 'ServingClosedError',
      code: 'SERVING_CLOSED',
      statusCode: 503,
      message: 'Service Unavailable',
    });
    expect(ran).toEqual([['first']]);
    expect(await reply).toBe('done');
    await closed;
  });

  it("[11] The manual's client of Nest gets the reply that it states", async () => {
    const { port } = await node({ servings: [norms()] });
    const host = '127.0.0.1';
    const vectors = Float32Array.of(3, 4, 5, 12);

    // #region client
    const client = ClientProxyFactory.create({ transport: Transport.TCP, options: { host, port } });

    const input = {
      $tensor: {
        shape: [2, 2],
        datatype: 'FP32',
        data: Buffer.from(vectors.buffer).toString('base64'),
      },
    };
    const { $tensor } = await firstValueFrom(
      client.send('sv.default.s.norms', { input, tensors: 'list' }),
    );
    // #endregion

    expect($tensor).toEqual({ shape: [2, 2], datatype: 'FP32', data: [5, 2, 13, 2] });
    client.close();
  });
});

@Controller()
class Messages {
  constructor(private readonly servings: ServingService) {}

  @MessagePattern('double')
  @Batched({ batchSize: 3, batchTimeout: 1_000_000, types: [Number] })
  double(@Payload() numbers: number[]): string[] {
    return numbers.map((number) => `${2 * number} of ${numbers.length}`);
  }

  @MessagePattern('near')
  @Batched('near')
  near(@Payload() text: string): string {
    return `${text}!`;
  }

  @MessagePattern('far')
  far(@Payload() text: string): Promise<unknown> {
    return this.servings.batchedRun('far', text);
  }
}

/** The client of that microservice. */
async function clientOfMicroservice({ app }: TcpApp): Promise<ClientProxy> {
  const microservice = app.connectMicroservice({ transport: Transport.TCP, options: { port: 0 } });
  await app.startAllMicroservices();
  return clientOf((microservice.unwrap<Server>().address() as AddressInfo).port);
}

const pairs = (name: string): FunctionServingDefinition => ({
  name,
  batchSize: 2,
  batchTimeout: 1_000_000,
  model: {
    useFactory: () => (rows: readonly string[]) => rows.map((row) => `${row} of ${rows.length}`),
  },
});

describe('A microservice beside a node, in one application', () => {
  it('[11] [10.4] @Batched() handlers of a microservice work beside calls of nodes', async () => {
    const owner = await node({ servings: [pairs('far')] });
    const web = await node({ servings: [pairs('near')], controllers: [Messages], peers: [owner] });
    const other = await node({ peers: [web, owner] });
    const client = await clientOfMicroservice(web);
    const ask = (pattern: string, data: unknown) => firstValueFrom(client.send(pattern, data));

    expect(await Promise.all([1, 2, 3].map((number) => ask('double', number)))).toEqual([
      '2 of 3',
      '4 of 3',
      '6 of 3',
    ]);
    expect(await Promise.all([ask('near', 'a'), other.servings.batchedRun('near', 'b')])).toEqual([
      'a! of 2',
      'b of 2',
    ]);
    expect(
      await Promise.all([ask('far', 'c'), send(clientOf(owner.port), 'far', { input: 'd' })]),
    ).toEqual(['c of 2', 'd of 2']);
  });
});

describeUnless(natsMissing, 'A client of Nest over NATS', () => {
  const closing: (() => unknown)[] = [];

  afterEach(async () => {
    for (const close of closing.splice(0).toReversed()) {
      await close();
    }
  });

  it('[11] A client of Nest over NATS calls a serving and receives streams and errors', async () => {
    const server = await NatsServer.start();
    closing.push(() => server.end());
    const options = { servers: server.url };
    const root = {
      module: class {},
      imports: [
        ServingModule.forRoot({ servings: [norms(), counter] }),
        ServingClusterModule.forRoot({ transport: Transport.NATS as const, options }),
      ],
    };
    const app = await NestFactory.createApplicationContext(root, {
      logger: false,
      abortOnError: false,
    });
    closing.push(() => app.close());
    const client = ClientProxyFactory.create({ transport: Transport.NATS, options });
    closing.push(() => client.close());

    expect(
      await send(client, 'norms', { input: tensor('FP32', [1, 2], [3, 4]), tensors: 'list' }),
    ).toEqual(tensor('FP32', [1, 2], [5, 1]));
    expect(await stream(client, 'counter', { input: 3, tensors: 'list' })).toMatchObject(
      [1, 2, 3].map((step) => ({ output: tensor('FP32', [1], [step]) })),
    );
    expect(await failureOf(send(client, 'norms', { inputs: 1 }))).toMatchObject({
      code: 'SERVING_INVALID_INPUT',
      statusCode: 400,
    });
  });
});

const python = spawnSync('python3', ['--version']).status === 0;

describeUnless(
  python ? undefined : 'The client is in Python: apt install python3',
  'A client in another language',
  () => {
    it('[11] A client in Python calls servings with its standard library', async () => {
      const owner = await node({ servings: [echo, norms(), counter] });
      const script = fileURLToPath(new URL('./plain_client.py', import.meta.url));

      const { stdout } = await promisify(execFile)('python3', [script, `${owner.port}`]);

      expect(JSON.parse(stdout)).toEqual({
        norms: tensor('FP32', [2, 2], [5, 2, 13, 2]),
        text: 'größer 🐘🐘 als 𝄞',
        events: [1, 2, 3].map((step) => ({
          batch: { offset: 0, rows: 1 },
          output: tensor('FP32', [1], Buffer.from(Float32Array.of(step).buffer).toString('base64')),
        })),
        fault: expect.objectContaining({ code: 'SERVING_INVALID_INPUT', statusCode: 400 }),
      });
    });
  },
);
