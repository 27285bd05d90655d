import { setTimeout } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { ClientNats } from '@nestjs/microservices';
import { VirtualTime } from 'nestjs-serving/testing';
import { firstValueFrom, of, throwError, toArray } from 'rxjs';
import type { JsonHandler } from '../../../lib/extensions/distribution/transport.js';
import { NatsTransport } from '../../../lib/extensions/distribution/transports/nats/nats.transport.js';
import { InvalidInputError } from '../../../lib/core/errors.js';
import { useAppProcesses } from '../../fixtures/http/app-process.js';
import { Awaited, until } from '../../fixtures/async/awaited.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { describeTransport, probed, useNodes } from '../../fixtures/cluster/every-transport.js';
import {
  contextOf,
  numberedPacket,
  RecordingReceiver,
} from '../../fixtures/async/recording-receiver.js';
import { NatsServer, natsMissing } from '../../fixtures/cluster/nats-server.js';

function doesNotThrow(action: () => unknown): boolean {
  try {
    action();
    return true;
  } catch {
    return false;
  }
}

/** A configuration with one user, who may use only the subjects of nodes. */
function users(password: string): string {
  return (
    `authorization { users: [{ user: node, password: ${password}, ` +
    'permissions: { publish: "sv.>", subscribe: "sv.>" } }] }'
  );
}

describeUnless(natsMissing, 'The NATS transport', () => {
  let server: NatsServer;
  const clients: ClientNats[] = [];
  const join = useNodes(
    () => new NatsTransport({ options: { servers: server.url, reconnectTimeWait: 20 } }),
  );
  const startProcess = useAppProcesses();

  beforeAll(async () => {
    server = await NatsServer.start();
  });

  afterEach(async () => {
    await Promise.all(clients.splice(0).map((client) => client.close()));
  });

  afterAll(() => server.end());

  /** A client of Nest in an application without this package. */
  function connect(options: object = {}): ClientNats {
    const client = new ClientNats({ servers: server.url, ...options });
    clients.push(client);
    return client;
  }

  describeTransport({ name: 'NATS', connections: false, join });

  describe('whose users have a login', () => {
    let guarded: NatsServer;
    const joinGuarded = useNodes(
      () =>
        new NatsTransport({
          namespace: 'default',
          options: { servers: guarded.url, user: 'node', pass: 'right', reconnectTimeWait: 20 },
        }),
    );

    beforeAll(async () => {
      guarded = await NatsServer.start(users('right'));
    });

    afterAll(() => guarded.end());

    it('[FV7] A node whose user may use sv.> and nothing else probes others', async () => {
      const [a] = [await joinGuarded('a'), await joinGuarded('b')];
      await expect(a.transport.probe('b')).resolves.toBe(true);
      await expect(probed(a.transport, 'nobody')).resolves.toBe(false);
    });

    it('[FV1] A node whose login the server refuses for a time connects again when it is taken', async () => {
      const a = await joinGuarded('a');
      await guarded.kill();
      await guarded.start(users('other'));
      // Some attempts, each refused.
      await setTimeout(500);
      expect(a.recorded.events).toEqual(['offline']);
      await guarded.kill();
      await guarded.start(users('right'));
      await a.recorded.until(({ events }) => events.length === 2);
      expect(a.recorded.events).toEqual(['offline', 'online']);
    });
  });

  it('[11] A node that is killed is gone, and its next incarnation is found', async () => {
    const settings = { options: { servers: server.url } };
    const killed = startProcess('node', { transport: 'nats', settings, address: 'b-1' });
    await killed.messages('started');
    const a = await join('a');
    await expect(a.transport.probe('b-1')).resolves.toBe(true);

    killed.kill('SIGKILL');
    await killed.ended;
    await expect(probed(a.transport, 'b-1')).resolves.toBe(false);
    const next = startProcess('node', { transport: 'nats', settings, address: 'b-2' });
    await next.messages('started');
    a.transport.send('b-2', numberedPacket(7));

    expect(await next.messages('received')).toEqual([7]);
    expect(a.recorded.events).toEqual([]);
  });

  it('[11] The probe of a hung node fails without a verdict', async () => {
    const hung = startProcess('node', {
      transport: 'nats',
      settings: { options: { servers: server.url } },
      address: 'b',
    });
    await hung.messages('started');
    const a = await join('a');

    hung.kill('SIGSTOP');
    const time = await VirtualTime.install();
    try {
      const probe = expect(a.transport.probe('b')).rejects.toThrow('Timeout');
      await time.advance(2_000);
      await probe;
    } finally {
      time.restore();
    }
  });

  it('[11] The loss and return of the server are reported, and packets in between are lost', async () => {
    const [a, b] = [await join('a'), await join('b')];

    for (let times = 1; times <= 2; times++) {
      const [gone, back] = [2 * times - 1, 2 * times];
      await server.kill();
      await Promise.all(
        [a, b].map(({ recorded }) => recorded.until(({ events }) => events.length === gone)),
      );
      a.transport.send('b', numberedPacket(0));
      await expect(a.transport.probe('b')).rejects.toBeDefined();
      await server.start();
      await Promise.all(
        [a, b].map(({ recorded }) => recorded.until(({ events }) => events.length === back)),
      );
      a.transport.send('b', numberedPacket(times));
      await b.recorded.until(({ numbers }) => numbers.includes(times));
    }

    expect(b.recorded.numbers).toEqual([1, 2]);
    expect(a.recorded.events).toEqual(['offline', 'online', 'offline', 'online']);
  });

  it('[11] A node stops while the server is away', async () => {
    const { transport, recorded } = await join('a');
    await server.kill();
    await recorded.until(({ events }) => events.includes('offline'));

    await transport.stop();

    expect(recorded.events).toEqual(['offline']);
    await server.start();
  });

  it('[11] A server that does not read delays stopping by 5 seconds', async () => {
    const time = await VirtualTime.install();
    try {
      const { transport } = await join('a');
      server.signal('SIGSTOP');
      for (let i = 0; i < 64; i++) {
        transport.send('b', numberedPacket(i, transport.maxPacket));
      }
      let hasStopped = false;
      const stopping = transport.stop().then(() => (hasStopped = true));
      await time.advance(4_999);
      expect(hasStopped).toBe(false);
      await time.advance(1);
      await stopping;
    } finally {
      time.restore();
      server.signal('SIGCONT');
    }
  });

  it('[11] The data that waits for a server that does not read is limited', async () => {
    const { transport } = await join('a');
    const packet = numberedPacket(1, transport.maxPacket);
    let sent = 0;
    const fill = (): void => {
      for (;;) {
        transport.send('nobody', packet);
        sent++;
      }
    };

    server.signal('SIGSTOP');
    try {
      expect(fill).toThrow('The NATS server does not read: 134217728 bytes wait for it');
      expect(sent * packet.byteLength).toBe(134_217_728);
    } finally {
      server.signal('SIGCONT');
    }
    await until(() => doesNotThrow(() => transport.send('nobody', packet)));
  });

  it('[11] A node does not start without a server', async () => {
    const transport = new NatsTransport({ options: { servers: 'nats://127.0.0.1:1' } });

    await expect(
      transport.start({
        namespace: 'test',
        address: 'a',
        role: 'node',
        receiver: (await join('b')).recorded,
        jsonHandlers: new Map(),
      }),
    ).rejects.toThrow(/refused/i);
  });

  it("[11] Packets are smaller than the server's limit", async () => {
    const small = await NatsServer.start('max_payload: 8192');
    try {
      const transport = new NatsTransport({ options: { servers: small.url } });
      const { recorded } = await join('b');
      await transport.start({
        namespace: 'test',
        address: 'a',
        role: 'node',
        receiver: recorded,
        jsonHandlers: new Map(),
      });

      expect(transport.maxPacket).toBe(4096);
      expect((await join('c')).transport.maxPacket).toBe(524_288);
      await transport.stop();
    } finally {
      await small.end();
    }
  });

  it('[11] A user without permission to receive packets leads to an error in the log', async () => {
    const deaf = await NatsServer.start(
      'authorization { users: [{ user: deaf, password: p, permissions: { subscribe: { deny: "sv.*.n.>" } } }] }',
    );
    const log = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
    const transport = new NatsTransport({
      options: { servers: deaf.url, user: 'deaf', pass: 'p' },
    });
    try {
      await transport.start(contextOf('a', new RecordingReceiver()));

      await until(() =>
        log.mock.calls
          .flat()
          .some((line) =>
            /^Packets to sv\.test\.n\.a cannot be received: .*permission/i.test(`${line}`),
          ),
      );
      await transport.stop();
    } finally {
      log.mockRestore();
      await deaf.end();
    }
  });

  describe('Clients of Nest over NATS', () => {
    const handlers = new Map<string, JsonHandler>([
      ['double', async (data) => Number(data) * 2],
      ['a.*', () => of('one', 'two')],
      ['picky', () => throwError(() => new InvalidInputError('7 is no image'))],
      ['broken', () => Promise.reject(new TypeError('a secret path'))],
      ['large', async () => 'x'.repeat(2_000_000)],
    ]);

    it('[11] Clients of Nest get values, streams and errors', async () => {
      await join('a', { jsonHandlers: handlers });
      const client = connect();
      const run = (name: string): Promise<unknown[]> =>
        firstValueFrom(client.send(`sv.test.s.${name}`, 21).pipe(toArray()));

      await expect(run('double')).resolves.toEqual([42]);
      await expect(run('a=2E=2A')).resolves.toEqual(['one', 'two']);
      await expect(run('picky')).rejects.toEqual({
        name: 'InvalidInputError',
        code: 'SERVING_INVALID_INPUT',
        statusCode: 400,
        message: '7 is no image',
      });
      await expect(run('broken')).rejects.toMatchObject({
        code: 'INTERNAL',
        message: 'Internal Server Error',
      });
      await expect(run('unknown')).rejects.toThrow('no subscribers');
    });

    it('[11] Clients without Nest are answered, and invalid messages do no harm', async () => {
      await join('a', { jsonHandlers: handlers });
      const client = connect();
      await client.connect();
      const nats = client.unwrap<{
        request(subject: string, text: string): Promise<{ json(): unknown }>;
        publish(subject: string, text: string): void;
      }>();

      nats.publish('sv.test.s.double', 'banana');
      nats.publish('sv.test.s.double', '');
      for (const text of ['21', '{"data":21}', '{"pattern":"p","data":21,"id":"7"}']) {
        expect((await nats.request('sv.test.s.double', text)).json()).toMatchObject({
          response: 42,
          isDisposed: true,
        });
      }
    });

    it('[11] A reply too large for NATS is replaced by an error', async () => {
      await join('a', { jsonHandlers: handlers });

      await expect(firstValueFrom(connect().send('sv.test.s.large', 1))).rejects.toMatchObject({
        code: 'SERVING_INVALID_OUTPUT',
        message: expect.stringMatching(
          /^The reply has 2000\d\d\d bytes, where the NATS server takes at most 1048576$/,
        ),
      });
    });

    it('[11] One node answers each call', async () => {
      const counts = [0, 0, 0];
      for (const [i] of counts.entries()) {
        await join(`n${i}`, { jsonHandlers: new Map([['count', async () => ++counts[i]!]]) });
      }
      const client = connect();

      await Promise.all(
        Array.from({ length: 60 }, () => firstValueFrom(client.send('sv.test.s.count', 1))),
      );

      expect(counts.reduce((sum, count) => sum + count)).toBe(60);
      expect(counts.every((count) => count > 0)).toBe(true);
    });

    it('[11] A node that stops answers its calls first', async () => {
      const answer = new Awaited<string>();
      const { transport } = await join('a', {
        jsonHandlers: new Map([['late', () => answer.value]]),
      });
      const reply = firstValueFrom(connect().send('sv.test.s.late', 1));
      await until(() => answer.isAwaited);

      answer.give('at last');
      await transport.stop();

      await expect(reply).resolves.toBe('at last');
    });
  });
});
