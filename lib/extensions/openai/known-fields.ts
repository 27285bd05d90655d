import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import type { Form } from './form.js';
import { type Body, RequestError } from './http.js';

/** True if an unsupported field's value asks for nothing. */
type AsksNothing = (value: unknown) => boolean;

/** Field that we follow, that changes no answer, or that we can't follow. */
type Known = 'followed' | 'ignored' | AsksNothing;

type Fields = Readonly<Record<string, Known>>;

const is =
  (...values: readonly unknown[]): AsksNothing =>
  (value) =>
    values.includes(value);
const isEmpty: AsksNothing = (value) =>
  Array.isArray(value) ? value.length === 0 : isRecord(value) && Object.keys(value).length === 0;
const never: AsksNothing = () => false;
/** Refers to an earlier response. */
const earlier: AsksNothing = () => false;

/** Fields about the request, its caller or its price. */
const ABOUT_THE_REQUEST: Fields = {
  metadata: 'ignored',
  service_tier: 'ignored',
  store: 'ignored',
  user: 'ignored',
  safety_identifier: 'ignored',
};

/** Fields of each request for an answer's text. */
const OF_ANSWERS: Fields = {
  ...ABOUT_THE_REQUEST,
  frequency_penalty: 'followed',
  max_tokens: 'followed',
  min_p: 'followed',
  model: 'followed',
  presence_penalty: 'followed',
  repetition_penalty: 'followed',
  response_format: 'followed',
  seed: 'followed',
  stop: 'followed',
  stop_token_ids: 'followed',
  stream: 'followed',
  stream_options: 'followed',
  temperature: 'followed',
  top_k: 'followed',
  top_p: 'followed',
  best_of: is(1),
  echo: is(false),
  ignore_eos: is(false),
  include_stop_str_in_output: is(false),
  length_penalty: is(1),
  logit_bias: isEmpty,
  min_tokens: is(0),
  n: is(1),
  skip_special_tokens: is(true),
  use_beam_search: is(false),
};

/** Asks to cut long texts at their end, as the serving decides; it refuses them otherwise. */
const CUTS: Fields = { truncate: is(true), truncation_direction: is('Right', 'right') };

const SPEECH: Fields = {
  ...ABOUT_THE_REQUEST,
  file: 'followed',
  language: 'followed',
  model: 'followed',
  response_format: 'followed',
  stream: 'followed',
  chunking_strategy: is('auto'),
  include: never,
  known_speaker_names: never,
  known_speaker_references: never,
  prompt: 'followed',
  temperature: 'followed',
  timestamp_granularities: is('segment', 'word'),
};

/**
 * Fields by kind of request, from clients of OpenAI, Cohere and vLLM. Others are refused, since
 * they may change the answer.
 */
export const FIELDS = {
  chat: {
    ...OF_ANSWERS,
    messages: 'followed',
    logprobs: 'followed',
    max_completion_tokens: 'followed',
    chat_template_kwargs: 'followed',
    parallel_tool_calls: 'followed',
    tool_choice: 'followed',
    tools: 'followed',
    prediction: 'ignored',
    prompt_cache_key: 'ignored',
    prompt_cache_options: 'ignored',
    prompt_cache_retention: 'ignored',
    add_generation_prompt: is(true),
    add_special_tokens: is(false),
    audio: never,
    continue_final_message: is(false),
    function_call: is('none', 'auto'),
    functions: isEmpty,
    moderation: never,
    modalities: (value) => Array.isArray(value) && value.every((each) => each === 'text'),
    reasoning_effort: is('none'),
    top_logprobs: is(0),
    verbosity: is('medium'),
    web_search_options: never,
  },
  streamOptions: { include_usage: 'followed', include_obfuscation: 'ignored' },
  message: {
    content: 'followed',
    refusal: 'followed',
    role: 'followed',
    annotations: 'ignored',
    id: 'ignored',
    name: 'ignored',
    parsed: 'ignored',
    reasoning: 'ignored',
    reasoning_content: 'ignored',
    tool_call_id: 'followed',
    tool_calls: 'followed',
    audio: never,
    function_call: never,
  },
  tool: { function: 'followed', type: 'followed' },
  function: {
    description: 'followed',
    name: 'followed',
    parameters: 'followed',
    // A tool of the responses' API has it here.
    type: 'followed',
    // Arguments always fit the schema.
    strict: 'ignored',
    allowed_callers: never,
    defer_loading: is(false),
    output_schema: never,
  },
  calledFunction: { name: 'followed', type: 'followed' },
  pastCall: { function: 'followed', id: 'followed', type: is('function'), index: 'ignored' },
  pastFunction: {
    arguments: 'followed',
    name: 'followed',
    // OpenAI's clients add it to an answer.
    parsed_arguments: 'ignored',
  },
  anyFormat: { type: 'followed' },
  schemaFormat: { json_schema: 'followed', type: 'followed' },
  format: {
    schema: 'followed',
    type: 'followed',
    description: 'ignored',
    name: 'ignored',
    strict: 'ignored',
  },
  part: {
    refusal: 'followed',
    text: 'followed',
    type: 'followed',
    annotations: 'ignored',
    logprobs: 'ignored',
    parsed: 'ignored',
    prompt_cache_breakpoint: 'ignored',
  },
  completions: {
    ...OF_ANSWERS,
    prompt: 'followed',
    add_special_tokens: is(true),
    logprobs: never,
    suffix: is(''),
  },
  responses: {
    ...ABOUT_THE_REQUEST,
    input: 'followed',
    instructions: 'followed',
    max_output_tokens: 'followed',
    model: 'followed',
    parallel_tool_calls: 'followed',
    stream: 'followed',
    stream_options: 'followed',
    temperature: 'followed',
    text: 'followed',
    tool_choice: 'followed',
    tools: 'followed',
    top_p: 'followed',
    prompt_cache_key: 'ignored',
    prompt_cache_options: 'ignored',
    prompt_cache_retention: 'ignored',
    background: is(false),
    context_management: isEmpty,
    conversation: earlier,
    include: isEmpty,
    max_tool_calls: never,
    moderation: never,
    previous_response_id: earlier,
    prompt: never,
    reasoning: (value) =>
      isRecord(value) && [undefined, null, 'none'].includes(value['effort'] as null),
    top_logprobs: is(0),
    truncation: is('disabled'),
  },
  responseText: { format: 'followed', verbosity: is('medium') },
  responseStreamOptions: { include_obfuscation: 'ignored' },
  responseMessage: {
    content: 'followed',
    role: 'followed',
    type: 'followed',
    id: 'ignored',
    phase: 'ignored',
    status: 'ignored',
  },
  responseCall: {
    arguments: 'followed',
    call_id: 'followed',
    name: 'followed',
    type: 'followed',
    id: 'ignored',
    status: 'ignored',
    // OpenAI's clients add it to an answer.
    parsed_arguments: 'ignored',
    caller: never,
    namespace: never,
  },
  responseResult: {
    call_id: 'followed',
    output: 'followed',
    type: 'followed',
    id: 'ignored',
    status: 'ignored',
    caller: never,
  },
  embeddings: {
    ...ABOUT_THE_REQUEST,
    dimensions: 'followed',
    encoding_format: 'followed',
    input: 'followed',
    input_type: 'followed',
    model: 'followed',
  },
  teiEmbed: {
    ...CUTS,
    dimensions: 'followed',
    inputs: 'followed',
    prompt_name: 'followed',
    normalize: is(true),
  },
  teiRerank: {
    ...CUTS,
    query: 'followed',
    return_text: 'followed',
    texts: 'followed',
    raw_scores: is(false),
  },
  teiPredict: { ...CUTS, inputs: 'followed', raw_scores: is(false) },
  vllmClassify: {
    input: 'followed',
    model: 'followed',
    priority: 'ignored',
    request_id: 'ignored',
    user: 'ignored',
    activation: is(true),
    add_special_tokens: is(true),
    softmax: is(true),
    use_activation: is(true),
    messages: never,
    truncate_prompt_tokens: is(-1),
    truncation_side: never,
  },
  cohereEmbed: {
    embedding_types: 'followed',
    input_type: 'followed',
    model: 'followed',
    output_dimension: 'followed',
    texts: 'followed',
    priority: 'ignored',
    images: never,
    inputs: never,
    max_tokens: never,
    truncate: is('END'),
  },
  ollamaEmbed: {
    dimensions: 'followed',
    input: 'followed',
    model: 'followed',
    keep_alive: 'ignored',
    options: isEmpty,
    truncate: is(true),
  },
  rerank: {
    ...ABOUT_THE_REQUEST,
    documents: 'followed',
    model: 'followed',
    query: 'followed',
    return_documents: 'followed',
    top_n: 'followed',
    priority: 'ignored',
    max_chunks_per_doc: never,
    max_tokens_per_doc: never,
    rank_fields: (value) => Array.isArray(value) && value.length === 1 && value[0] === 'text',
  },
  transcriptions: SPEECH,
  translations: SPEECH,
} satisfies Readonly<Record<string, Fields>>;

/**
 * @param within the object's path, such as `messages[0].`
 * @throws RequestError for a field that we can't follow, unless its value asks for nothing
 */
export function checkFields(body: Body, fields: Fields, within = ''): void {
  for (const [name, value] of Object.entries(body)) {
    refuseField(`${within}${name}`, value, Object.hasOwn(fields, name) ? fields[name] : undefined);
  }
}

/** Checks like `checkFields`; a form's lists may have brackets. */
export function checkFormFields(form: Form, fields: Fields): void {
  const single = new Set<string>();
  for (const [written, value] of form) {
    const name = nameOf(written);
    const known = Object.hasOwn(fields, name) ? fields[name] : undefined;
    refuseField(written, value, known);
    if (known === 'followed' && (single.has(name) || written !== name)) {
      throw new RequestError(`"${written}" is no list; give "${name}" once`, written);
    }
    single.add(name);
  }
}

/** Field's name without the brackets of a list. */
export function nameOf(written: string): string {
  return written.replace(/\[\d*\]$/, '');
}

function refuseField(name: string, value: unknown, known: Known | undefined): void {
  const isNothing = value === null || value === undefined || typeof known === 'string';
  if (isNothing || known?.(value)) {
    return;
  }
  throw new RequestError(
    known
      ? `"${name}" is ${formatValue(value)}, which this ${known === earlier ? 'server does not store; send the earlier items as input' : 'model cannot do; leave it out'}`
      : `"${name}" is a field that this server does not know; leave it out`,
    name,
  );
}
