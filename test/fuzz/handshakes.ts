import { connect, type Socket } from 'node:net';
import { once } from 'node:events';
import { Transport } from '@nestjs/microservices';
import * as fc from 'fast-check';
import { ServingService } from 'nestjs-serving';
import { freePort } from '../fixtures/http/free-port.js';
import type { Attack, Entry, Outcome } from './entry.js';
import { openNode } from './open-node.js';
import { type NodeParts, nodeParts } from './node-parts.js';

const secret = 'known to nodes alone';
const echo = {
  name: 'echo',
  shutdown: { timeout: 1000 },
  model: { useFactory: () => (rows: readonly unknown[]) => rows },
};

/**
 * Beyond this many bytes of text a node must have closed a connection: a handshake, and a piece
 * that was read with it.
 */
const MOST_READ = 16 * 1024 + 64 * 1024;

/** What one connection sends, and whether it first proves that it knows the secret. */
interface Sent {
  readonly words: string;
  readonly isProved: boolean;
  readonly bytes: () => Uint8Array;
  /** Whether the node must close the connection by itself, at once. */
  readonly mustClose: boolean;
}

/**
 * What connects to the TCP port of a node that has a secret: strangers, and nodes that misbehave.
 */
export async function handshakes(): Promise<Entry & { close(): Promise<unknown> }> {
  const parts = await nodeParts();
  const port = await freePort();
  const peers = [`127.0.0.1:${port}`];
  const node = await openNode({ transport: Transport.TCP, secret, options: { port } }, [echo]);
  const client = await openNode({ transport: Transport.TCP, secret, peers });
  const servings = client.get(ServingService);
  return {
    name: 'cluster, handshake',
    hostile: sentBy(parts).map((sent) => attack(sent, port, parts)),
    valid: fc
      .jsonValue()
      .map((value) => JSON.stringify(value))
      // Nodes refuse a field of this name.
      .filter((text) => !text.includes('"__proto__"'))
      .map((text) => call(servings, JSON.parse(text))),
    close: () => Promise.all([node.close(), client.close()]),
  };
}

function attack(sent: Sent, port: number, parts: NodeParts): Attack {
  return {
    async send() {
      // Ports of one source address run out, since those of closed connections stay in use for a
      // while.
      const localAddress = `127.0.${1 + Math.floor(Math.random() * 250)}.1`;
      const socket = connect({ host: '127.0.0.1', port, localAddress }).on('error', () => {});
      try {
        await once(socket, 'connect');
        return await outcomeOf(sent, socket, parts);
      } finally {
        socket.resetAndDestroy();
      }
    },
    toString: () => `${sent.isProved ? 'a proved node' : 'a stranger'} sends ${sent.words}`,
  };
}

async function outcomeOf(
  { isProved, bytes, mustClose }: Sent,
  socket: Socket,
  parts: NodeParts,
): Promise<Outcome> {
  const closed = new Promise((resolve) => socket.once('close', resolve));
  if (isProved && !(await prove(socket, parts))) {
    return { word: 'no link', fault: 'a node with the secret got no link' };
  }
  let answers = '';
  socket.on(
    'data',
    (data: Buffer) => (answers += answers.length < 1e6 ? data.toString('latin1') : ''),
  );
  socket.write(bytes());
  if (!mustClose) {
    // The node ends its side when this one ends.
    socket.end();
  }
  await closed;
  if (!isProved && answers.includes('"response":true')) {
    return { word: 'link', fault: 'a stranger got a link' };
  }
  return { word: mustClose ? 'closed by the node' : answers === '' ? 'no answer' : 'answered' };
}

/** Makes the connection a link, as nodes do. */
async function prove(socket: Socket, { hmacOf }: NodeParts): Promise<boolean> {
  const address = `peer-${Math.random().toString(36).slice(2)}`;
  const { response }: { response?: { nonce: string } } = await ask(socket, 'sv.default.who', {
    nonce: 'mine',
  });
  const proof = hmacOf(secret, 'link', 'default', 'mine', response?.nonce ?? '', address);
  const answer: { response?: unknown } = await ask(socket, 'sv.default.link', { address, proof });
  return answer.response === true;
}

/** The answer, before and after which there may be packets. */
async function ask(socket: Socket, pattern: string, data: object): Promise<object> {
  socket.write(question(pattern, data));
  let text = '';
  for (;;) {
    const [piece]: Buffer[] = await once(socket, 'data');
    text += piece!.toString('latin1');
    // Nest writes the id last.
    const [answer] = /\{"(?:response|err)".*?"id":"1"\}/s.exec(text) ?? [];
    if (answer !== undefined) {
      return JSON.parse(answer);
    }
  }
}

function question(pattern: string, data: unknown): string {
  const text = JSON.stringify({ pattern, data, id: '1' });
  return `${text.length}#${text}`;
}

function sentAs(
  words: string,
  bytes: () => Uint8Array,
  mustClose: boolean,
  isProved = false,
): Sent {
  return { words, bytes, mustClose, isProved };
}

function sentBy({ hmacOf, writePrelude, Kind }: NodeParts): fc.Arbitrary<Sent> {
  const text = (all: string, words: string, isProved = false): Sent =>
    sentAs(words, () => Buffer.from(all), Buffer.byteLength(all) > MOST_READ, isProved);
  const packet = (body: number): Buffer => {
    const bytes = Buffer.alloc(40);
    const none = { flags: 0, blocks: 0, head: 0, call: 0, timeout: Infinity };
    writePrelude(bytes, { ...none, kind: Kind.heartbeat, body });
    return bytes;
  };
  const sizes = fc.oneof(
    fc.nat({ max: 20_000 }),
    fc.integer({ min: MOST_READ, max: 4 * MOST_READ }),
  );
  const isProved = fc.boolean();
  return fc.oneof(
    fc
      .tuple(sizes, isProved)
      .map(([size, proved]) =>
        text(`120000000#${'a'.repeat(size)}`, `${size} bytes of a message of 120 MB`, proved),
      ),
    fc
      .tuple(sizes, isProved)
      .map(([size, proved]) =>
        text(
          question('sv.default.who', { nonce: 'n' }).repeat(Math.ceil(size / 60)),
          `${size} bytes of hellos`,
          proved,
        ),
      ),
    fc
      .uint8Array({ minLength: 1, maxLength: 200 })
      .map((bytes) =>
        sentAs(`the bytes ${Buffer.from(bytes).toString('hex')}`, () => bytes, false),
      ),
    fc
      .tuple(
        fc.constantFrom('sv.default.who', 'sv.default.link', 'sv.default.s.echo'),
        fc.jsonValue(),
      )
      .map(([pattern, data]) =>
        text(question(pattern, data), `${JSON.stringify(data)} to ${pattern}`),
      ),
    fc
      .oneof(
        fc.string(),
        fc.string({ unit: 'binary' }),
        fc.constant('é'.repeat(44)),
        fc.constant(hmacOf('wrong', 'link') ?? ''),
      )
      .map((proof) =>
        text(
          question('sv.default.who', { nonce: 'n' }) +
            question('sv.default.link', { address: 'stranger', proof }),
          `the proof ${JSON.stringify(proof)}`,
        ),
      ),
    fc
      .nat({ max: 100 })
      .map((body) => sentAs('a packet before it is a link', () => packet(body), true)),
    fc
      .integer({ min: 2 ** 20, max: 2 ** 32 - 1 })
      .map((body) => sentAs(`a packet of ${body} bytes`, () => packet(body), true, true)),
    fc
      .uint8Array({ maxLength: 100 })
      .map((body) =>
        sentAs(
          `a packet that is not signed, ${body.length} bytes`,
          () => Buffer.concat([packet(body.length + 8), body]),
          false,
          true,
        ),
      ),
  );
}

function call(servings: ServingService, value: unknown): Attack {
  return {
    async send() {
      const came = await servings.batchedRun('echo', { value });
      return JSON.stringify(came) === JSON.stringify({ value })
        ? { word: 'right' }
        : { word: 'wrong', fault: 'came back as another value' };
    },
    toString: () => `a call with ${JSON.stringify(value)}`,
  };
}
