import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { ClientNats, ServerNats } from '@nestjs/microservices';
import { BehaviorSubject } from 'rxjs';
import { NatsTransport } from '../../../../../lib/extensions/distribution/transports/nats/nats.transport.js';
import {
  contextOf,
  numberedPacket,
  RecordingReceiver,
} from '../../../../fixtures/async/recording-receiver.js';
import { turn } from '../../../../fixtures/async/virtual-time.js';

/** A connection of the NATS client that the test closes for good. */
class ClosableConnection {
  readonly info = { max_payload: 2 ** 20 };
  isClosed = false;
  published = 0;

  publish(): void {
    this.refuseOnceClosed();
    this.published++;
  }

  subscribe(): void {}

  async flush(): Promise<void> {}

  refuseOnceClosed(): void {
    if (this.isClosed) {
      throw new Error('CONNECTION_CLOSED');
    }
  }
}

async function start(): Promise<{
  readonly transport: NatsTransport;
  readonly recorded: RecordingReceiver;
}> {
  const recorded = new RecordingReceiver();
  const transport = new NatsTransport();
  await transport.start(contextOf('a', recorded));
  return { transport, recorded };
}

describe('A node on NATS whose connection closes for good', () => {
  let connection: ClosableConnection;
  let status: BehaviorSubject<string>;
  let strays: unknown[];
  const stray = (error: unknown): unknown => strays.push(error);

  beforeEach(() => {
    Logger.overrideLogger(false);
    connection = new ClosableConnection();
    status = new BehaviorSubject('connected');
    strays = [];
    process.on('uncaughtException', stray).on('unhandledRejection', stray);
    jest.spyOn(ServerNats.prototype, 'listen').mockImplementation(async (started) => started());
    jest.spyOn(ServerNats.prototype, 'close').mockResolvedValue(undefined);
    jest.spyOn(ClientNats.prototype, 'connect').mockResolvedValue(undefined);
    jest.spyOn(ClientNats.prototype, 'close').mockResolvedValue(undefined);
    for (const { prototype } of [ServerNats, ClientNats]) {
      jest.spyOn(prototype, 'unwrap').mockImplementation(() => connection);
      jest.spyOn(prototype, 'status', 'get').mockImplementation(() => status as never);
    }
  });

  afterEach(() => {
    process.off('uncaughtException', stray).off('unhandledRejection', stray);
    jest.restoreAllMocks();
  });

  it('[S4] A packet that cannot be published is reported as a lost connection', async () => {
    const { transport, recorded } = await start();
    transport.send('b', numberedPacket(1));
    await turn();
    connection.isClosed = true;
    transport.send('b', numberedPacket(2));
    transport.broadcast(numberedPacket(3));
    await turn();

    expect(recorded.events).toEqual(['offline']);
    expect(connection.published).toBe(1);
    expect(strays).toEqual([]);
  });

  it('[S4] A lost connection is reported once, and nothing more is sent', async () => {
    const { transport, recorded } = await start();
    connection.isClosed = true;
    transport.send('b', numberedPacket(1));
    await turn();
    transport.send('b', numberedPacket(2));
    status.next('disconnected');
    await turn();

    expect(recorded.events).toEqual(['offline']);
    expect(strays).toEqual([]);
  });

  it('[S4] The transport stops without an error when the NATS client throws', async () => {
    const { transport } = await start();
    connection.isClosed = true;
    // The client throws this when its connection is gone.
    connection.flush = () => {
      throw new Error('CONNECTION_CLOSED');
    };
    for (let i = 0; i < 3; i++) {
      transport.send('b', numberedPacket(i, 500_000));
    }
    await turn();
    await transport.stop();

    expect(strays).toEqual([]);
  });

  it('[S4] The transport goes on when the connection is restored', async () => {
    const { transport, recorded } = await start();
    connection.isClosed = true;
    transport.send('b', numberedPacket(1));
    await turn();
    status.next('disconnected');
    connection.isClosed = false;
    status.next('connected');
    await turn();
    transport.send('b', numberedPacket(2));
    await turn();

    expect(recorded.events).toEqual(['offline', 'online']);
    expect(connection.published).toBe(1);
  });
});
