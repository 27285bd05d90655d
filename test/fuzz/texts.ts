import type { INestApplication } from '@nestjs/common';
import * as fc from 'fast-check';
import { ServingModule, ServingService } from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import {
  rerank,
  textClassification,
  textEmbedding,
  textGeneration,
  tokenClassification,
} from 'nestjs-serving/tasks';
import type { Attack, Entry, Outcome } from './entry.js';
import { listening, type Platform } from './listening.js';

const tiny = (name: string): { readonly from: string } => ({ from: `test/fixtures/tasks/${name}` });

const embedder = textEmbedding({ name: 'embedder', model: tiny('embedder'), tooLong: 'cut' });
const strict = textEmbedding({ name: 'strict', model: tiny('embedder') });
const reranker = rerank({ name: 'reranker', model: tiny('reranker'), tooLong: 'cut' });
const classifier = textClassification({ name: 'classifier', model: tiny('classifier') });
const tagger = tokenClassification({ name: 'tagger', model: tiny('tagger'), tooLong: 'cut' });
const writer = textGeneration({
  name: 'writer',
  model: { ...tiny('generator'), file: 'onnx/model_gqa.onnx' },
});

/** An application with a serving for each task of texts. */
export function openTexts(platform: Platform): Promise<INestApplication> {
  return listening(platform, {
    module: class {},
    imports: [
      ServingModule.forRoot({ servings: [embedder, strict, reranker, classifier, tagger, writer] }),
      OpenAIModule.forRoot({ models: { embedder, strict, reranker, writer }, guards: [] }),
    ],
  });
}

/** Parts whose repetition has been expensive somewhere: for a regular expression, Unicode or a tokenizer. */
const parts = fc.constantFrom(
  'the rule of the rows ',
  'x',
  'xy-',
  ' ',
  '\n',
  'a\u0301\u0323',
  '\u0323\u0301',
  '\u0e33',
  '\ud800',
  '\u{1f468}\u200d\u{1f469}\u200d\u{1f467}',
  '漢',
  'ﷺ',
  '［ＭＡＳＫ］',
  '[MASK]',
  '[PAD] ',
  '<s>',
  '</s>',
  '<|im_end|>',
  '0.1',
  "'s ",
);

const heavyText = fc
  .tuple(
    fc.array(parts, { minLength: 1, maxLength: 3 }),
    fc.constantFrom(1, 30, 1000, 20_000, 100_000, 300_000),
  )
  .map(([some, length]) => {
    const part = some.join('');
    return part.repeat(Math.ceil(length / part.length)).slice(0, length);
  });

const shortText = fc.constantFrom('', ' ', 'a', 'the rows', '<s>', '\n', '\u0301');
const anyText = fc.oneof({ arbitrary: heavyText, weight: 3 }, shortText);
/** Many of them are short, so that a body keeps below a megabyte. */
const manyTexts = fc
  .tuple(fc.array(anyText, { maxLength: 3 }), shortText, fc.constantFrom(0, 20, 2000, 30_000))
  .map(([some, text, count]) => [...some, ...Array.from({ length: count }, () => text)]);

const messages = fc
  .array(fc.tuple(fc.constantFrom('user', 'assistant', 'system', 'developer', 'odd'), anyText), {
    maxLength: 4,
  })
  .chain((some) =>
    fc.constantFrom(1, 100, 5000).map((times) =>
      Array.from({ length: times }, () => some)
        .flat()
        .map(([role, content]) => ({
          role,
          content: times === 1 ? content : content.slice(0, 20),
        })),
    ),
  );

/** The path and the body of a request. */
const requests = fc.oneof(
  fc
    .tuple(fc.constantFrom('embedder', 'strict'), fc.oneof(anyText, manyTexts))
    .map(([model, input]) => ['/v1/embeddings', { model, input }] as const),
  fc
    .tuple(anyText, manyTexts)
    .map(([query, documents]) => ['/v2/rerank', { model: 'reranker', query, documents }] as const),
  fc
    .tuple(messages, fc.oneof(anyText, manyTexts), fc.boolean())
    .map(
      ([given, stop, stream]) =>
        [
          '/v1/chat/completions',
          { model: 'writer', messages: given, stop, stream, max_tokens: 4 },
        ] as const,
    ),
);

/** Texts for each task: through OpenAI's routes, and by calls of the servings that have none. */
export async function heavyTexts(name: string, app: INestApplication): Promise<Entry> {
  const url = await app.getUrl();
  const servings = app.get(ServingService);
  const chat = {
    model: 'writer',
    messages: [{ role: 'user', content: 'the rows' }],
    temperature: 0,
    max_tokens: 4,
  };
  const valid = [
    ['/v1/embeddings', { model: 'embedder', input: 'the rule of the rows' }],
    ['/v2/rerank', { model: 'reranker', query: 'rows', documents: ['a rule', 'the queue'] }],
    ['/v1/chat/completions', chat],
  ] as const;
  const known: string[] = [];
  for (const [path, body] of valid) {
    const response = await post(url + path, Buffer.from(JSON.stringify(body)));
    known.push(essence(await response.text()));
  }
  return {
    name,
    hostile: fc.oneof(
      { arbitrary: requests.map(([path, body]) => request(url + path, body)), weight: 4 },
      fc
        .tuple(fc.constantFrom('classifier', 'tagger'), anyText)
        .map(([serving, text]) => direct(servings, serving, text)),
    ),
    valid: fc
      .nat({ max: valid.length - 1 })
      .map((i) => request(url + valid[i]![0], valid[i]![1], known[i])),
  };
}

const post = (url: string, body: Buffer): Promise<Response> =>
  fetch(url, { method: 'POST', headers: { 'content-type': 'application/json' }, body });

function request(url: string, object: object, known?: string): Attack {
  // Written before the clock runs, which is to show the server's work.
  const json = JSON.stringify(object);
  const body = Buffer.from(json);
  return {
    async send() {
      const response = await post(url, body);
      return judge(response.status, await response.text(), known);
    },
    toString: () => `POST ${url} ${shortened(json)}`,
  };
}

function direct(servings: ServingService, serving: string, text: string): Attack {
  return {
    async send() {
      const code = await servings.batchedRun(serving, text).then(
        () => 'answered',
        (error: unknown) => String((error as { readonly code?: unknown }).code),
      );
      return ['answered', 'SERVING_INVALID_INPUT', 'SERVING_TOO_LARGE'].includes(code)
        ? { word: code }
        : { word: code, fault: `failed with ${code}` };
    },
    toString: () => `batchedRun('${serving}', ${shortened(JSON.stringify(text))})`,
  };
}

/** An answer, or a short refusal; calls with a known answer have this. */
function judge(status: number, text: string, known: string | undefined): Outcome {
  const word = String(status);
  if (known !== undefined) {
    const isKnown = status === 200 && essence(text) === known;
    return isKnown
      ? { word }
      : { word, fault: `${status} ${shortened(text)} in place of ${known}` };
  }
  if (status !== 200 && (status < 400 || status >= 500 || text.length > 2000)) {
    return { word, fault: `answered with ${shortened(text)}` };
  }
  return { word };
}

/** The part of an answer that is the same each time; numbers may differ a little between batches. */
function essence(text: string): string {
  const { data, results, choices } = JSON.parse(text) as Record<string, unknown>;
  return JSON.stringify(data ?? results ?? choices, (_, value: unknown) =>
    typeof value === 'number' ? value.toFixed(3) : value,
  );
}

const shortened = (text: string): string =>
  text.length > 300 ? `${text.slice(0, 300)}... of ${text.length} characters` : text;
