import * as fc from 'fast-check';
import { Batch, type BatchContext, ServingService } from 'nestjs-serving';
import { MemoryNetwork } from 'nestjs-serving/distribution';
import type { Attack, Entry, Outcome } from './entry.js';
import { openNode } from './open-node.js';
import { type NodeParts, nodeParts } from './node-parts.js';

const EVIL = 'evil';
/** The window that nodes grant by default. */
const WINDOW = { messages: 64, bytes: 2 ** 20 };

const echo = {
  name: 'echo',
  queue: { maxRows: 100_000 },
  model: { useFactory: () => (rows: readonly unknown[]) => rows },
};

const adding = {
  name: 'sum',
  model: {
    useFactory:
      () =>
      (rows: readonly unknown[], { states }: BatchContext) =>
        rows.map((row, i) => (states[i] = Number(states[i] ?? 0) + Number(row))),
    sessions: { max: 50 },
  },
};

/** A frame of a call. */
interface Step {
  readonly kind: 'input' | 'inputEnd' | 'credit';
  readonly header: object;
  readonly bytes: number;
  /** In place of so many bytes. */
  readonly value?: unknown;
}

interface Streamed {
  readonly words: string;
  readonly request: object;
  readonly steps: readonly Step[];
  /** Whether the node must answer with an error that names the caller's fault. */
  readonly isRefused: boolean;
}

/** What a node sends that does not keep to the window of a stream, nor to its order. */
export async function streams(): Promise<Entry & { close(): Promise<unknown> }> {
  const parts = await nodeParts();
  const network = new MemoryNetwork({ maxPacket: 2 ** 20 });
  const node = await openNode({ transport: network.transport() }, [echo, adding]);
  const client = await openNode({ transport: network.transport() });
  const servings = client.get(ServingService);
  const peer = await Peer.join(network, parts);
  return {
    name: 'cluster, streams',
    hostile: fc.oneof(hostileStreams, hostileSessions).map((streamed) => peer.attack(streamed)),
    valid: fc
      .array(fc.integer(), { minLength: 1, maxLength: 100 })
      .map((rows) => validStream(servings, rows)),
    close: () => Promise.all([node.close(), client.close()]),
  };
}

/** A node that sends what it likes. */
class Peer {
  private readonly answers = new Map<number, (kind: number, code: unknown) => void>();
  private last = 0;
  private owner = '';

  private constructor(
    private readonly transport: ReturnType<MemoryNetwork['transport']>,
    private readonly parts: NodeParts,
  ) {}

  static async join(network: MemoryNetwork, parts: NodeParts): Promise<Peer> {
    const peer = new Peer(network.transport(), parts);
    await new Promise<void>((resolve) => {
      const receiver = {
        receive: (packet: Uint8Array) => {
          peer.receive(packet);
          if (peer.owner !== '') {
            resolve();
          }
        },
        nodeConnected() {},
        nodeDisconnected() {},
        online() {},
      };
      void peer.transport.start({
        namespace: 'default',
        address: EVIL,
        role: 'node',
        receiver,
        jsonHandlers: new Map(),
      });
    });
    return peer;
  }

  attack({ words, request, steps, isRefused }: Streamed): Attack {
    return {
      send: async () => {
        const { Kind } = this.parts;
        const call = ++this.last;
        const answer = new Promise<Outcome>((resolve) => {
          this.answers.set(call, (kind, code) =>
            resolve(outcomeOf(kind === Kind.error ? String(code) : 'answered', isRefused)),
          );
        });
        this.send('request', call, { serving: 'echo', ...request });
        for (const { kind, header, bytes, value = new Uint8Array(bytes) } of steps) {
          this.send(kind, call, header, value);
        }
        return answer.finally(() => this.answers.delete(call));
      },
      toString: () => words,
    };
  }

  private send(
    kind: Step['kind'] | 'request' | 'marked',
    call: number,
    header: object,
    value?: unknown,
  ): void {
    const { encodeFrame, encodeValue, defaultWireLimits, Kind } = this.parts;
    const encoded = value === undefined ? undefined : encodeValue(value, defaultWireLimits);
    this.transport.send(
      this.owner,
      encodeFrame({
        kind: Kind[kind],
        call,
        header: { from: EVIL, to: this.owner, ...header },
        value: encoded,
      }),
    );
  }

  private receive(packet: Uint8Array): void {
    const { decodeFrame, defaultWireLimits, Kind } = this.parts;
    const { kind, call, header } = decodeFrame(packet, defaultWireLimits);
    const { info, error, from } = header as {
      readonly info?: { readonly role: string };
      readonly error?: { readonly code?: string };
      readonly from: string;
    };
    if (kind === Kind.mark) {
      // Else the node holds back its answers: it counts them as unread.
      this.send('marked', call, {});
    } else if (kind === Kind.heartbeat && info?.role === 'node') {
      this.owner = from;
    } else if (kind === Kind.error || kind === Kind.end || kind === Kind.reply) {
      this.answers.get(call)?.(kind, error?.code);
    }
  }
}

function outcomeOf(word: string, isRefused: boolean): Outcome {
  return !isRefused || word === 'SERVING_INVALID_INPUT'
    ? { word }
    : { word, fault: 'was not refused as the fault of the caller' };
}

const inputs = (count: number, bytes: number): Step[] =>
  Array.from({ length: count }, (_, index) => ({ kind: 'input', header: { index }, bytes }));
const lazy = { method: 'batchedRun', lazyInput: true };
const numbers = fc.oneof(
  fc.integer(),
  fc.double(),
  fc.constantFrom(2 ** 53, -1, 0.5),
  fc.string(),
  fc.constant(null),
);
const count = (steps: readonly Step[]): number => steps.reduce((sum, { bytes }) => sum + bytes, 0);

const hostileStreams: fc.Arbitrary<Streamed> = fc.oneof(
  fc.integer({ min: WINDOW.messages + 1, max: 300 }).map((messages) => ({
    words: `${messages} elements at once`,
    request: lazy,
    steps: inputs(messages, 10),
    isRefused: true,
  })),
  fc
    .tuple(fc.integer({ min: 7, max: 10 }), fc.integer({ min: 180_000, max: 250_000 }))
    .map(([messages, bytes]) => {
      const steps = inputs(messages, bytes);
      return {
        words: `${messages} elements, ${count(steps)} bytes at once`,
        request: lazy,
        steps,
        isRefused: true,
      };
    }),
  fc
    .tuple(
      fc.nat({ max: 60 }),
      numbers.filter((index) => index !== 0),
    )
    .map(([before, index]) => ({
      words: `element ${String(index)} after ${before} others`,
      request: lazy,
      steps: [
        ...inputs(before, 10),
        { kind: 'input', header: { index: index === before ? -1 : index }, bytes: 10 },
      ] satisfies Step[],
      isRefused: true,
    })),
  fc.tuple(fc.nat({ max: 60 }), numbers).map(([before, ends]) => ({
    words: `an end of ${String(ends)} after ${before} elements`,
    request: lazy,
    steps: [
      ...inputs(before, 10),
      { kind: 'inputEnd', header: { count: ends === before ? -1 : ends }, bytes: 0 },
    ] satisfies Step[],
    isRefused: true,
  })),
  fc.array(numbers, { minLength: 1, maxLength: 20 }).map((all) => ({
    words: `credits of ${all.map(String).join(', ')}`,
    request: { method: 'stream', lazyInput: true },
    steps: [
      ...all.map((taken): Step => ({ kind: 'credit', header: { taken }, bytes: 0 })),
      ...inputs(WINDOW.messages + 1, 1),
    ],
    isRefused: true,
  })),
  fc.record({ messages: numbers, bytes: numbers }).map((window) => ({
    words: `a grant of ${JSON.stringify(window)}`,
    request: { method: 'stream', lazyInput: true, window },
    steps: inputs(WINDOW.messages + 1, 1),
    isRefused: true,
  })),
);

/** The steps of a session, which may be none. */
const aStep = fc.oneof(
  fc.anything({ maxDepth: 1, withBigInt: true }),
  fc.record({ input: numbers, steps: numbers, timeout: numbers, priority: numbers }),
  fc.record({ input: fc.integer(), steps: fc.integer({ min: -5, max: 5 }) }),
);

const hostileSessions: fc.Arbitrary<Streamed> = fc
  .record({
    steps: fc.array(aStep, { maxLength: 8 }),
    serving: fc.constantFrom('sum', 'sum', 'echo'),
    session: fc.constantFrom<unknown>(true, true, true, 1, 'yes'),
    tenant: fc.constantFrom<unknown>(undefined, undefined, 'a', 5, ''),
  })
  .map(({ steps, ...own }) => ({
    words: `a session ${JSON.stringify(own)} of ${steps.length} steps`,
    request: { method: 'stream', lazyInput: true, ...own },
    steps: [
      ...steps.map((value, index): Step => ({ kind: 'input', header: { index }, bytes: 0, value })),
      { kind: 'inputEnd', header: { count: steps.length }, bytes: 0 },
    ],
    isRefused: false,
  }));

function validStream(servings: ServingService, rows: readonly number[]): Attack {
  return {
    async send() {
      const outputs: unknown[] = [];
      const given = (async function* () {
        for (const row of rows) {
          yield Batch.ofValues([row]);
        }
      })();
      for await (const event of servings.stream('echo', given)) {
        outputs.push(...(event.output as unknown[]));
      }
      return JSON.stringify(outputs) === JSON.stringify(rows)
        ? { word: 'right' }
        : { word: 'wrong', fault: `gave ${JSON.stringify(outputs)}` };
    },
    toString: () => `a stream of ${rows.length} rows`,
  };
}
