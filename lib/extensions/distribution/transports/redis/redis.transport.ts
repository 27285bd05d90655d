import type { EventEmitter } from 'node:events';
import { ServerRedis } from '@nestjs/microservices';
import {
  catchError,
  defer,
  distinctUntilChanged,
  fromEvent,
  merge,
  of,
  skip,
  startWith,
  type Subscription,
  switchMap,
} from 'rxjs';
import { messageOf } from '../../../../doors/text.js';
import {
  type Address,
  NodeGoneError,
  type ServingTransport,
  type TransportContext,
} from '../../transport.js';
import { brokerError, checkSize, escapeName, SendBuffer } from '../handshake.js';
import type { RedisTransportOptions } from './redis.js';

export interface RedisTransportSettings {
  /** We retry a lost server forever by default, every 200 ms. */
  readonly options?: RedisTransportOptions | undefined;
}

interface Connection extends EventEmitter {
  readonly status: string;
  publish(channel: string, message: Buffer): Promise<number>;
  subscribe(...channels: readonly string[]): Promise<unknown>;
  disconnect(): void;
}

/** Milliseconds. */
const FLUSH = 5_000;
/** Milliseconds for a server to be ready, as the client of NATS has. */
const PATIENCE = 20_000;
const NOTHING = Buffer.alloc(0);

/**
 * Connects nodes through a Redis server. Packets for one node are published on
 * `sv.<namespace>.n.<address>`; packets for all, after the sender's address, on
 * `sv.<namespace>.all`.
 *
 * Nest's messages are unused: every application that listens to a pattern would run the request. So
 * Nest's clients can't call servings here.
 */
export class RedisTransport implements ServingTransport {
  readonly maxPacket = 256 * 1024;
  /**
   * Redis disconnects a node with 32 MB unread, from all senders together:
   * https://redis.io/docs/latest/develop/reference/clients/ (`client-output-buffer-limit`)
   */
  readonly window = 4 * 2 ** 20;
  private readonly server: PacketServer;
  private readonly address: string;
  private own: Pick<TransportContext, 'namespace' | 'address'> = { namespace: '', address: '' };
  private publisher: Connection | undefined;
  private watch: Subscription | undefined;
  private isOnline = false;
  private readonly unread = new SendBuffer('Redis');

  constructor({ options }: RedisTransportSettings = {}) {
    this.address = `${options?.host ?? 'localhost'}:${options?.port ?? 6379}`;
    this.server = new PacketServer({
      retryAttempts: Infinity,
      retryDelay: 200,
      ...options,
      // An interrupted publish may have arrived, so don't repeat it.
      maxRetriesPerRequest: 0,
      autoResendUnfulfilledCommands: false,
    });
  }

  /** Rejects if there's no server, or it refuses this node. */
  async start({ namespace, address, receiver }: TransportContext): Promise<void> {
    this.own = { namespace, address };
    const [publisher, subscriber] = await this.connect();
    this.publisher = publisher;
    const channels = [this.nodeChannel(address), this.channel('all')];
    subscriber.on('messageBuffer', (channel: Buffer, message: Buffer) => {
      const packet = channel.toString() === channels[1] ? this.ofAnother(message) : message;
      if (packet.byteLength > 0) {
        receiver.receive(packet);
      }
    });
    try {
      await subscriber.subscribe(...channels);
    } catch (error) {
      await this.stop();
      throw error;
    }
    this.isOnline = true;
    this.watch = merge(
      ...[publisher, subscriber].flatMap((each) => [
        fromEvent(each, 'ready'),
        fromEvent(each, 'close'),
      ]),
    )
      .pipe(
        switchMap(() =>
          [publisher, subscriber].every(({ status }) => status === 'ready')
            ? // ioredis resubscribes by itself but doesn't report it.
              defer(() => subscriber.subscribe(...channels)).pipe(
                switchMap(() => of(true)),
                catchError(() => of(false)),
              )
            : of(false),
        ),
        startWith(true),
        distinctUntilChanged(),
        skip(1),
      )
      .subscribe((isOnline) => {
        this.isOnline = isOnline;
        receiver.online(isOnline);
      });
  }

  /** Drops packets while the server is unreachable. Rejects if the send buffer is full. */
  async send(to: Address, packet: Uint8Array): Promise<void> {
    checkSize(packet, this.maxPacket);
    if ((await this.publish(this.nodeChannel(to), bufferOf(packet))) === 0) {
      throw new NodeGoneError(to);
    }
  }

  async broadcast(packet: Uint8Array): Promise<void> {
    checkSize(packet, this.maxPacket);
    await this.publish(this.channel('all'), Buffer.concat([Buffer.from(this.own.address), packet]));
  }

  async probe(address: Address): Promise<boolean> {
    const listeners = await this.publish(this.nodeChannel(address), NOTHING);
    if (listeners === undefined) {
      throw new Error('The Redis server is away');
    }
    return listeners > 0;
  }

  async stop(patience = FLUSH): Promise<void> {
    this.watch?.unsubscribe();
    this.isOnline = false;
    const timer = setTimeout(() => this.server.disconnect(), patience);
    // An answered QUIT means everything before it was sent.
    await this.server.close().catch(() => {});
    clearTimeout(timer);
  }

  private async connect(): Promise<readonly [publisher: Connection, subscriber: Connection]> {
    let failure: unknown;
    this.server.on('error', (_, error) => (failure ??= error));
    const timer = setTimeout(() => {
      failure ??= `it was not ready within ${PATIENCE / 1000} s`;
      this.server.disconnect();
    }, PATIENCE);
    try {
      await new Promise<void>((resolve, reject) => {
        void this.server.listen((error) => (error ? reject(error) : resolve()));
      });
    } catch (error) {
      await this.stop();
      // ioredis rejects with "closed"; the `error` event has the reason.
      throw brokerError('Redis', this.address, 'host and port', failure ?? error);
    } finally {
      clearTimeout(timer);
    }
    return this.server.unwrap<[Connection, Connection]>();
  }

  private async publish(channel: string, message: Buffer): Promise<number | undefined> {
    if (!this.isOnline || !this.publisher) {
      return undefined;
    }
    this.unread.add(message.byteLength);
    try {
      return await this.publisher.publish(channel, message);
    } catch (error) {
      if (isRefusal(error)) {
        throw error;
      }
      return undefined;
    } finally {
      this.unread.remove(message.byteLength);
    }
  }

  /**
   * Removes the sender's address, up to the packet's first byte, a zero. Empty for our own and
   * invalid packets.
   */
  private ofAnother(message: Buffer): Uint8Array {
    const end = message.indexOf(0);
    return end === -1 || message.toString('latin1', 0, end) === this.own.address
      ? NOTHING
      : message.subarray(end);
  }

  private nodeChannel(address: Address): string {
    return this.channel(`n.${escapeName(address)}`);
  }

  private channel(rest: string): string {
    return `sv.${escapeName(this.own.namespace)}.${rest}`;
  }
}

/** Opens Nest's connections but ignores its messages. */
class PacketServer extends ServerRedis {
  override bindEvents(): void {}

  /** The node doesn't start if the first connection fails. */
  override createRetryStrategy(times: number): number | void {
    return this.wasInitialConnectionSuccessful ? super.createRetryStrategy(times) : undefined;
  }

  /** Logs one error per outage. */
  override registerErrorListener(connection: Connection): void {
    let hasFailed = false;
    connection.on('ready', () => (hasFailed = false));
    connection.on('error', (error: unknown) => {
      if (!hasFailed && this.wasInitialConnectionSuccessful) {
        hasFailed = true;
        this.logger.error(
          'There is no connection to the Redis server; it is retried without end. ' +
            messageOf(error),
        );
      }
    });
  }

  /** Nest would log each attempt. */
  override registerReconnectListener(): void {}

  disconnect(): void {
    [this.pubClient, this.subClient].forEach((connection: Connection) => connection.disconnect());
  }
}

/** ioredis would send any other array as text. */
function bufferOf({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

function isRefusal(error: unknown): boolean {
  return error instanceof Error && error.name === 'ReplyError';
}
