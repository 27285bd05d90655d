import { randomUUID } from 'node:crypto';
import { type CallOptions, type Serving } from '../../index.js';
import { BIG_ENDIAN } from '../../encoding/element-types.js';
import { byOneVersion, callEach, ListInParts } from '../../encoding/turns.js';
import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { fieldIn, isCount, isFlag, isString, isText } from './fields.js';
import { given } from './generation.js';
import { type Body, type FieldOf, naming, RequestError } from './http.js';
import { checkFields, FIELDS } from './known-fields.js';
import type { OfferedModels } from './models.js';

/** Reply of a 'text-embedding' serving. */
export interface Embedding {
  readonly vector: Float32Array;
  readonly tokens: number;
}

/** Entry of a 'rerank' serving's reply. */
export interface RankedDocument {
  readonly index: number;
  readonly score: number;
  /** Missing in a serving that isn't a `rerank`. */
  readonly tokens?: number;
}

/**
 * Answers https://platform.openai.com/docs/api-reference/embeddings/create, with other APIs'
 * `input_type`: the name of the serving's prompt for these texts.
 */
export async function createEmbeddings(
  models: OfferedModels,
  body: Body,
  options: CallOptions,
): Promise<object> {
  const { id, serving, inputs } = models.find(body['model'], 'text-embedding');
  checkFields(body, FIELDS.embeddings);
  const texts = inputsIn(body['input'], inputs);
  const encoding = fieldIn(body, 'encoding_format', "'float' or 'base64'", isEncoding) ?? 'float';
  const dimensions = fieldIn(body, 'dimensions', 'a whole number from 1 on', isCount);
  const prompt = fieldIn(body, 'input_type', "the name of one of the model's prompts", isString);
  const fieldOf = fieldsOfTexts(body, 'input', 'input_type');
  const embeddings = await embedAll(serving, texts, { prompt, dimensions }, options, fieldOf);
  const tokens = tokensOf(embeddings);
  const write = encoding === 'base64' ? base64Of : (vector: Float32Array) => Array.from(vector);
  const entries = function* (): Generator<readonly object[]> {
    for (const [index, { vector }] of embeddings.entries()) {
      yield [{ object: 'embedding', index, embedding: write(vector) }];
    }
  };
  return {
    object: 'list',
    data: new ListInParts(entries()),
    model: id,
    usage: { prompt_tokens: tokens, total_tokens: tokens },
  };
}

/**
 * Finds the field that a text's refusal is about; a serving refuses a request's options with each
 * text.
 *
 * @param texts name of the field with the texts
 * @param prompt name of the field that chooses a prompt
 */
export function fieldsOfTexts(
  body: Body,
  texts: string,
  prompt = 'prompt',
  dimensions = 'dimensions',
): (i: number, message: string) => string {
  return (i, message) => {
    if (/ asks for \S+ dimensions$/.test(message)) {
      return dimensions;
    }
    const isOne = isString(body[texts]);
    return / has no prompt /.test(message) ? prompt : isOne ? texts : `${texts}[${i}]`;
  };
}

/** @param fieldOf finds the field that a text's refusal is about */
export async function embedAll(
  serving: Serving,
  texts: readonly string[],
  asked: {
    readonly prompt?: string | readonly string[] | undefined;
    readonly dimensions?: number | undefined;
  },
  options: CallOptions,
  fieldOf: (i: number, message: string) => string,
): Promise<readonly Embedding[]> {
  const calls = texts.map((text) => ({ text, ...given(asked) }));
  return (await callAll(serving, calls, options, fieldOf)) as readonly Embedding[];
}

/**
 * Each input is its own call, so inputs of several requests share batches; one version answers all.
 *
 * @param fieldOf finds the field that an input's refusal is about
 */
export function callAll(
  serving: Serving,
  inputs: readonly unknown[],
  options: CallOptions,
  fieldOf: (i: number, ...refusal: Parameters<FieldOf>) => ReturnType<FieldOf>,
): Promise<readonly unknown[]> {
  return byOneVersion(serving.local, inputs[0], options, (routed) =>
    callEach(inputs, options.signal, (input, signal, i) =>
      naming(
        (...refusal) => fieldOf(i, ...refusal),
        () => serving.batchedRun(input, { ...routed, signal }),
      ),
    ),
  );
}

/**
 * Answers https://docs.cohere.com/v2/reference/rerank and
 * https://docs.cohere.com/v1/reference/rerank, which clients of Jina, vLLM and LiteLLM also call.
 */
export async function rankDocuments(
  models: OfferedModels,
  body: Body,
  options: CallOptions,
  version: string,
): Promise<object> {
  const { id, serving, inputs } = models.find(body['model'], 'rerank');
  checkFields(body, FIELDS.rerank);
  const query = queryIn(body);
  const documents = listIn('documents', body['documents'], inputs).map(documentOf);
  const top = fieldIn(body, 'top_n', 'a whole number from 1 on', isCount);
  const returns = fieldIn(body, 'return_documents', 'true or false', isFlag) ?? false;
  // All of them, since each one's tokens count.
  const input = { query, documents };
  const ranked = (await naming(
    (message) => /^(?:query|documents\[\d+\])(?=: )/.exec(message)?.[0],
    () => serving.batchedRun(input, options),
  )) as readonly RankedDocument[];
  const usage = ranked.every(isCounted) ? tokensOf(ranked) : undefined;
  return {
    id: randomUUID(),
    model: id,
    results: ranked.slice(0, top).map(({ index, score }) => ({
      index,
      relevance_score: score,
      ...(returns && { document: { text: documents[index] } }),
    })),
    meta: { api_version: { version }, ...(usage && { tokens: { input_tokens: usage } }) },
    ...(usage && { usage: { prompt_tokens: usage, total_tokens: usage } }),
  };
}

function isCounted(ranked: RankedDocument): ranked is Required<RankedDocument> {
  return ranked.tokens !== undefined;
}

export function tokensOf(entries: readonly Pick<Embedding, 'tokens'>[]): number {
  return entries.reduce((sum, { tokens }) => sum + tokens, 0);
}

/** Query of a request to rank documents. */
export function queryIn(body: Body): string {
  const query = fieldIn(body, 'query', 'a text that is not empty', isText);
  if (query === undefined) {
    throw new RequestError('"query" is missing; give a text', 'query');
  }
  return query;
}

/** Little-endian float32, as OpenAI's clients read it. */
export function base64Of(vector: Float32Array): string {
  const bytes = Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength);
  return (BIG_ENDIAN ? Buffer.from(bytes).swap32() : bytes).toString('base64');
}

const isEncoding = (value: unknown): value is 'float' | 'base64' =>
  value === 'float' || value === 'base64';

export function listIn(name: string, value: unknown, most: number): readonly unknown[] {
  if (!Array.isArray(value) || value.length === 0) {
    throw new RequestError(
      `"${name}" is ${formatValue(value)}; give a list of at least one text`,
      name,
    );
  }
  if (value.length > most) {
    throw new RequestError(
      `"${name}" has ${value.length} entries, and this model takes at most ${most} in a request`,
      name,
    );
  }
  return value;
}

/** Texts of a field that has one or a list. */
export function inputsIn(input: unknown, most: number, field = 'input'): readonly string[] {
  const list = isString(input) ? [input] : listIn(field, input, most);
  return list.map((text, i) => {
    if (isText(text)) {
      return text;
    }
    const param = isString(input) ? field : `${field}[${i}]`;
    throw new RequestError(
      typeof text === 'number' || Array.isArray(text)
        ? `"${param}" is a token id or a list of them, of another model's tokenizer than this one's; ` +
            'send texts (in LangChain for Python: check_embedding_ctx_length=False)'
        : `"${param}" is ${formatValue(text)}; give a text that is not empty`,
      param,
    );
  });
}

function documentOf(document: unknown, index: number): string {
  const text = isRecord(document) ? document['text'] : document;
  if (!isText(text)) {
    throw new RequestError(
      `"documents[${index}]" is ${formatValue(document)}; give a text that is not empty, or { text }`,
      `documents[${index}]`,
    );
  }
  return text;
}
