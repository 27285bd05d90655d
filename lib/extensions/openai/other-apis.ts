import type { CallOptions } from '../../index.js';
import { ListInParts } from '../../encoding/turns.js';
import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import {
  base64Of,
  callAll,
  embedAll,
  type Embedding,
  fieldsOfTexts,
  inputsIn,
  listIn,
  queryIn,
  type RankedDocument,
  tokensOf,
} from './calls.js';
import { fieldIn, isCount, isFlag, isString, isText } from './fields.js';
import { newId } from './generation.js';
import { type Body, naming, RequestError } from './http.js';
import { checkFields, FIELDS } from './known-fields.js';
import type { OfferedModel, OfferedModels } from './models.js';

/** Model that the address of a request names, if any. */
type Named = string | undefined;

/** Answers `/embed` of https://huggingface.github.io/text-embeddings-inference: vectors alone. */
export async function embedAsTei(
  models: OfferedModels,
  body: Body,
  options: CallOptions,
  named: Named,
): Promise<object> {
  const { serving, inputs: most } = models.only('text-embedding', named);
  checkFields(body, FIELDS.teiEmbed);
  const texts = inputsIn(body['inputs'], most, 'inputs');
  const asked = {
    prompt: fieldIn(body, 'prompt_name', "the name of one of the model's prompts", isString),
    dimensions: fieldIn(body, 'dimensions', 'a whole number from 1 on', isCount),
  };
  return vectorsOf(
    await embedAll(serving, texts, asked, options, fieldsOfTexts(body, 'inputs', 'prompt_name')),
    ofLengthOne,
  );
}

/** Answers `/rerank` of Text Embeddings Inference: places and scores, the best first. */
export async function rankAsTei(
  models: OfferedModels,
  body: Body,
  options: CallOptions,
  named: Named,
): Promise<object> {
  const { serving, inputs: most, hasRawScores } = models.only('rerank', named);
  checkFields(body, { ...FIELDS.teiRerank, ...(hasRawScores && { raw_scores: 'followed' }) });
  const query = queryIn(body);
  listIn('texts', body['texts'], most);
  const texts = inputsIn(body['texts'], most, 'texts');
  const returns = fieldIn(body, 'return_text', 'true or false', isFlag) ?? false;
  const isRaw = fieldIn(body, 'raw_scores', 'true or false', isFlag) ?? false;
  const ranked = (await naming(
    (message) =>
      /^(?:query|documents\[\d+\])(?=: )/.exec(message)?.[0].replace('documents', 'texts'),
    () => serving.batchedRun({ query, documents: texts }, options),
  )) as readonly RankedDocument[];
  return ranked.map(({ index, score }) => ({
    index,
    score: hasRawScores && !isRaw ? 1 / (1 + Math.exp(-score)) : score,
    ...(returns && { text: texts[index] }),
  }));
}

/**
 * Answers `/predict` of Text Embeddings Inference: labels and scores of a text, of a pair, or of a
 * list with a list for each.
 */
export async function predictAsTei(
  models: OfferedModels,
  body: Body,
  options: CallOptions,
  named: Named,
): Promise<object> {
  const { serving, inputs: most } = models.only('text-classification', named);
  checkFields(body, FIELDS.teiPredict);
  const { inputs } = body;
  const isOne = isString(inputs) || (Array.isArray(inputs) && inputs.every(isString));
  const all = isOne ? [inputs] : listIn('inputs', inputs, most);
  const calls = all.map((each: unknown, i) => {
    const [text, pair, ...others]: readonly unknown[] = [each].flat();
    if (!isText(text) || !(pair === undefined || isText(pair)) || others.length > 0) {
      const field = isOne ? 'inputs' : `inputs[${i}]`;
      throw new RequestError(
        `"${field}" is ${formatValue(each)}; give a text, or a list of two for a pair`,
        field,
      );
    }
    return { text, ...(pair !== undefined && { pair }) };
  });
  const labelled = await callAll(serving, calls, options, (i) =>
    isOne ? 'inputs' : `inputs[${i}]`,
  );
  return isOne ? (labelled[0] as object) : labelled;
}

/** Reply of a 'text-classification' serving. */
interface Label {
  readonly label: string;
  readonly score: number;
}

/**
 * Answers vLLM's https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#classification-api:
 * the best label, and the probabilities in the model's order.
 */
export async function classifyAsVllm(
  models: OfferedModels,
  body: Body,
  options: CallOptions,
): Promise<object> {
  const { id, serving, inputs: most } = models.find(body['model'], 'text-classification');
  checkFields(body, FIELDS.vllmClassify);
  const texts = inputsIn(body['input'], most);
  const calls = texts.map((text) => ({ text, order: 'model' }));
  const replies = (await callAll(serving, calls, options, (i) =>
    isString(body['input']) ? 'input' : `input[${i}]`,
  )) as readonly (readonly Label[])[];
  return {
    id: newId('classify'),
    object: 'list',
    created: Math.floor(Date.now() / 1000),
    model: id,
    data: replies.map((labels, index) => ({
      index,
      label: labels.reduce((best, each) => (each.score > best.score ? each : best)).label,
      probs: labels.map(({ score }) => score),
      num_classes: labels.length,
    })),
  };
}

/** Prompts by Cohere's input types, by the names that models have. */
const PROMPTS: Readonly<Record<string, readonly string[]>> = {
  search_query: ['search_query', 'query'],
  search_document: ['search_document', 'document', 'passage'],
  classification: ['classification'],
  clustering: ['clustering'],
};

/** Answers https://docs.cohere.com/v2/reference/embed for texts. */
export async function embedAsCohere(
  models: OfferedModels,
  body: Body,
  options: CallOptions,
): Promise<object> {
  const { serving, inputs: most } = models.find(body['model'], 'text-embedding');
  checkFields(body, FIELDS.cohereEmbed);
  listIn('texts', body['texts'], most);
  const texts = inputsIn(body['texts'], most, 'texts');
  const type = fieldIn(body, 'input_type', Object.keys(PROMPTS).join(', '), isInputType);
  const types = fieldIn(body, 'embedding_types', 'a list of "float" and "base64"', areTypes) ?? [
    'float',
  ];
  const asked = {
    prompt: type && PROMPTS[type],
    dimensions: fieldIn(body, 'output_dimension', 'a whole number from 1 on', isCount),
  };
  const fieldOf = fieldsOfTexts(body, 'texts', 'input_type', 'output_dimension');
  const embeddings = await embedAll(serving, texts, asked, options, fieldOf);
  const written = types.map((each) => [
    each,
    vectorsOf(embeddings, each === 'base64' ? base64Of : undefined),
  ]);
  return {
    id: newId('embed'),
    response_type: 'embeddings_by_type',
    embeddings: Object.fromEntries(written) as object,
    texts,
    meta: {
      api_version: { version: '2' },
      billed_units: { input_tokens: tokensOf(embeddings) },
    },
  };
}

/** Answers https://docs.ollama.com/api/embed. */
export async function embedAsOllama(
  models: OfferedModels,
  body: Body,
  options: CallOptions,
): Promise<object> {
  const begin = process.hrtime.bigint();
  const { id, serving, inputs: most }: OfferedModel = models.find(body['model'], 'text-embedding');
  checkFields(body, FIELDS.ollamaEmbed);
  const texts = inputsIn(body['input'], most);
  const dimensions = fieldIn(body, 'dimensions', 'a whole number from 1 on', isCount);
  const embeddings = await embedAll(
    serving,
    texts,
    { dimensions },
    options,
    fieldsOfTexts(body, 'input'),
  );
  return {
    model: id,
    embeddings: vectorsOf(embeddings, ofLengthOne),
    total_duration: Number(process.hrtime.bigint() - begin),
    load_duration: 0,
    prompt_eval_count: tokensOf(embeddings),
  };
}

const isInputType = (value: unknown): value is string =>
  isString(value) && Object.hasOwn(PROMPTS, value);
const areTypes = (value: unknown): value is readonly string[] =>
  Array.isArray(value) &&
  value.length > 0 &&
  value.every((each) => each === 'float' || each === 'base64');

function vectorsOf(
  embeddings: readonly Embedding[],
  write: (vector: Float32Array) => unknown = (vector) => Array.from(vector),
): ListInParts {
  const entries = function* (): Generator<readonly unknown[]> {
    for (const { vector } of embeddings) {
      yield [write(vector)];
    }
  };
  return new ListInParts(entries());
}

/** Normalizes like these servers, also for a serving that does not. */
function ofLengthOne(vector: Float32Array): readonly number[] {
  const numbers = Array.from(vector);
  const length = Math.sqrt(numbers.reduce((sum, number) => sum + number ** 2, 0));
  const isNormal = length === 0 || Math.abs(length - 1) < 1e-5;
  return isNormal ? numbers : numbers.map((number) => Math.fround(number / length));
}

/** Model that the query of a request's address names, if any. */
export function modelIn(query: unknown): Named {
  const named = isRecord(query) ? query['model'] : undefined;
  return named === undefined || isString(named) ? named : formatValue(named);
}
