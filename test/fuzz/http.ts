import * as fc from 'fast-check';
import type { Arbitrary } from 'fast-check';
import { images, pixelsIn, sameProbabilities } from './digits.js';
import type { Attack, Entry, Outcome } from './entry.js';
import { fingerprint } from './fingerprint.js';
import { jsonText, names, noise } from './hostile-json.js';
import { ERROR_HEADER } from './site.js';

interface Request {
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

const JSON_TYPE = { 'content-type': 'application/json' };

/** What a body may be said to be. */
const headers: Arbitrary<Record<string, string>> = fc.oneof(
  { arbitrary: fc.constant(JSON_TYPE), weight: 20 },
  fc.constantFrom(
    { 'content-type': 'text/plain' },
    { 'content-type': 'application/x-www-form-urlencoded' },
    { 'content-type': 'application/json; charset=utf-16' },
    { 'content-type': 'application/json; charset=bogus' },
    { 'content-type': '' },
    { 'content-type': 'nothing at all' },
    { ...JSON_TYPE, 'content-encoding': 'gzip' },
    { ...JSON_TYPE, 'content-encoding': 'bogus' },
  ),
);

/**
 * The body that clients send in earnest, with something hostile in it or in its place, or cut off
 * or spoilt somewhere.
 */
function bodies(field: string, valid: string): Arbitrary<string> {
  const hostile = fc.oneof(
    jsonText,
    jsonText.map((text) => `{${JSON.stringify(field)}:${text}}`),
    fc
      .tuple(names, jsonText)
      .map(([name, text]) => `{${JSON.stringify(name)}:${text},${valid.slice(1)}`),
  );
  const cut = fc
    .tuple(fc.oneof(hostile, fc.constant(valid)), fc.double({ min: 0, max: 1, noNaN: true }))
    .map(([text, at]) => text.slice(0, Math.floor(at * text.length)));
  const spoilt = fc
    .tuple(fc.constant(valid), fc.double({ min: 0, max: 1, noNaN: true }), noise)
    .map(
      ([text, at, spoiling]) =>
        `${text.slice(0, Math.floor(at * text.length))}${spoiling}${text.slice(Math.floor(at * text.length) + 1)}`,
    );
  return fc.oneof({ arbitrary: hostile, weight: 4 }, cut, spoilt);
}

/** What the answer to a request must be, if it is one. */
type Expected = (body: unknown, request: Request) => boolean;

function attack(url: string, request: Request, expected: Expected, mustSucceed: boolean): Attack {
  return {
    async send() {
      const { path, headers: sent, body } = request;
      const response = await fetch(`${url}${path}`, { method: 'POST', headers: sent, body });
      return judge(
        response.status,
        response.headers.get(ERROR_HEADER),
        await response.text(),
        request,
        expected,
        mustSucceed,
      );
    },
    toString: () => {
      const { path, headers: sent, body } = request;
      return `POST ${path} ${JSON.stringify(sent)} ${body.length > 300 ? `${body.slice(0, 300)}... of ${body.length} characters` : body}`;
    },
  };
}

/**
 * Right, or refused by an error that is meant for the client; of the message that much must be
 * readable.
 */
function judge(
  status: number,
  error: string | null,
  text: string,
  request: Request,
  expected: Expected,
  mustSucceed: boolean,
): Outcome {
  if (status === 201) {
    return expected(JSON.parse(text), request)
      ? { word: 'right' }
      : { word: 'wrong', fault: `answered wrongly: ${text.slice(0, 300)}` };
  }
  const [type = 'no error', code, own] = error?.split(' ') ?? [];
  const word = `${status} ${code === undefined || code === '-' ? type : code}`;
  if (mustSucceed) {
    return { word, fault: `must be answered, and failed: ${word} ${text}` };
  }
  if (status >= 500 || status < 400 || Number(own) !== status || text.length > 2000) {
    return { word, fault: `failed badly: ${status}, ${error}, ${text.slice(0, 2000)}` };
  }
  return { word };
}

/** What the server has made of the body, where it was said to be JSON. */
function parsed({ body, headers: sent }: Request): { readonly value: unknown } | undefined {
  return sent === JSON_TYPE && body !== ''
    ? { value: JSON.parse(Buffer.from(body).toString()) as unknown }
    : undefined;
}

const printed: Expected = (answer, request) => {
  const sent = parsed(request);
  const { print, tensors } = answer as { print?: number; tensors?: boolean };
  return (
    sent === undefined ||
    print === fingerprint(sent.value) ||
    (tensors === true && JSON.stringify(sent.value).includes('"string"'))
  );
};

const wasDrawn: Expected = (answer, request) => {
  const sent = parsed(request);
  return (
    (sent === undefined || pixelsIn(sent.value) !== undefined) &&
    (answer as { probabilities: unknown[] }).probabilities.length === 10
  );
};

const bodyOf = (i: number): string => JSON.stringify({ pixels: images[i] });

/**
 * JSON over HTTP to a controller that calls a serving of a model: with pixels that `preprocess`
 * checks, and with no preprocessing at all.
 */
export async function modelOverHttp(url: string): Promise<Entry> {
  // One after the other, each alone.
  const alone: number[][] = [];
  for (const i of images.keys()) {
    const response = await fetch(`${url}/drawn`, {
      method: 'POST',
      headers: JSON_TYPE,
      body: bodyOf(i),
    });
    alone.push(((await response.json()) as { probabilities: number[] }).probabilities);
  }
  const small = `{"pixels":[${Array(784).fill(0).join()}]}`;
  const path = fc.constantFrom('/drawn', '/digits');
  return {
    name: 'HTTP JSON, model',
    hostile: fc
      .record({ path, headers, body: bodies('pixels', small) })
      .map((request) => attack(url, request, wasDrawn, false)),
    valid: fc.nat(images.length - 1).map((i) => {
      const same: Expected = (answer) =>
        sameProbabilities((answer as { probabilities: number[] }).probabilities, alone[i]!);
      return attack(url, { path: '/drawn', headers: JSON_TYPE, body: bodyOf(i) }, same, true);
    }),
  };
}

/** JSON over HTTP to a controller that calls a serving of a function with the body as it is. */
export function functionOverHttp(url: string): Entry {
  return {
    name: 'HTTP JSON, function',
    hostile: fc
      .record({ path: fc.constant('/prints'), headers, body: bodies('value', '{"value":1}') })
      .map((request) => attack(url, request, printed, false)),
    valid: fc
      .nat()
      .map((n) =>
        attack(url, { path: '/prints', headers: JSON_TYPE, body: `{"n":${n}}` }, printed, true),
      ),
  };
}

/** HTTP to `@Batched()` methods: with parameters of all kinds, and with the name of a serving. */
export function batchedOverHttp(url: string): Entry {
  const segment = fc
    .oneof(names, fc.constant('%zz'), fc.constant('%c3'))
    .map((name) => (name.startsWith('%') ? name : encoded(name)));
  const query = fc
    .array(fc.tuple(names, names), { maxLength: 3 })
    .map((pairs) => pairs.map((pair) => pair.map((part) => encoded(part)).join('=')).join('&'));
  const path = fc.oneof(
    fc
      .tuple(segment, query)
      .map(([name, pairs]) => `/methods/${name === '' || name === '.' ? 'none' : name}?${pairs}`),
    fc.constant('/named'),
  );
  return {
    name: 'HTTP, @Batched',
    hostile: fc
      .record({ path, headers, body: bodies('value', '{"value":1}') })
      .map((request) => attack(url, request, printed, false)),
    valid: fc.nat().map((n) => {
      const own: Expected = (answer, request) =>
        printed(answer, request) && (answer as { name: string }).name === `n${n}`;
      return attack(
        url,
        { path: `/methods/n${n}`, headers: JSON_TYPE, body: `{"n":${n}}` },
        own,
        true,
      );
    }),
  };
}

/** Half of a character has no encoding. */
function encoded(text: string): string {
  return encodeURIComponent(Buffer.from(text).toString());
}
