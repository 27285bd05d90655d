import { setImmediate as turn } from 'node:timers/promises';
import { Logger } from '@nestjs/common';
import { ClientNats, ServerNats } from '@nestjs/microservices';
import {
  catchError,
  combineLatest,
  distinctUntilChanged,
  EMPTY,
  firstValueFrom,
  from,
  map,
  merge,
  type Observable,
  of,
  skip,
  startWith,
  Subject,
  type Subscription,
  switchMap,
  timeout,
} from 'rxjs';
import { messageOf } from '../../../errors.js';
import type { Address, Receiver, ServingTransport, TransportContext } from '../../transport.js';
import { escapeName, servingPattern, checkSize } from '../names.js';
import { AnyMessage, BoundedReplies } from './nats-codec.js';
import type { NatsOptions } from '../nest-types.js';
import { jsonAnswer } from '../../json/json-answer.js';
import { SendBuffer } from '../send-buffer.js';

/**
 * Those of Nest's own NATS transport, but for `queue`, which follows from the names of servings,
 * and what reads and writes messages.
 */
export type NatsTransportOptions = Omit<
  NonNullable<NatsOptions['options']>,
  'queue' | 'serializer' | 'deserializer'
>;

export interface NatsTransportSettings {
  /**
   * By default a server that is lost is looked for without end, every 200 ms:
   * `maxReconnectAttempts: -1, reconnectTimeWait: 200`.
   */
  readonly options?: NatsTransportOptions | undefined;
}

/** What this uses of a connection, whichever client package Nest has loaded. */
interface Connection {
  /** Absent while the server is away. */
  readonly info?: { readonly max_payload: number } | undefined;
  publish(subject: string, payload: Uint8Array): void;
  subscribe(
    subject: string,
    options: { readonly callback: (error: Error | null, message: Message) => void },
  ): unknown;
  flush(): Promise<void>;
}

interface Message {
  readonly subject: string;
  readonly data: Uint8Array;
}

/** A packet on its way out. */
interface Outgoing {
  readonly subject: string;
  readonly packet: Uint8Array;
}

/**
 * More than this a packet need not be, in bytes; and so much of what the server takes is left for
 * what is around it.
 */
const LARGEST = 512 * 1024;
const AROUND = 4 * 1024;
/**
 * A node that is there, but has not answered a probe for so many milliseconds, may be alive or not.
 */
const PROBE = 2_000;
/** After so many bytes the server is asked whether it has read them. */
const ASK = 1024 * 1024;
/** How long a server that reads nothing is waited for when a node stops, in milliseconds. */
const FLUSH = 5_000;

/**
 * Nodes that reach each other by a NATS server, on the connections of Nest's own NATS transport:
 * packets for one node go to `sv.<namespace>.n.<address>`, those for all to
 * `sv.<namespace>.all.<address of the sender>`. Nest's own clients call
 * `sv.<namespace>.s.<serving>`, where one of the nodes answers, and `sv.<namespace>.p.<address>`
 * asks whether a node is there.
 */
export class NatsTransport implements ServingTransport {
  private readonly server: ServerNats;
  private readonly client: ClientNats;
  private own: Pick<TransportContext, 'namespace' | 'address'> = { namespace: '', address: '' };
  private watch: Subscription | undefined;
  private mostBytes = LARGEST + AROUND;
  private isOnline = false;
  /** The client has refused a packet: its connection is closed for good. */
  private readonly closed$ = new Subject<void>();
  private readonly logger = new Logger('ServingTransport');
  private readonly unread = new SendBuffer('NATS');
  /** What leaves at the end of the turn. */
  private outbox: Outgoing[] = [];
  /** Bytes of which the server has not been asked yet. */
  private unasked = 0;

  constructor({ options }: NatsTransportSettings = {}) {
    const shared = {
      maxReconnectAttempts: -1,
      reconnectTimeWait: 200,
      ...options,
      queue: undefined,
      serializer: undefined,
      deserializer: undefined,
    };
    const serializer = new BoundedReplies(() => this.mostBytes);
    this.server = new ServerNats({ ...shared, serializer, deserializer: new AnyMessage() });
    this.client = new ClientNats(shared);
  }

  get maxPacket(): number {
    return Math.min(LARGEST, this.mostBytes - AROUND);
  }

  /** Rejects with the error of the NATS client when there is no server. */
  async start(station: TransportContext): Promise<void> {
    const { namespace, address, receiver, jsonHandlers } = station;
    this.own = { namespace, address };
    this.server.addHandler(this.probeSubject(address), async () => address);
    for (const [name, handler] of jsonHandlers) {
      this.server.addHandler(servingPattern(namespace, name), jsonAnswer(handler), false, {
        queue: `sv.${escapeName(name)}`,
      });
    }
    await this.connect(receiver);
    this.isOnline = true;
    this.watch = this.onlineChanges().subscribe((isOnline) => {
      this.isOnline = isOnline;
      receiver.online(isOnline);
    });
  }

  /**
   * While the server is away, packets are lost.
   *
   * @throws Error while the server is there and reads nothing, when much waits for it already
   */
  send(to: Address, packet: Uint8Array): void {
    this.publish(this.nodeSubject(to), packet);
  }

  broadcast(packet: Uint8Array): void {
    this.publish(this.broadcastSubject, packet);
  }

  /** NATS says at once when nobody listens. */
  async probe(address: Address): Promise<boolean> {
    try {
      await firstValueFrom(this.client.send(this.probeSubject(address), {}).pipe(timeout(PROBE)));
      return true;
    } catch (error) {
      if (isNobodyThere(error)) {
        return false;
      }
      throw error;
    }
  }

  async stop(patience = FLUSH): Promise<void> {
    this.watch?.unsubscribe();
    // Handlers that have their answers send them in this turn.
    await turn();
    if (this.isOnline) {
      this.isOnline = false;
      await this.flush(patience);
    }
    await Promise.all([this.server.close(), this.client.close()]);
  }

  private async connect(receiver: Receiver): Promise<void> {
    try {
      await Promise.all([
        new Promise<void>((resolve, reject) => {
          void this.server.listen((error) => (error ? reject(error) : resolve()));
        }),
        this.client.connect(),
      ]);
      this.listen(receiver);
      await this.settle();
    } catch (error) {
      await this.stop();
      throw error;
    }
  }

  /**
   * Packets are heard without Nest's way from message to handler, which costs more than all else
   * that is done with a small one.
   */
  private listen(receiver: Receiver): void {
    const { server, broadcastSubject, own } = this;
    for (const subject of [this.nodeSubject(own.address), this.subject('all.*')]) {
      server.unwrap<Connection>().subscribe(subject, {
        callback: (error, message) => {
          if (error) {
            this.logger.error(`Packets to ${subject} cannot be heard: ${error.message}`);
          } else if (message.subject !== broadcastSubject) {
            receiver.receive(message.data);
          }
        },
      });
    }
  }

  /**
   * Resolves when the server has heard of the subscriptions. One that has taken the place of
   * another may take less.
   */
  private async settle(): Promise<void> {
    await this.server.unwrap<Connection>().flush();
    this.mostBytes = this.client.unwrap<Connection>().info?.max_payload ?? this.mostBytes;
  }

  /**
   * True when the server has both connections back, and the subscriptions; false when one of the
   * connections is lost.
   */
  private onlineChanges(): Observable<boolean> {
    const isConnected$ = combineLatest([this.server.status, this.client.status]).pipe(
      map((statuses) => statuses.every((status: string) => status === 'connected')),
    );
    return merge(isConnected$, this.closed$.pipe(map(() => false))).pipe(
      startWith(true),
      distinctUntilChanged(),
      skip(1),
      switchMap((isConnected) => (isConnected ? this.settled() : of(false))),
      distinctUntilChanged(),
    );
  }

  private settled(): Observable<boolean> {
    return from(this.settle()).pipe(
      map(() => true),
      // The connection has been lost once more, which will be told by itself.
      catchError(() => EMPTY),
    );
  }

  /**
   * Packets of one turn leave together: the client of NATS would write each to its socket by
   * itself.
   */
  private publish(subject: string, packet: Uint8Array): void {
    checkSize(packet, this.maxPacket);
    if (!this.isOnline) {
      return;
    }
    this.unread.add(packet.byteLength);
    if (this.outbox.push({ subject, packet }) === 1) {
      process.nextTick(() => this.leave(this.outbox.splice(0)));
    }
  }

  private leave(packets: readonly Outgoing[]): void {
    this.unasked += packets.reduce((bytes, { packet }) => bytes + packet.byteLength, 0);
    if (this.isOnline) {
      try {
        const connection = this.client.unwrap<Connection>();
        packets.forEach(({ subject, packet }) => connection.publish(subject, packet));
      } catch (error) {
        this.logger.error(`The connection to the NATS server is closed: ${messageOf(error)}`);
        this.closed$.next();
      }
    }
    if (this.unasked >= ASK) {
      void this.ask();
    }
  }

  /**
   * The client of NATS keeps without bounds what the server does not read, and does not say how
   * much that is; but what it has read before it answers.
   */
  private async ask(): Promise<void> {
    const { unasked } = this;
    this.unasked = 0;
    await flushed(this.client);
    this.unread.remove(unasked);
  }

  private async flush(patience: number): Promise<void> {
    const both = Promise.all([flushed(this.client), flushed(this.server)]);
    await firstValueFrom(from(both).pipe(timeout({ first: patience, with: () => of(undefined) })));
  }

  private nodeSubject(address: Address): string {
    return this.subject(`n.${escapeName(address)}`);
  }

  private probeSubject(address: Address): string {
    return this.subject(`p.${escapeName(address)}`);
  }

  private get broadcastSubject(): string {
    return this.subject(`all.${escapeName(this.own.address)}`);
  }

  private subject(rest: string): string {
    return `sv.${escapeName(this.own.namespace)}.${rest}`;
  }
}

/** Resolves when the server has read what was sent, or will not: the connection is lost. */
async function flushed(end: ClientNats | ServerNats): Promise<void> {
  try {
    await end.unwrap<Connection>().flush();
  } catch {
    // The status of the connection reports the loss.
  }
}

/** Nest does not export the class of this error. */
function isNobodyThere(error: unknown): boolean {
  return error instanceof Error && error.message.startsWith('Empty response.');
}
