import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { availableParallelism, cpus } from 'node:os';
import { fileURLToPath } from 'node:url';
import { columns } from '../harness/report.js';

/**
 * The longest stretch in which a request held the event loop of the server, by route, for the largest
 * requests that it accepts. The client is another process. A request of the same route that costs
 * little shows what the route and the machine take anyway.
 */

interface Heavy {
  readonly what: string;
  readonly path: string;
  readonly little: () => Blob | FormData;
  readonly body: () => Blob | FormData;
  readonly headers?: Readonly<Record<string, string>>;
}

const json = (body: object) => (): Blob | FormData =>
  new Blob([JSON.stringify(body)], { type: 'application/json' });

const words = 'A provider with a batched method is a data loader without a cache. ';
const textOf = (unit: string, characters: number): string =>
  unit.repeat(Math.ceil(characters / unit.length)).slice(0, characters);
const embeddings = (input: string | readonly string[]) => json({ model: 'embedder', input });
const documents = (count: number, characters: number) =>
  json({
    model: 'ranker',
    query: 'a query',
    documents: Array.from({ length: count }, (_, i) => textOf(`${i} ${words}`, characters)),
  });
const chat = (count: number, characters: number) =>
  json({
    model: 'writer',
    max_tokens: 1,
    messages: Array.from({ length: count }, () => ({
      role: 'user',
      content: textOf(words, characters),
    })),
  });

/** 16-bit samples of silence. */
function recording(seconds: number): Blob | FormData {
  const bytes = Buffer.alloc(44 + seconds * 32_000);
  bytes.write('RIFF', 0);
  bytes.writeUInt32LE(bytes.length - 8, 4);
  bytes.write('WAVEfmt ', 8);
  bytes.writeUInt32LE(16, 16);
  [1, 1].forEach((value, i) => bytes.writeUInt16LE(value, 20 + 2 * i));
  [16_000, 32_000].forEach((value, i) => bytes.writeUInt32LE(value, 24 + 4 * i));
  [2, 16].forEach((value, i) => bytes.writeUInt16LE(value, 32 + 2 * i));
  bytes.write('data', 36);
  bytes.writeUInt32LE(bytes.length - 44, 40);
  const form = new FormData();
  form.set('model', 'ear');
  form.set('file', new Blob([bytes]), 'a.wav');
  return form;
}

const tensor = (elements: number) =>
  json({
    inputs: [
      {
        name: 'input',
        shape: [1, elements],
        datatype: 'FP32',
        data: eighths(elements),
      },
    ],
  });

const HEAD_LENGTH = 512;

/** As binary data, after a head whose end are spaces. */
const bytes = (elements: number) => (): Blob => {
  const binary_data_size = 4 * elements;
  const parameters = { binary_data_size };
  const head = JSON.stringify({
    inputs: [{ name: 'input', shape: [1, elements], datatype: 'FP32', parameters }],
    parameters: { binary_data_output: true },
  });
  return new Blob([head.padEnd(HEAD_LENGTH), Buffer.alloc(binary_data_size)]);
};

const rows = (count: number, value: unknown) => {
  const text = JSON.stringify(value);
  return json({
    inputs: [
      { name: 'input', shape: [count], datatype: 'BYTES', data: Array<string>(count).fill(text) },
    ],
  });
};
const eighths = (count: number): readonly number[] =>
  Array.from({ length: count }, (_, i) => i / 8);

const E = '/v1/embeddings';
const R = '/v1/rerank';
const C = '/v1/chat/completions';
const heavy: readonly Heavy[] = [
  {
    what: 'a text of 262,144 characters: words',
    path: E,
    little: embeddings('a'),
    body: embeddings(textOf(words, 262_144)),
  },
  {
    what: 'a text of 262,144 characters: spaces',
    path: E,
    little: embeddings('a'),
    body: embeddings(textOf(' ', 262_144)),
  },
  {
    what: 'a text of 500 characters: spaces',
    path: E,
    little: embeddings('a'),
    body: embeddings(`a${textOf(' ', 499)}`),
  },
  {
    what: '2,048 texts of 500 characters',
    path: E,
    little: embeddings('a'),
    body: embeddings(Array.from({ length: 2048 }, (_, i) => textOf(`${i} ${words}`, 500))),
  },
  {
    what: '2,048 texts of 7,500 characters (15 MB), for no model',
    path: E,
    little: embeddings('a'),
    body: json({
      model: 'none',
      input: Array.from({ length: 2048 }, (_, i) => textOf(`${i} ${words}`, 7500)),
    }),
  },
  {
    what: '7,500,000 numbers (15 MB)',
    path: E,
    little: embeddings('a'),
    body: json({ model: 'embedder', input: 'a', user: Array<number>(7_500_000).fill(1) }),
  },
  {
    what: '2,048 texts of 5 characters, for 1,024 numbers each',
    path: E,
    little: embeddings('a'),
    body: json({ model: 'wide', input: Array.from({ length: 2048 }, (_, i) => `${i}`) }),
  },
  {
    what: '1,000 documents of 450 characters',
    path: R,
    little: documents(1, 10),
    body: documents(1000, 450),
  },
  {
    what: '50 documents of 20,000 characters',
    path: R,
    little: documents(1, 10),
    body: documents(50, 20_000),
  },
  {
    what: 'a conversation of 1,024 messages, too long after its rendering',
    path: C,
    little: chat(1, 2),
    body: chat(1024, 12),
  },
  {
    what: 'a conversation of 16,000 characters, too long after its rendering',
    path: C,
    little: chat(1, 2),
    body: chat(1, 16_000),
  },
  {
    what: 'a recording of 13 minutes (25 MB)',
    path: '/v1/audio/transcriptions',
    little: () => recording(1),
    body: () => recording(780),
  },
  {
    what: '800,000 numbers as JSON (7.7 MB)',
    path: '/v2/models/mean/infer',
    little: tensor(1),
    body: tensor(800_000),
  },
  {
    what: '800,000 numbers as JSON, and as many in the reply',
    path: '/v2/models/copy/infer',
    little: tensor(1),
    body: tensor(800_000),
  },
  {
    what: '15,700,000 numbers as bytes (63 MB), and as many in the reply',
    path: '/v2/models/copy/infer',
    headers: { 'inference-header-content-length': String(HEAD_LENGTH) },
    little: bytes(1),
    body: bytes(15_700_000),
  },
  {
    what: '24 rows of JSON with 32,000 numbers each (7 MB)',
    path: '/v2/models/count/infer',
    little: rows(1, [1]),
    body: rows(24, eighths(32_000)),
  },
  {
    what: '100 rows of JSON with 4,000 objects each (4 MB)',
    path: '/v2/models/count/infer',
    little: rows(1, [1]),
    body: rows(
      100,
      Array.from({ length: 4000 }, () => ({ a: 1 })),
    ),
  },
  {
    what: '60,000 rows of JSON',
    path: '/v2/models/count/infer',
    little: rows(1, 1),
    body: rows(60_000, 1),
  },
];

const server = fork(fileURLToPath(new URL('./server.js', import.meta.url)));
const { url } = await told<{ url: string }>(server);

async function told<T>(from: ChildProcess): Promise<T> {
  const [message] = (await once(from, 'message')) as [T];
  return message;
}

async function stretchOf({ path, headers }: Heavy, body: Blob | FormData) {
  server.send('begin');
  await told(server);
  const begin = performance.now();
  const { status } = await fetch(url + path, {
    method: 'POST',
    body,
    ...(body instanceof FormData
      ? {}
      : { headers: { 'content-type': 'application/json', connection: 'close', ...headers } }),
  });
  const time = performance.now() - begin;
  server.send('end');
  const { stretch } = await told<{ stretch: number }>(server);
  return { status, stretch, time };
}

const ROUNDS = 5;
const median = (values: readonly number[]): string =>
  values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!.toFixed(1);

const lines: string[][] = [];
for (const each of heavy) {
  const { what, path, little, body } = each;
  const rounds: { status: number; stretch: number; time: number }[] = [];
  const small: number[] = [];
  await stretchOf(each, body());
  for (let round = 0; round < ROUNDS; round++) {
    small.push((await stretchOf(each, little())).stretch);
    rounds.push(await stretchOf(each, body()));
  }
  lines.push([
    path,
    what,
    String(rounds[0]!.status),
    median(rounds.map(({ stretch }) => stretch)),
    median(small),
    median(rounds.map(({ time }) => time)),
  ]);
}
server.send('close');

console.log(
  columns([
    ['route', 'request', 'status', 'longest stretch ms', 'of a small request ms', 'answered in ms'],
    ...lines,
  ]),
);
console.log(`\n${availableParallelism()} x ${cpus()[0]?.model}, Node ${process.version}`);
