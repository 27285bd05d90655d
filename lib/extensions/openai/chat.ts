import { randomUUID } from 'node:crypto';
import type { CallOptions } from '../../index.js';
import type { TextCounts } from '../../encoding/json.js';
import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { fieldIn, isFlag, isString, isText } from './fields.js';
import {
  argumentsIn,
  fieldsOf,
  formatIn,
  type GeneratedText,
  given,
  type Message,
  newId,
  type PastCall,
  samplingIn,
  textIn,
  toolsIn,
} from './generation.js';
import { beginEvents, type Body, eventOf, naming, RequestError } from './http.js';
import { checkFields, FIELDS } from './known-fields.js';
import type { OfferedModels } from './models.js';

/** Request for a generated text, answered whole or in a stream. */
export interface TextRequest {
  readonly isStream: boolean;
  answer(options: CallOptions): Promise<object>;
  /** Events of a stream that has begun; until then it fails like a call. */
  events(options: CallOptions): Promise<AsyncIterable<string>>;
}

const NAMES = {
  format: 'response_format',
  schema: 'response_format.json_schema.schema',
  parameters: 'function.parameters',
  messages: 'messages',
};

/**
 * Reads https://platform.openai.com/docs/api-reference/chat/create, with vLLM's `top_k`, `min_p`,
 * `repetition_penalty`, `stop_token_ids` and `chat_template_kwargs`.
 *
 * @throws RequestError for a request that the model can't answer, such as one with images
 */
export function readChat(models: OfferedModels, body: Body): TextRequest {
  const { id, serving } = models.find(body['model'], 'text-generation');
  checkFields(body, FIELDS.chat);
  const input = inputIn(body);
  const isStream = fieldIn(body, 'stream', 'true or false', isFlag) ?? false;
  const wantsUsage = usageWanted(body);
  const fieldOf = fieldsOf(body, NAMES);
  const head = {
    id: `chatcmpl-${randomUUID()}`,
    created: Math.floor(Date.now() / 1000),
    model: id,
  };
  return {
    isStream,
    async answer(options) {
      const call = () => serving.batchedRun(input, options);
      const reply = (await naming(fieldOf, call)) as GeneratedText;
      const calls = reply.toolCalls?.map(callOf);
      const message = {
        role: 'assistant',
        content: calls && reply.text === '' ? null : reply.text,
        refusal: null,
        ...(calls && { tool_calls: calls }),
      };
      return {
        ...head,
        object: 'chat.completion',
        choices: [
          { index: 0, message, logprobs: logprobsOf(reply), finish_reason: reasonOf(reply) },
        ],
        usage: usageOf(reply),
      };
    },
    async events(options) {
      const chunk = { ...head, object: 'chat.completion.chunk' };
      return naming(fieldOf, () =>
        beginEvents<GeneratedText>(serving.stream(input, options), (pieces) =>
          chunksOf(pieces, chunk, wantsUsage),
        ),
      );
    },
  };
}

/** True if a stream is to end with its usage. */
export function usageWanted(body: Body): boolean {
  const ofStream = fieldIn(body, 'stream_options', 'an object', isRecord) ?? {};
  checkFields(ofStream, FIELDS.streamOptions, 'stream_options.');
  return fieldIn(ofStream, 'include_usage', 'true or false', isFlag) ?? false;
}

/** Yields a chunk per piece, then the finish reason, and the usage if asked. */
async function* chunksOf(
  pieces: AsyncIterable<GeneratedText>,
  head: object,
  wantsUsage: boolean,
): AsyncGenerator<string> {
  const chunkOf = (rest: object): string => eventOf({ ...head, ...rest });
  const choiceOf = (delta: object, piece?: GeneratedText): string =>
    chunkOf({
      choices: [
        { index: 0, delta, logprobs: piece ? logprobsOf(piece) : null, finish_reason: null },
      ],
    });
  yield choiceOf({ role: 'assistant', content: '' });
  let last: GeneratedText | undefined;
  let calls = 0;
  for await (const piece of pieces) {
    last = piece;
    if (piece.text !== '' || piece.logprobs?.length) {
      yield choiceOf({ content: piece.text }, piece);
    }
    for (const call of piece.toolCalls ?? []) {
      yield choiceOf({ tool_calls: [{ index: calls++, ...callOf(call) }] });
    }
  }
  const finish_reason = reasonOf(last);
  yield chunkOf({ choices: [{ index: 0, delta: {}, logprobs: null, finish_reason }] });
  if (wantsUsage && last) {
    yield chunkOf({ choices: [], usage: usageOf(last) });
  }
  yield 'data: [DONE]\n\n';
}

function callOf({ name, arguments: own }: Omit<PastCall, 'id'>): object {
  return {
    id: newId('call'),
    type: 'function',
    function: { name, arguments: JSON.stringify(own) },
  };
}

/** Reason in OpenAI's word. */
export function reasonOf(reply: GeneratedText | undefined): string {
  const { finishReason = 'stop' } = reply ?? {};
  return finishReason === 'toolCalls' ? 'tool_calls' : finishReason;
}

/** Counts of all answers together. */
export function usageOf(...replies: readonly GeneratedText[]): object {
  const sumOf = (count: keyof NonNullable<GeneratedText['usage']>): number =>
    replies.reduce((sum, { usage }) => sum + (usage?.[count] ?? 0), 0);
  const [promptTokens, completionTokens] = [sumOf('promptTokens'), sumOf('completionTokens')];
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
  };
}

function logprobsOf({ logprobs }: GeneratedText): object | null {
  if (!logprobs) {
    return null;
  }
  const content = logprobs.map(({ text, logprob }) => ({
    token: text,
    logprob,
    bytes: [...Buffer.from(text)],
    top_logprobs: [],
  }));
  return { content, refusal: null };
}

function inputIn(body: Body): object {
  return {
    messages: messagesIn(body['messages']),
    ...samplingIn(body, 'max_completion_tokens', 'max_tokens'),
    ...given({
      logprobs: fieldIn(body, 'logprobs', 'true or false', isFlag),
      templateVariables: fieldIn(body, 'chat_template_kwargs', 'an object', isRecord),
    }),
    ...toolsIn(body, true),
    ...formatIn(body['response_format'], 'response_format', (format) => format['json_schema']),
  };
}

function messagesIn(messages: unknown): readonly Message[] {
  if (!Array.isArray(messages) || messages.length === 0) {
    throw new RequestError(
      `"messages" is ${formatValue(messages)}; give a list of at least one message`,
      'messages',
    );
  }
  const counts = { nodes: 0, values: 0 };
  return messages.map((message: unknown, i) => {
    const field = `messages[${i}]`;
    if (!isRecord(message) || !isText(message['role'])) {
      throw new RequestError(
        `"${field}" is ${formatValue(message)}; give { role, content }`,
        field,
      );
    }
    checkFields(message, FIELDS.message, `${field}.`);
    const { role, tool_calls: calls = null } = message;
    if (calls !== null && role !== 'assistant') {
      throw new RequestError(
        `"${field}.tool_calls" belongs to an assistant's message, and this one has the role ` +
          formatValue(role),
        `${field}.tool_calls`,
      );
    }
    return {
      role,
      content: contentIn(message, field),
      ...(calls !== null && { toolCalls: pastCalls(calls, `${field}.tool_calls`, counts) }),
      ...(role === 'tool' &&
        given({
          toolCallId: fieldIn(message, 'tool_call_id', A_NAME, isText, `${field}.`),
          name: fieldIn(message, 'name', A_NAME, isText, `${field}.`),
        })),
    };
  });
}

const A_NAME = 'a text that is not empty';

function pastCalls(calls: unknown, field: string, counts: TextCounts): readonly PastCall[] {
  if (!Array.isArray(calls)) {
    throw new RequestError(`"${field}" is ${formatValue(calls)}; give a list of calls`, field);
  }
  return calls.map((call: unknown, i) => {
    const place = `${field}[${i}]`;
    const own = isRecord(call) ? call['function'] : undefined;
    if (!isRecord(call) || !isText(call['id']) || !isRecord(own) || !isText(own['name'])) {
      throw new RequestError(
        `"${place}" is ${formatValue(call)}; give { id, type: "function", function }`,
        place,
      );
    }
    checkFields(call, FIELDS.pastCall, `${place}.`);
    checkFields(own, FIELDS.pastFunction, `${place}.function.`);
    const parsed = argumentsIn(own['arguments'], `${place}.function.arguments`, counts);
    return { id: call['id'], name: own['name'], arguments: parsed };
  });
}

/** Text, or a list of text parts; for an assistant, also a refusal, or nothing. */
function contentIn({ role, content, refusal }: Body, message: string): string {
  const field = `${message}.content`;
  if (content !== undefined && content !== null) {
    return textIn(content, field, ['text']);
  }
  if (role === 'assistant') {
    return isString(refusal) ? refusal : '';
  }
  throw new RequestError(`"${field}" is missing; give a text`, field);
}
