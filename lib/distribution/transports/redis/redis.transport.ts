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
 * The options of Nest's Redis transport, except serializers, and except those that would send
 * packets twice.
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
   * By default a lost server is retried without end, every 200 ms:
   * `retryAttempts: Infinity, retryDelay: 200`.
   */
  readonly options?: RedisTransportOptions | undefined;
}

/** The part of a connection of ioredis that is used. */
interface Connection extends EventEmitter {
  readonly status: string;
  /** Resolves with the number of subscribers. */
  publish(channel: string, message: Buffer): Promise<number>;
  subscribe(...channels: readonly string[]): Promise<unknown>;
  disconnect(): void;
}

/** Milliseconds to wait for the server when a node stops. */
const FLUSH = 5_000;
const NOTHING = Buffer.alloc(0);

/**
 * Nodes that reach each other through a Redis server. Packets for one node are published on
 * `sv.<namespace>.n.<address>`, those for all, with the address of the sender before them, on
 * `sv.<namespace>.all`.
 *
 * The connections are those of Nest's Redis transport. Its messages are not used: Nest writes all
 * of them as JSON, and every application that listens to a pattern runs the request, so Nest's
 * clients cannot call servings here.
 */
export class RedisTransport implements ServingTransport {
  readonly maxPacket = 256 * 1024;
  /** Redis ends the connection of a node for which 32 MB wait, of all nodes that send to it. */
  readonly window = 4 * 2 ** 20;
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
      // A publish that a lost connection leaves open is not repeated: it may have arrived.
      maxRetriesPerRequest: 0,
      autoResendUnfulfilledCommands: false,
    });
  }

  /** Rejects with the error of ioredis when there is no server, or when it refuses this node. */
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
            ? // ioredis subscribes again by itself, but does not report when that is done.
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
   * While the server is unreachable, packets are lost. Rejects while it is reachable and reads
   * nothing, once the send buffer is full.
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

  /** Redis returns the number of receivers; this message is empty. */
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
    // An answer means that everything published before has been sent.
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
      // ioredis reports failed commands only as closed.
      throw failure ?? error;
    }
    return this.server.unwrap<[Connection, Connection]>();
  }

  /** The number of receivers; undefined when the connection was lost and it cannot be known. */
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
   * The packet after the address of its sender; the address ends at the zero byte with which the
   * packet begins. Undefined for packets of this node.
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

/** Nest's connections, which ignore Nest's messages. */
class PacketServer extends ServerRedis {
  override bindEvents(): void {}

  /** A node that never connected does not start, and leaves no retries behind. */
  override createRetryStrategy(times: number): number | void {
    return this.wasInitialConnectionSuccessful ? super.createRetryStrategy(times) : undefined;
  }

  /**
   * Logs the errors of all reconnect attempts once. Where the first attempt fails, the node does
   * not start, with the reason.
   */
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

  /** Without this, each attempt would be logged. */
  override registerReconnectListener(): void {}

  disconnect(): void {
    [this.pubClient, this.subClient].forEach((connection: Connection) => connection.disconnect());
  }
}

/** The same bytes as a Buffer: ioredis would send the text of any other array. */
function bufferOf({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

/** Whether the server has refused the command, for example for lack of permission. */
function isRefusal(error: unknown): boolean {
  return error instanceof Error && error.name === 'ReplyError';
}
