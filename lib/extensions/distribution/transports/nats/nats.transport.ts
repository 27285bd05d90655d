import { setImmediate as turn } from 'node:timers/promises';
import { Logger } from '@nestjs/common';
import { ClientNats, type Deserializer, type Serializer, ServerNats } from '@nestjs/microservices';
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
import { messageOf } from '../../../../doors/text.js';
import type { Address, Receiver, ServingTransport, TransportContext } from '../../transport.js';
import { brokerError, checkSize, escapeName, SendBuffer, servingPattern } from '../handshake.js';
import type { NatsTransportOptions } from './nats.js';
import { jsonAnswer } from '../../json/json-handlers.js';
import { InvalidOutputError } from '../../../../index.js';

export interface NatsTransportSettings {
  /** We retry a lost server forever by default, every 200 ms. */
  readonly options?: NatsTransportOptions | undefined;
  readonly namespace?: string | undefined;
}

/** Common API of NATS client packages. */
interface Connection {
  /** Undefined while the server is unreachable. */
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

interface Outgoing {
  readonly subject: string;
  readonly packet: Uint8Array;
}

/** Packet limit, and room for the envelope, in bytes. */
const LARGEST = 512 * 1024;
const AROUND = 4 * 1024;
/** Milliseconds; a silent node may be alive. */
const PROBE = 2_000;
/** Bytes between flushes. */
const ASK = 1024 * 1024;
const MOST_SUBJECTS = 1024;
/** Milliseconds. */
const FLUSH = 5_000;

/**
 * Connects nodes through a NATS server, over Nest's connections.
 *
 * - `sv.<namespace>.n.<address>`: packets for one node
 * - `sv.<namespace>.all.<sender's address>`: packets for all nodes
 * - `sv.<namespace>.s.<serving>`: calls from other clients, answered by one node
 * - `sv.<namespace>.p.<address>`: probes of a node
 * - `sv.<namespace>.inbox.<random>`: answers to probes
 */
export class NatsTransport implements ServingTransport {
  private readonly server: ServerNats;
  private readonly client: ClientNats;
  private readonly address: string;
  private own: Pick<TransportContext, 'namespace' | 'address'> = { namespace: '', address: '' };
  private watch: Subscription | undefined;
  private mostBytes = LARGEST + AROUND;
  private isOnline = false;
  private readonly closed$ = new Subject<void>();
  private readonly logger = new Logger('ServingTransport');
  private readonly unread = new SendBuffer('NATS');
  private outbox: Outgoing[] = [];
  private readonly subjects = new Map<Address, string>();
  private unasked = 0;

  constructor({ options, namespace = '' }: NatsTransportSettings = {}) {
    const shared = {
      maxReconnectAttempts: -1,
      reconnectTimeWait: 200,
      // The client would otherwise give up at the second refused login.
      ignoreAuthErrorAbort: true,
      // Nodes then need only the permission `sv.>`.
      inboxPrefix: `sv.${escapeName(namespace)}.inbox`,
      ...options,
      queue: undefined,
      serializer: undefined,
      deserializer: undefined,
    };
    this.address = [options?.servers ?? `localhost:${options?.port ?? 4222}`].flat().join(', ');
    const serializer = new BoundedReplies(() => this.mostBytes);
    this.server = new ServerNats({ ...shared, serializer, deserializer: new AnyMessage() });
    this.client = new ClientNats(shared);
  }

  get maxPacket(): number {
    return Math.min(LARGEST, this.mostBytes - AROUND);
  }

  async start(context: TransportContext): Promise<void> {
    const { namespace, address, receiver, jsonHandlers } = context;
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
   * Drops packets while the server is unreachable.
   *
   * @throws Error if the send buffer is full
   */
  send(to: Address, packet: Uint8Array): void {
    this.publish(this.nodeSubject(to), packet);
  }

  broadcast(packet: Uint8Array): void {
    this.publish(this.broadcastSubject, packet);
  }

  /** NATS immediately reports a subject without subscribers. */
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
    // Finished handlers answer now.
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
      throw brokerError('NATS', this.address, 'servers or port', error);
    }
  }

  /** Nest's handlers cost more than all other work on a small packet. */
  private listen(receiver: Receiver): void {
    const { server, broadcastSubject, own } = this;
    for (const subject of [this.nodeSubject(own.address), this.subject('all.*')]) {
      server.unwrap<Connection>().subscribe(subject, {
        callback: (error, message) => {
          if (error) {
            this.logger.error(`Packets to ${subject} cannot be received: ${error.message}`);
          } else if (message.subject !== broadcastSubject) {
            receiver.receive(message.data);
          }
        },
      });
    }
  }

  /** Rereads the limit: a reconnect may find another server. */
  private async settle(): Promise<void> {
    await this.server.unwrap<Connection>().flush();
    this.mostBytes = this.client.unwrap<Connection>().info?.max_payload ?? this.mostBytes;
  }

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
      // The status reports the loss.
      catchError(() => EMPTY),
    );
  }

  /** Sends a turn's packets together; the client would write each. */
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
   * The client buffers without limit or report, but the server answers a flush after everything
   * before it.
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
    let subject = this.subjects.get(address);
    if (subject === undefined) {
      if (this.subjects.size >= MOST_SUBJECTS) {
        this.subjects.clear();
      }
      subject = this.subject(`n.${escapeName(address)}`);
      this.subjects.set(address, subject);
    }
    return subject;
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

async function flushed(end: ClientNats | ServerNats): Promise<void> {
  try {
    await end.unwrap<Connection>().flush();
  } catch {
    // The status reports the loss.
  }
}

/** Nest doesn't export this error's class. */
function isNobodyThere(error: unknown): boolean {
  return error instanceof Error && error.message.startsWith('Empty response.');
}

interface Circumstances {
  readonly channel?: string;
  readonly replyTo?: string;
}

/** Another client's message is all data, answered if it has a reply subject. */
export class AnyMessage implements Deserializer {
  deserialize(value: unknown, { channel, replyTo }: Circumstances = {}): unknown {
    const message: unknown = JSON.parse(Buffer.from(bytesOf(value)).toString());
    const isNests =
      typeof message === 'object' &&
      message !== null &&
      ('pattern' in message || 'data' in message);
    return {
      pattern: channel,
      ...(replyTo && { id: replyTo }),
      ...(isNests ? message : { data: message }),
    };
  }
}

/** Nest 11 passes a message's bytes, Nest 12 the message. */
function bytesOf(value: unknown): Uint8Array {
  const data: unknown =
    typeof value === 'object' && value !== null && 'data' in value ? value.data : value;
  if (!(data instanceof Uint8Array)) {
    throw new TypeError('A message of NATS without its bytes');
  }
  return data;
}

/**
 * Replaces a reply too large for NATS: Nest would only log it, and the client would wait forever.
 */
export class BoundedReplies implements Serializer {
  constructor(private readonly mostBytes: () => number) {}

  serialize(reply: { readonly id?: unknown }): { readonly data: Uint8Array } {
    const data = Buffer.from(JSON.stringify(reply));
    const most = this.mostBytes();
    if (data.byteLength <= most) {
      return { data };
    }
    const error = new InvalidOutputError(
      `The reply has ${data.byteLength} bytes, where the NATS server takes at most ${most}`,
    );
    return {
      data: Buffer.from(JSON.stringify({ id: reply.id, err: error.toJSON(), isDisposed: true })),
    };
  }
}
