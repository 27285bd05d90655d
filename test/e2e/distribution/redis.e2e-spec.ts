import { afterAll, afterEach, beforeAll, expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { ServerRedis } from '@nestjs/microservices';
import { VirtualTime } from 'nestjs-serving/testing';
import { RedisTransport } from '../../../lib/extensions/distribution/transports/redis/redis.transport.js';
import type { RedisTransportOptions } from '../../../lib/extensions/distribution/transports/redis/redis.js';
import { useAppProcesses } from '../../fixtures/http/app-process.js';
import { until } from '../../fixtures/async/awaited.js';
import { useBreakableLinks } from '../../fixtures/cluster/breakable-link.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { describeTransport, useNodes } from '../../fixtures/cluster/every-transport.js';
import {
  contextOf,
  numberedPacket,
  RecordingReceiver,
} from '../../fixtures/async/recording-receiver.js';
import { RedisServer, redisMissing } from '../../fixtures/cluster/redis-server.js';

/** Starts a node with these options, and rejects with its error. */
function start(options: RedisTransportOptions): Promise<void> {
  return new RedisTransport({ options }).start(contextOf('x', new RecordingReceiver()));
}

describeUnless(redisMissing, 'The Redis transport', () => {
  let server: RedisServer;
  let options: RedisTransportOptions = {};
  const servers: RedisServer[] = [];
  const join = useNodes(
    () => new RedisTransport({ options: { port: server.port, retryDelay: 20, ...options } }),
  );
  const startProcess = useAppProcesses();
  const breakable = useBreakableLinks();

  beforeAll(async () => {
    server = await RedisServer.start();
  });

  afterEach(async () => {
    options = {};
    await Promise.all(servers.splice(0).map((each) => each.end()));
  });

  afterAll(() => server.end());

  async function another(configuration?: string): Promise<RedisServer> {
    const started = await RedisServer.start(configuration);
    servers.push(started);
    return started;
  }

  describeTransport({ name: 'Redis', connections: false, join });

  it('[11] Sending to a missing node fails at once', async () => {
    const a = await join('a');
    await join('b');

    await expect(a.transport.send('b', numberedPacket(1))).resolves.toBeUndefined();
    await expect(a.transport.send('nobody', numberedPacket(1))).rejects.toThrow(
      'There is no node nobody',
    );
  });

  it('[11] A node that is killed is gone, and its next incarnation is found', async () => {
    const settings = { options: { port: server.port } };
    const killed = startProcess('node', { transport: 'redis', settings, address: 'b-1' });
    await killed.messages('started');
    const a = await join('a');
    await expect(a.transport.probe('b-1')).resolves.toBe(true);

    killed.kill('SIGKILL');
    await killed.ended;
    while (await a.transport.probe('b-1')) {
      // The server notices the kill after a moment.
    }
    const next = startProcess('node', { transport: 'redis', settings, address: 'b-2' });
    await next.messages('started');
    await a.transport.send('b-2', numberedPacket(7));

    expect(await next.messages('received')).toEqual([7]);
    expect(a.recorded.events).toEqual([]);
  });

  it('[11] A server that is away leads to one error in the log, for any number of attempts', async () => {
    const own = await another();
    options = { port: own.port, retryDelay: 1 };
    const lines: string[] = [];
    jest.spyOn(Logger.prototype, 'log').mockImplementation((line: string) => void lines.push(line));
    jest
      .spyOn(Logger.prototype, 'error')
      .mockImplementation((line: Error | string) => void lines.push(`error: ${String(line)}`));
    const attempts = jest.spyOn(ServerRedis.prototype, 'createRetryStrategy');
    const a = await join('a');
    lines.length = 0;

    await own.kill();
    await until(() => attempts.mock.calls.length >= 20);
    await own.start();
    await a.recorded.until(({ events }) => events.includes('online'));

    // A client that is back before the killed server's port is closed is cut off once more.
    const away: unknown = expect.stringMatching(
      new RegExp(
        '^error: There is no connection to the Redis server; it is retried without end\\. ' +
          `(connect ECONNREFUSED 127\\.0\\.0\\.1:${own.port}|read ECONNRESET)$`,
      ),
    );
    const back = 'Connected to Redis. Subscribing to channels...';
    expect(lines.toSorted()).toEqual([back, back, away, away]);
  });

  it('[11] The loss and return of the server are reported, and packets in between are lost', async () => {
    const own = await another();
    options = { port: own.port };
    const [a, b] = [await join('a'), await join('b')];

    for (let times = 1; times <= 2; times++) {
      const [gone, back] = [2 * times - 1, 2 * times];
      await own.kill();
      await Promise.all(
        [a, b].map(({ recorded }) => recorded.until(({ events }) => events.length === gone)),
      );
      await a.transport.send('b', numberedPacket(0));
      await expect(a.transport.probe('b')).rejects.toThrow('The Redis server is away');
      await own.start();
      await Promise.all(
        [a, b].map(({ recorded }) => recorded.until(({ events }) => events.length === back)),
      );
      await a.transport.send('b', numberedPacket(times));
      await b.recorded.until(({ numbers }) => numbers.includes(times));
    }

    expect(b.recorded.numbers).toEqual([1, 2]);
    expect(a.recorded.events).toEqual(['offline', 'online', 'offline', 'online']);
  });

  it('[11] Nothing waits for a server that is away', async () => {
    const own = await another();
    options = { port: own.port, retryDelay: 600_000 };
    const a = await join('a');
    await own.kill();
    await a.recorded.until(({ events }) => events.includes('offline'));

    await a.transport.send('b', numberedPacket(0));
    await a.transport.broadcast(numberedPacket(0));
    await expect(a.transport.probe('b')).rejects.toThrow('The Redis server is away');
    await a.transport.stop();
  });

  it('[11] A node that lost its connections receives everything again when it reports its return', async () => {
    const a = await join('a');
    const way = await breakable(server.port);
    // ioredis does not report when it has subscribed again by itself.
    options = { port: way.port, autoResubscribe: false };
    const b = await join('b');

    for (let times = 1; times <= 3; times++) {
      way.break();
      await b.recorded.until(({ events }) => events.length === 2 * times);
      await a.transport.send('b', numberedPacket(times));
      await a.transport.broadcast(numberedPacket(10 + times));
      await b.recorded.until(({ packets }) => packets.length === 2 * times);
    }

    expect(b.recorded.numbers).toEqual([1, 11, 2, 12, 3, 13]);
    expect(b.recorded.events).toEqual([1, 2, 3].flatMap(() => ['offline', 'online']));
    expect(a.recorded.events).toEqual([]);
  });

  it('[11] Packets that a lost connection left unanswered are not sent again', async () => {
    const a = await join('a');
    const way = await breakable(server.port);
    options = { port: way.port };
    const b = await join('b');

    for (let times = 1; times <= 5; times++) {
      const sending = Array.from({ length: 20 }, (_, i) =>
        b.transport.send('a', numberedPacket(100 * times + i, b.transport.maxPacket)),
      );
      await a.recorded.until(({ numbers }) => numbers.some((number) => number >= 100 * times));
      way.break();
      await Promise.all(sending);
      await b.recorded.until(({ events }) => events.length === 2 * times);
    }
    await b.transport.send('a', numberedPacket(1000));
    await a.recorded.until(({ numbers }) => numbers.includes(1000));

    expect(a.recorded.numbers).toEqual(
      [...new Set(a.recorded.numbers)].toSorted((one, other) => one - other),
    );
  });

  it('[11] A node does not start without a server and leaves nothing behind', async () => {
    const time = await VirtualTime.install();
    try {
      await expect(start({ port: 1 })).rejects.toThrow(/ECONNREFUSED/);
      // The second of its two connections is refused a moment later.
      await until(() => time.timers === 0);
    } finally {
      time.restore();
    }
  });

  it('[11] Passwords, users and permissions are those of the server', async () => {
    const own = await another(
      'requirepass secret\nuser node on >word ~* &sv.test.* +@all\nuser other on >word ~* +@all',
    );
    const { port } = own;

    await expect(start({ port })).rejects.toThrow('NOAUTH');
    await expect(start({ port, password: 'wrong' })).rejects.toThrow('WRONGPASS');
    await expect(start({ port, username: 'other', password: 'word' })).rejects.toThrow('NOPERM');
    options = { port, username: 'node', password: 'word' };
    const [a, b] = [await join('a'), await join('b')];
    await a.transport.send('b', numberedPacket(1));
    await b.recorded.until(({ packets }) => packets.length === 1);
  });

  it('[11] A packet that the server refuses fails with the reason', async () => {
    const own = await another('user node on nopass ~* &sv.test.n.a &sv.test.all +@all');
    options = { port: own.port, username: 'node', password: 'any' };
    const a = await join('a');

    await expect(a.transport.send('b', numberedPacket(1))).rejects.toThrow('NOPERM');
  });

  it('[11] The data that waits for a server that does not read is limited', async () => {
    const own = await another();
    options = { port: own.port };
    const { transport } = await join('a');
    const packet = numberedPacket(1, transport.maxPacket);

    own.signal('SIGSTOP');
    const sending = Array.from({ length: 520 }, () =>
      transport.send('nobody', packet).catch((error: Error) => error.message),
    );
    const refused = await Promise.all(sending.slice(512));
    own.signal('SIGCONT');
    const others = await Promise.all(sending.slice(0, 512));

    expect(new Set(refused)).toEqual(
      new Set(['The Redis server does not read: 134217728 bytes wait for it']),
    );
    expect(new Set(others)).toEqual(new Set(['There is no node nobody']));
    await expect(transport.send('nobody', packet)).rejects.toThrow('There is no node nobody');
  });

  it('[11] A server that hangs delays stopping by 5 seconds and then until its connections are closed', async () => {
    const own = await another();
    options = { port: own.port };
    const a = await join('a');
    const time = await VirtualTime.install();
    try {
      own.signal('SIGSTOP');
      let hasStopped = false;
      const stopping = a.transport.stop().then(() => (hasStopped = true));
      await time.advance(4_999);
      expect(hasStopped).toBe(false);
      await time.advance(2_001);
      await stopping;
    } finally {
      time.restore();
    }
  });
});
