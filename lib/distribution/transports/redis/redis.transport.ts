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
import { messageOf } from '../../../errors.js';
import {
  type Address,
  NodeGoneError,
  type ServingTransport,
  type TransportContext,
} from '../../transport.js';
import { escapeName, checkSize } from '../names.js';
import type { RedisOptions } from '../nest-types.js';
import { SendBuffer } from '../send-buffer.js';

/**
 * Those of Nest's own Redis transport, but for what reads and writes messages, and for what would
 * send packets again that may have come.
 */
export type RedisTransportOptions = Omit<
  NonNullable<RedisOptions['options']>,
  | 'wildcards'
  | 'serializer'
  | 'deserializer'
  | 'maxRetriesPerRequest'
  | 'autoResendUnfulfilledCommands'
>;

export interface RedisTransportSettings {
  /**
   * By default a server that is lost is looked for without end, every 200 ms:
   * `retryAttempts: Infinity, retryDelay: 200`.
   */
  readonly options?: RedisTransportOptions | undefined;
}

/** What this uses of a connection, of ioredis. */
interface Connection extends EventEmitter {
  readonly status: string;
  /** Gives the number of those who listen. */
  publish(channel: string, message: Buffer): Promise<number>;
  subscribe(...channels: readonly string[]): Promise<unknown>;
  disconnect(): void;
}

/** How long the server is waited for when a node stops, in milliseconds. */
const FLUSH = 5_000;
const NOTHING = Buffer.alloc(0);

/**
 * Nodes that reach each other by a Redis server: packets for one node are published on
 * `sv.<namespace>.n.<address>`, those for all, with the address of the sender before them, on
 * `sv.<namespace>.all`.
 *
 * The connections are those of Nest's own Redis transport. Its messages are not used: Nest writes
 * all of them as JSON, and every application that listens to a pattern runs the request, so there
 * is nothing here for Nest's own clients to call.
 */
export class RedisTransport implements ServingTransport {
  readonly maxPacket = 256 * 1024;
  private readonly server: PacketServer;
  private own: Pick<TransportContext, 'namespace' | 'address'> = { namespace: '', address: '' };
  private publisher: Connection | undefined;
  private watch: Subscription | undefined;
  private isOnline = false;
  private readonly unread = new SendBuffer('Redis');

  constructor({ options }: RedisTransportSettings = {}) {
    this.server = new PacketServer({
      retryAttempts: Infinity,
      retryDelay: 200,
      ...options,
      // What a lost connection leaves open is over, and not sent again: it may have come.
      maxRetriesPerRequest: 0,
      autoResendUnfulfilledCommands: false,
    });
  }

  /** Rejects with the error of ioredis when there is no server, or it does not let this node in. */
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
            ? // ioredis subscribes again by itself, but does not say when that is done.
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

  /**
   * While the server is away, packets are lost. Rejects while it is there and reads nothing, when
   * much waits for it already.
   */
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

  /** Redis says how many have got a message; this one has nothing in it. */
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
    // What was published before is out when the server has answered that.
    await this.server.close().catch(() => {});
    clearTimeout(timer);
  }

  private async connect(): Promise<readonly [publisher: Connection, subscriber: Connection]> {
    let failure: unknown;
    this.server.on('error', (_, error) => (failure ??= error));
    try {
      await new Promise<void>((resolve, reject) => {
        void this.server.listen((error) => (error ? reject(error) : resolve()));
      });
    } catch (error) {
      await this.stop();
      // ioredis says of what has failed only that it is closed.
      throw failure ?? error;
    }
    return this.server.unwrap<[Connection, Connection]>();
  }

  /** How many have got it; nothing when that cannot be known, since the connection is gone. */
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
   * The packet behind the address of who has sent it, which ends where the packet begins: with a
   * zero. Nothing, if that is this node.
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

/** Nest's own connections, on which nothing is read as Nest's messages. */
class PacketServer extends ServerRedis {
  override bindEvents(): void {}

  /** A node that has never been connected does not start, and leaves nothing behind that tries. */
  override createRetryStrategy(times: number): number | void {
    return this.wasInitialConnectionSuccessful ? super.createRetryStrategy(times) : undefined;
  }

  /**
   * The errors of all attempts to connect again are one line. Where the first attempt fails, the
   * node does not start, and says why.
   */
  override registerErrorListener(connection: Connection): void {
    let hasFailed = false;
    connection.on('ready', () => (hasFailed = false));
    connection.on('error', (error: unknown) => {
      if (!hasFailed && this.wasInitialConnectionSuccessful) {
        hasFailed = true;
        this.logger.error(
          'There is no connection to the Redis server; it is looked for again and again. ' +
            messageOf(error),
        );
      }
    });
  }

  /** Each attempt would be a line. */
  override registerReconnectListener(): void {}

  disconnect(): void {
    [this.pubClient, this.subClient].forEach((connection: Connection) => connection.disconnect());
  }
}

/** The same bytes, as ioredis wants them: of any other array it would send the text. */
function bufferOf({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

/** Whether the server has said no, as it does to those who may not use a channel. */
function isRefusal(error: unknown): boolean {
  return error instanceof Error && error.name === 'ReplyError';
}
