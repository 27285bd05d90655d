import type { INestApplication } from '@nestjs/common';
import type { Arbitrary } from 'fast-check';
import * as fc from 'fast-check';
import { defineServing, ServingModule } from 'nestjs-serving';
import { ServingBoardModule } from 'nestjs-serving/board';
import type { Attack, Entry, Outcome } from './entry.js';
import { jsonText, names, noise } from './hostile-json.js';
import { listening, type Platform } from './listening.js';

const echo = (rows: unknown): unknown => rows;
const pass = { canActivate: () => true };

/** An application whose board everybody may use. */
export function openBoard(platform: Platform): Promise<INestApplication> {
  const module = {
    module: class {},
    imports: [
      ServingModule.forRoot({
        servings: [defineServing({ name: 'echo', model: { useFactory: () => echo } })],
      }),
      ServingBoardModule.forRoot({ guards: [], changes: { guards: [pass] } }),
    ],
  };
  return listening(platform, module);
}

interface BoardRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string;
}

const value = fc.oneof(
  fc.constantFrom(0, -1, 0.5, 33, 2 ** 21, 1e300),
  names.map((name) => name),
  fc.constant(null),
);
const change = fc
  .dictionary(fc.oneof(fc.constantFrom('key', 'value', 'version', '__proto__'), names), value, {
    maxKeys: 3,
  })
  .chain((more) =>
    fc
      .record({
        serving: fc.oneof({ arbitrary: fc.constant('echo'), weight: 4 }, value),
        change: fc.oneof(
          fc.constantFrom('batchSize', 'batchTimeout', 'resume', 'reload', 'promote', 'rollback'),
          value,
        ),
      })
      .map((given) => JSON.stringify({ ...more, ...given })),
  );

const posts: Arbitrary<BoardRequest> = fc
  .record({
    body: fc.oneof({ arbitrary: change, weight: 3 }, jsonText),
    type: fc.constantFrom('application/json', 'application/json', 'text/plain'),
    header: fc.constantFrom<Record<string, string>>(
      { 'x-serving-board': '1' },
      { 'x-serving-board': '' },
      {},
    ),
    spoil: fc.option(noise, { freq: 5 }),
  })
  .map(({ body, type, header, spoil }) => ({
    method: 'POST',
    path: '/servings/changes',
    headers: { 'content-type': type, ...header },
    body: spoil === null ? body : body.replace(/[,:[{]/, spoil),
  }));

const part = names.map((name) => encodeURIComponent(Buffer.from(name).toString()));
const gets: Arbitrary<BoardRequest> = fc
  .oneof(
    part.map((name) => `/servings/${name}`),
    fc
      .tuple(part, part, part)
      .map(([a, b, c]) => `/servings/api?serving=${a}&since=${b}&batch=${c}`),
    fc.tuple(part, part).map(([a, b]) => `/servings/api?serving[${a}]=echo&${b}=1`),
    fc.constantFrom(
      '/servings/api?serving=echo&since=-1&batch=-1',
      '/servings/%zz',
      '/servings/..%2f..%2fpackage.json',
      '/servings//',
      '/servings/changes',
    ),
  )
  .map((path) => ({ method: 'GET', path, headers: { 'if-none-match': 'W/"a", "b' } }));

const list = { method: 'GET', path: '/servings/api?serving=echo&since=-1', headers: {} };

/** The routes of the board, with changes allowed. */
export function boardOverHttp(name: string, url: string): Entry {
  const attack = (
    request: BoardRequest,
    check: (status: number, text: string) => Outcome,
  ): Attack => ({
    async send() {
      const { method, path, headers, body } = request;
      const init = { method, headers, ...(body !== undefined && { body }) };
      const response = await fetch(url + path, init);
      return check(response.status, await response.text());
    },
    toString: () => JSON.stringify(request),
  });
  return {
    name,
    hostile: fc.oneof(posts, gets).map((request) => attack(request, refused)),
    valid: fc.constant(attack(list, shown)),
  };
}

function refused(status: number, text: string): Outcome {
  const word = String(status);
  return status < 500 ? { word } : { word, fault: `answered with ${status}: ${text}` };
}

function shown(status: number, text: string): Outcome {
  const isRight = status === 200 && text.includes('"name":"echo"') && text.includes('"detail":{');
  return isRight ? { word: 'shown' } : { word: 'wrong', fault: `answered with ${status}: ${text}` };
}
