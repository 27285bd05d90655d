import { getEventListeners, once } from 'node:events';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import {
  type CanActivate,
  type INestApplication,
  Injectable,
  Logger,
  Module,
  type ModuleMetadata,
  type OnModuleDestroy,
} from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { Test } from '@nestjs/testing';
import {
  type Client,
  type ClientReadableStream,
  credentials,
  loadPackageDefinition,
  type MethodDefinition,
  type ServiceClientConstructor,
  type ServiceError,
} from '@grpc/grpc-js';
import { load } from '@grpc/proto-loader';
import { type ServingDefinition, ServingModule, ServingService } from 'nestjs-serving';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import type { InferenceProtocolOptions } from 'nestjs-serving/inference-protocol';
import { GrpcDoor } from '../../../lib/extensions/inference-protocol/server/grpc/grpc-door.js';
import { ProtocolCalls } from '../../../lib/extensions/inference-protocol/server/grpc/protocol-calls.js';
import { Awaited, until } from '../../fixtures/async/awaited.js';
import { InferenceGrpcClient } from '../../fixtures/http/inference-grpc.js';
import { DATA, RawHttp2, SETTINGS, WINDOW_UPDATE } from '../../fixtures/http/raw-http2.js';
import { worker } from '../../fixtures/partitions/worker.js';

/** Bytes of a message with a status. */
const MESSAGE = 7;

type Method = MethodDefinition<{ readonly service: string }, { readonly status: string }>;

const echo = (name: string, timeout = 500): ServingDefinition => ({
  name,
  model: { useFactory: () => (rows: unknown[]) => rows },
  shutdown: { timeout },
});

/** A thread that restarts once; then its partition is lost. */
const mortal = (): ServingDefinition => ({
  name: 'mortal',
  model: { useFile: worker('mortal') },
  batchSize: 1,
  partitions: [{ starts: new Int32Array(new SharedArrayBuffer(4)) }],
  recovery: { restartDelay: 0, maxRestarts: 1 },
});

/** Ends its module when the test says so. */
@Injectable()
class Slow implements OnModuleDestroy {
  readonly end = new Awaited<void>();

  onModuleDestroy(): Promise<void> {
    return this.end.value;
  }
}

/** Nest shuts a module down before those that it imports. */
@Module({ providers: [Slow] })
class SlowModule {}

@Injectable()
class NoGuard implements CanActivate {
  canActivate(): boolean {
    return false;
  }
}

describe('Watch of the health service of gRPC', () => {
  const clients: (Client | InferenceGrpcClient | RawHttp2)[] = [];
  let app: INestApplication | undefined;
  let Health: ServiceClientConstructor;

  beforeEach(async () => {
    Logger.overrideLogger(false);
    const file = 'lib/extensions/inference-protocol/server/grpc/health.proto';
    const { grpc } = loadPackageDefinition(await load(file, { enums: String })) as never as {
      grpc: { health: { v1: { Health: ServiceClientConstructor } } };
    };
    Health = grpc.health.v1.Health;
  });
  afterEach(async () => {
    clients.splice(0).forEach((each) => ('socket' in each ? each.socket.destroy() : each.close()));
    await app?.close();
    app = undefined;
  });

  const open = async (
    options: InferenceProtocolOptions = {},
    servings = [echo('first'), echo('second')],
    { providers = [], imports = [] }: Pick<ModuleMetadata, 'providers' | 'imports'> = {},
  ): Promise<Client> => {
    const grpc = { port: 0, host: '127.0.0.1' };
    const module = await Test.createTestingModule({
      imports: [
        ServingModule.forRoot({ servings, imports }),
        InferenceProtocolModule.forRoot({ grpc, ...options }),
      ],
      providers,
    }).compile();
    app = module.createNestApplication();
    await app.init();
    return connect();
  };
  const portOf = () => app!.get(GrpcDoor).port!;
  const connect = (): Client => {
    const options = { 'grpc.use_local_subchannel_pool': 1 };
    const client = new Health(`127.0.0.1:${portOf()}`, credentials.createInsecure(), options);
    clients.push(client);
    return client;
  };
  const methodOf = (name: string) => Health.service[name] as Method;
  const check = (client: Client, service: string): Promise<string> => {
    const { path, requestSerialize, responseDeserialize } = methodOf('Check');
    return new Promise((resolve, reject) => {
      client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        { service },
        (error, reply) => (error ? reject(error) : resolve(reply!.status)),
      );
    });
  };
  /** An open call, the statuses that it has received, and its end: a code, 0 without an error. */
  const watch = (client: Client, service: string, deadline = Infinity) => {
    const { path, requestSerialize, responseDeserialize } = methodOf('Watch');
    const stream: ClientReadableStream<{ status: string }> = client.makeServerStreamRequest(
      path,
      requestSerialize,
      responseDeserialize,
      { service },
      { deadline },
    );
    const statuses: string[] = [];
    stream.on('data', ({ status }) => statuses.push(status));
    const ended = new Promise<ServiceError | undefined>((resolve) => {
      stream
        .once('error', (error: ServiceError) => resolve(error))
        .once('end', () => resolve(undefined));
    });
    return { stream, statuses, ended };
  };
  /** A call whose client has room for one message, and has received it. */
  const slowWatch = async (): Promise<RawHttp2> => {
    const client = await RawHttp2.connect(portOf());
    clients.push(client);
    // SETTINGS_INITIAL_WINDOW_SIZE, in bytes.
    client.send(SETTINGS, 0, 0, Buffer.from([0, 4, 0, 0, 0, MESSAGE]));
    client.call(1, '/grpc.health.v1.Health/Watch');
    await client.next(DATA);
    return client;
  };

  it('[18.21] sends the status immediately, and each change when a serving is drained and resumed', async () => {
    const client = await open();
    const [all, first, second] = ['', 'first', 'second'].map((name) => watch(client, name));
    await until(() => [all, first, second].every((each) => each!.statuses.length === 1));

    const serving = app!.get(ServingService).get('first');
    serving.drain();
    await until(() => all!.statuses.length === 2 && first!.statuses.length === 2);
    serving.pause(); // Takes calls, so it is ready.
    serving.resume();
    await until(() => all!.statuses.length === 3 && first!.statuses.length === 3);
    serving.drain();
    await until(() => all!.statuses.length === 4 && first!.statuses.length === 4);

    const seen = ['SERVING', 'NOT_SERVING', 'SERVING', 'NOT_SERVING'];
    expect([all!.statuses, first!.statuses, second!.statuses]).toEqual([seen, seen, ['SERVING']]);
    expect(await check(client, 'first')).toBe('NOT_SERVING');
    expect(await check(client, 'second')).toBe('SERVING');
  });

  it('[18.21] sends a change when a client of the repository unloads and loads a model', async () => {
    const client = await open({ repository: { guards: [{ canActivate: () => true }] } });
    const repository = await InferenceGrpcClient.connect(`127.0.0.1:${portOf()}`);
    clients.push(repository);
    const [all, first] = ['', 'first'].map((name) => watch(client, name));
    await until(() => all!.statuses.length === 1 && first!.statuses.length === 1);

    await repository.call('RepositoryModelUnload', { model_name: 'first' });
    await until(() => first!.statuses.length === 2);
    await repository.call('RepositoryModelLoad', { model_name: 'first' });
    await until(() => first!.statuses.length === 3);

    expect(first!.statuses).toEqual(['SERVING', 'NOT_SERVING', 'SERVING']);
    // The other models are still served.
    expect(all!.statuses).toEqual(['SERVING']);
  });

  it('[18.21] sends a change when a partition is lost, when it restarts, and when a new version replaces it', async () => {
    const client = await open({}, [mortal()]);
    const { statuses } = watch(client, 'mortal');
    await until(() => statuses.length === 1);
    const serving = app!.get(ServingService).get('mortal');

    await serving.batchedRun('exits').catch(() => {});
    await until(() => statuses.length === 3);
    await serving.batchedRun('exits').catch(() => {});
    await until(() => statuses.length === 4 && serving.partitions()[0]!.state === 'lost');
    await serving.reload();
    await until(() => statuses.length === 5);

    const [up, lost] = ['SERVING', 'NOT_SERVING'];
    expect(statuses).toEqual([up, lost, up, lost, up]);
  });

  it('[18.21] sends SERVICE_UNKNOWN for an unknown model, and leaves the call open', async () => {
    const client = await open();
    const [unknown, first] = ['nix', 'first'].map((name) => watch(client, name));
    await until(() => unknown!.statuses.length === 1 && first!.statuses.length === 1);

    app!.get(ServingService).get('first').drain();
    await until(() => first!.statuses.length === 2);

    expect(unknown!.statuses).toEqual(['SERVICE_UNKNOWN']);
    expect(unknown!.stream.readableEnded).toBe(false);
    await expect(check(client, 'nix')).rejects.toMatchObject({ code: 5 });
  });

  it('[18.21] refuses an unknown name of more than 1000 characters, which it would keep in memory', async () => {
    const client = await open();
    const { statuses, ended } = watch(client, 'n'.repeat(1001));

    expect(await ended).toMatchObject({ code: 5, details: expect.stringContaining('no model') });
    expect(statuses).toEqual([]);
    const known = 'k'.repeat(1001);
    await app!.close();
    const other = watch(await open({}, [echo(known)]), known);
    await until(() => other.statuses.length === 1);
    expect(other.statuses).toEqual(['SERVING']);
  });

  it('[18.21] leaves nothing behind when a caller cancels, and at the deadline of the call', async () => {
    const client = await open();
    const { signal } = app!.get(ProtocolCalls).stop;
    const cancelled = watch(client, 'first');
    await until(() => cancelled.statuses.length === 1);
    expect(getEventListeners(signal, 'abort').length).toBe(1);

    cancelled.stream.cancel();
    expect(await cancelled.ended).toMatchObject({ code: 1 });
    await until(() => getEventListeners(signal, 'abort').length === 0);
    const late = watch(client, 'first', Date.now() + 300);
    expect(await late.ended).toMatchObject({ code: 4 });
    await until(() => getEventListeners(signal, 'abort').length === 0);
    // Nothing is sent to calls that have ended.
    app!.get(ServingService).get('first').drain();
    expect(await check(client, 'first')).toBe('NOT_SERVING');
  });

  it('[18.21] refuses more than 100 open calls of a connection, until one of them ends', async () => {
    const client = await open();
    const calls = Array.from({ length: 100 }, () => watch(client, 'first'));
    await until(() => calls.every(({ statuses }) => statuses.length === 1));

    const { ended } = watch(client, 'first');
    expect(await ended).toMatchObject({
      code: 8,
      details: expect.stringContaining('100 open calls'),
    });
    const other = watch(connect(), 'first');
    await until(() => other.statuses.length === 1);

    calls[0]!.stream.cancel();
    const answered = (): Promise<boolean> => {
      const next = watch(client, 'first');
      return Promise.race([
        once(next.stream, 'data').then(() => true),
        next.ended.then(() => false),
      ]);
    };
    while (!(await answered()));
  });

  it('[18.21] keeps only the latest status for a client that does not read', async () => {
    await open();
    const client = await slowWatch();
    const serving = app!.get(ServingService).get('first');

    for (let i = 0; i < 1000; i++) {
      serving.drain();
      serving.resume();
    }
    serving.drain();
    readOn(client);
    await until(() => receivedBy(client).length >= 2);

    serving.resume();
    await until(() => receivedBy(client).length >= 3);
    expect(receivedBy(client)).toEqual([1, 2, 1]);
  });

  it('[18.21] sends NOT_SERVING when the application begins to shut down, and then ends', async () => {
    const client = await open({}, [echo('first'), echo('second')], {
      imports: [SlowModule],
    });
    const names = ['', 'first', 'second', 'nix'];
    app!.get(ServingService).get('second').drain();
    const calls = names.map((name) => watch(client, name));
    await until(() => calls.every(({ statuses }) => statuses.length === 1));

    const closing = app!.close();
    await until(() => calls[1]!.statuses.length === 2);
    expect(await check(client, 'first')).toBe('NOT_SERVING');
    expect(calls.map(({ stream }) => stream.readableEnded)).toEqual([false, false, false, false]);
    app!.get(Slow).end.give();

    expect(await Promise.all(calls.map(({ ended }) => ended))).toEqual(names.map(() => undefined));
    expect(calls.map(({ statuses }) => statuses)).toEqual([
      ['NOT_SERVING'],
      ['SERVING', 'NOT_SERVING'],
      ['NOT_SERVING'],
      ['SERVICE_UNKNOWN'],
    ]);
    await closing;
    app = undefined;
  });

  it('[18.21] sends NOT_SERVING last to a client that reads slowly when the application shuts down', async () => {
    await open({}, [echo('first', 60_000)]);
    const serving = app!.get(ServingService).get('first');
    serving.drain();
    const client = await slowWatch();
    serving.resume();

    const closing = app!.close();
    await until(() => app!.get(ProtocolCalls).stop.signal.aborted);
    readOn(client);
    await closing;

    app = undefined;
    await until(() => client.socket.readableEnded);
    expect(receivedBy(client)).toEqual([2, 1, 2]);
  });

  it('[18.21] does not hold up the shutdown for a client that does not read', async () => {
    await open();
    const client = await slowWatch();

    await app!.close();

    app = undefined;
    await until(() => client.socket.readableEnded || client.socket.destroyed);
  });

  it('[18.21] asks no guards, as Check does, since probes have no keys', async () => {
    const client = await open({ guards: [NoGuard] }, undefined, {
      providers: [{ provide: APP_GUARD, useClass: NoGuard }],
    });
    const { statuses } = watch(client, 'first');
    await until(() => statuses.length === 1);
    expect([statuses, await check(client, 'first')]).toEqual([['SERVING'], 'SERVING']);
  });
});

function readOn(client: RawHttp2): void {
  client.send(WINDOW_UPDATE, 0, 1, Buffer.from([0, 1, 0, 0]));
}

/** The numbers of the statuses. */
function receivedBy({ frames }: RawHttp2): number[] {
  const data = Buffer.concat(frames.flatMap(({ type, payload }) => (type === DATA ? payload : [])));
  return Array.from({ length: data.length / MESSAGE }, (_, i) => data[(i + 1) * MESSAGE - 1]!);
}
