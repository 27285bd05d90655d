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

/** Fields about the request, its caller or its price. */
const ABOUT_THE_REQUEST: Fields = {
  metadata: 'ignored',
  service_tier: 'ignored',
  store: 'ignored',
  user: 'ignored',
  safety_identifier: 'ignored',
};

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
  prompt: is(''),
  temperature: (value) => value !== '' && Number(value) === 0,
  timestamp_granularities: is('segment'),
};

/**
 * Fields by kind of request, from clients of OpenAI, Cohere and vLLM. Others are refused, since
 * they may change the answer.
 */
export const FIELDS = {
  chat: {
    ...ABOUT_THE_REQUEST,
    messages: 'followed',
    model: 'followed',
    logprobs: 'followed',
    max_completion_tokens: 'followed',
    max_tokens: 'followed',
    repetition_penalty: 'followed',
    seed: 'followed',
    stop: 'followed',
    stop_token_ids: 'followed',
    stream: 'followed',
    stream_options: 'followed',
    temperature: 'followed',
    top_k: 'followed',
    top_p: 'followed',
    parallel_tool_calls: 'ignored',
    prediction: 'ignored',
    prompt_cache_key: 'ignored',
    prompt_cache_options: 'ignored',
    prompt_cache_retention: 'ignored',
    add_generation_prompt: is(true),
    add_special_tokens: is(false),
    audio: never,
    best_of: is(1),
    chat_template_kwargs: isEmpty,
    continue_final_message: is(false),
    echo: is(false),
    frequency_penalty: is(0),
    function_call: is('none', 'auto'),
    functions: isEmpty,
    ignore_eos: is(false),
    include_stop_str_in_output: is(false),
    length_penalty: is(1),
    logit_bias: isEmpty,
    min_p: is(0),
    min_tokens: is(0),
    moderation: never,
    modalities: (value) => Array.isArray(value) && value.every((each) => each === 'text'),
    n: is(1),
    presence_penalty: is(0),
    reasoning_effort: is('none'),
    response_format: (value) => isRecord(value) && value['type'] === 'text',
    skip_special_tokens: is(true),
    tool_choice: is('none', 'auto'),
    tools: isEmpty,
    top_logprobs: is(0),
    use_beam_search: is(false),
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
    reasoning: 'ignored',
    reasoning_content: 'ignored',
    tool_call_id: 'ignored',
    audio: never,
    function_call: never,
    tool_calls: isEmpty,
  },
  part: {
    refusal: 'followed',
    text: 'followed',
    type: 'followed',
    prompt_cache_breakpoint: 'ignored',
  },
  embeddings: {
    ...ABOUT_THE_REQUEST,
    dimensions: 'followed',
    encoding_format: 'followed',
    input: 'followed',
    input_type: 'followed',
    model: 'followed',
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
    const name = written.replace(/\[\d*\]$/, '');
    const known = Object.hasOwn(fields, name) ? fields[name] : undefined;
    refuseField(written, value, known);
    if (known === 'followed' && (single.has(name) || written !== name)) {
      throw new RequestError(`"${written}" is no list; give "${name}" once`, written);
    }
    single.add(name);
  }
}

function refuseField(name: string, value: unknown, known: Known | undefined): void {
  const isNothing = value === null || value === undefined || typeof known === 'string';
  if (isNothing || known?.(value)) {
    return;
  }
  throw new RequestError(
    known
      ? `"${name}" is ${formatValue(value)}, which this model cannot do; leave it out`
      : `"${name}" is a field that this server does not know; leave it out`,
    name,
  );
}
