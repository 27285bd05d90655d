import { access, mkdtemp, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Transport } from '@nestjs/microservices';
import { InvalidServingError } from 'nestjs-serving';
import { TcpTransport } from '../../../lib/extensions/distribution/transports/tcp/tcp.transport.js';
import { until } from '../../fixtures/async/awaited.js';
import { describeTransport, useNodes } from '../../fixtures/cluster/every-transport.js';
import { useTcpNodes } from '../../fixtures/cluster/tcp-nodes.js';
import { useClusterProcesses } from '../../fixtures/cluster/use-cluster-processes.js';

let folder: string;
let path: string;
let sockets = 0;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'sockets-'));
});

beforeEach(() => {
  path = join(folder, `${sockets++}.sock`);
});

afterAll(() => rm(folder, { recursive: true }));

const exists = (file: string): Promise<boolean> =>
  access(file).then(
    () => true,
    () => false,
  );

/** Each node listens at a path of its own, and dials all earlier ones. */
const paths = new WeakMap<TcpTransport, string>();
const joinAtPath = useNodes<TcpTransport>((others) => {
  const own = join(folder, `${sockets++}.sock`);
  const peers = others.map((other) => ({ path: paths.get(other)! }));
  const transport = new TcpTransport({ options: { path: own }, peers });
  paths.set(transport, own);
  return transport;
});

describeTransport({ name: 'Unix sockets', connections: true, join: joinAtPath });

describe('Processes on one machine, over a Unix socket', () => {
  const { node, client } = useClusterProcesses({
    options: () => ({ transport: Transport.TCP, options: { path }, peers: [path] }),
  });
  const servings = [{ name: 'm', batchSize: 4 }];
  const row = { id: '1', numbers: [1, 2] };

  it('[11.1] Several processes call the process that listens, whose file is gone after its shutdown', async () => {
    const owner = await node({ servings });
    expect((await stat(path)).isSocket()).toBe(true);
    expect(owner.places.port).toBeUndefined();
    const [one, other] = [await client(), await node({ distribution: { role: 'client' } })];
    await Promise.all([one.untilNodes('m', 1), other.untilNodes('m', 1)]);

    expect(await one.servings.batchedRun('m', row)).toMatchObject({ id: '1', sum: 3 });
    expect(await other.batchedRun('m', row)).toMatchObject({ id: '1', sum: 3 });
    owner.process.kill('SIGTERM');
    expect(await owner.process.ended).toMatchObject({ code: 0 });
    expect(await exists(path)).toBe(false);
  });

  it('[11.1] The socket of a process that was killed is replaced by that of the next', async () => {
    const killed = await node({ servings });
    const web = await client();
    await web.untilNodes('m', 1);
    killed.process.kill('SIGKILL');
    await killed.process.ended;
    await web.untilNodes('m', 0);
    expect(await exists(path)).toBe(true);

    const next = await node({ servings });
    await web.untilNodes('m', 1);

    expect(await web.servings.batchedRun('m', row)).toMatchObject({ pid: next.pid });
  });

  it('[11.1] A process does not start at the socket of another, which goes on', async () => {
    const owner = await node({ servings });
    const web = await client();
    await web.untilNodes('m', 1);

    await expect(node({ servings })).rejects.toThrow(
      `A node cannot listen at ${path}: another process does; give each node a path of its own`,
    );
    expect(await web.servings.batchedRun('m', row)).toMatchObject({ pid: owner.pid });
  });
});

describe('A node at a Unix socket', () => {
  const { start } = useTcpNodes();

  it('[11.1] A file that is no socket stays, and no node listens there', async () => {
    await writeFile(path, 'mine');

    await expect(start('a', { options: { path } })).rejects.toThrow(
      `A node cannot listen at ${path}: there is a file that is no socket; give another path`,
    );
    expect(await exists(path)).toBe(true);
  });

  it('[11.1] A node that listens at a path needs no secret, and may also dial by TCP', async () => {
    const a = await start('a', { options: { port: 0 } });
    const b = await start('b', {
      options: { path },
      peers: [`127.0.0.1:${a.transport.port}`],
    });
    await b.recorded.until(({ events }) => events.includes('found a'));

    await b.transport.stop();
    await until(() => a.recorded.events.includes('gone b'));
    expect(await exists(path)).toBe(false);
  });

  it.each<[string, object, string]>([
    ['a host', { host: 'localhost' }, '"host" in "options" means nothing to a node that'],
    ['a port', { port: 1 }, '"port" in "options" means nothing to a node that'],
    ['certificates', { tlsOptions: {} }, '"tlsOptions" in "options" means nothing to a node that'],
    ['a relative path', { path: 'a.sock' }, 'the path of a Unix socket is "a.sock"; allowed is'],
    ['too long a path', { path: `/${'a'.repeat(103)}` }, 'an absolute path of at most 103 bytes'],
  ])('[11.1] A node with a path and %s is refused at boot', (_, options, message) => {
    const boot = (): unknown => new TcpTransport({ options: { path, ...options } });

    expect(boot).toThrow(InvalidServingError);
    expect(boot).toThrow(message);
  });
});
