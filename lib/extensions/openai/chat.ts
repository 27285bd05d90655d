import { randomUUID } from 'node:crypto';
import type { CallOptions } from '../../index.js';
import { formatValue, isRecord } from '../../internal.js';
import { fieldIn, isCount, isFlag, isString, isText } from './fields.js';
import { beginEvents, type Body, eventOf, RequestError } from './http.js';
import type { OfferedModels } from './models.js';

/** A piece or the whole of the reply of a serving with the task 'text-generation'. */
interface GeneratedText {
  readonly text: string;
  readonly tokens: readonly number[];
  readonly logprobs?: readonly { readonly text: string; readonly logprob: number }[];
  readonly finishReason?: 'stop' | 'length';
  readonly usage?: { readonly promptTokens: number; readonly completionTokens: number };
}

/** A checked request, whose answer is whole or a stream. */
export interface ChatRequest {
  readonly isStream: boolean;
  /** The whole answer. */
  answer(options: CallOptions): Promise<object>;
  /** The events of a stream, once it has begun: until then it fails as a call does. */
  events(options: CallOptions): Promise<AsyncIterable<string>>;
}

/**
 * Reads https://platform.openai.com/docs/api-reference/chat/create, with `top_k` and
 * `repetition_penalty` as vLLM has them.
 *
 * @throws RequestError for a request that the model can't answer, such as one with tools
 */
export function readChat(models: OfferedModels, body: Body): ChatRequest {
  const { id, serving } = models.find(body['model'], 'text-generation');
  refuseOthers(body);
  const input = inputIn(body);
  const isStream = fieldIn(body, 'stream', 'true or false', isFlag) ?? false;
  const wantsUsage = isRecord(body['stream_options']) && body['stream_options']['include_usage'];
  const head = {
    id: `chatcmpl-${randomUUID()}`,
    created: Math.floor(Date.now() / 1000),
    model: id,
  };
  return {
    isStream,
    async answer(options) {
      const reply = (await serving.batchedRun(input, options)) as GeneratedText;
      const message = { role: 'assistant', content: reply.text, refusal: null };
      return {
        ...head,
        object: 'chat.completion',
        choices: [
          {
            index: 0,
            message,
            logprobs: logprobsOf(reply),
            finish_reason: reply.finishReason ?? 'stop',
          },
        ],
        usage: usageOf(reply),
      };
    },
    async events(options) {
      const chunk = { ...head, object: 'chat.completion.chunk' };
      return beginEvents<GeneratedText>(serving.stream(input, options), (pieces) =>
        chunksOf(pieces, chunk, wantsUsage === true),
      );
    },
  };
}

/** Server-sent events: a chunk for each piece, then the finish reason, and the usage if asked. */
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
  for await (const piece of pieces) {
    last = piece;
    if (piece.text !== '' || piece.logprobs?.length) {
      yield choiceOf({ content: piece.text }, piece);
    }
  }
  const reason = last?.finishReason ?? 'stop';
  yield chunkOf({ choices: [{ index: 0, delta: {}, logprobs: null, finish_reason: reason }] });
  if (wantsUsage && last) {
    yield chunkOf({ choices: [], usage: usageOf(last) });
  }
  yield 'data: [DONE]\n\n';
}

function usageOf({ usage }: GeneratedText): object {
  const { promptTokens = 0, completionTokens = 0 } = usage ?? {};
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

const isNumber = (value: unknown): value is number => typeof value === 'number';
const isStop = (value: unknown): value is string | readonly string[] =>
  isText(value) || (Array.isArray(value) && value.every(isText));
const A_COUNT = 'a whole number from 1 on';
const A_NUMBER = 'a number';

/** The serving checks the ranges. Without a temperature, OpenAI's is 1. */
function inputIn(body: Body): object {
  const most =
    fieldIn(body, 'max_completion_tokens', A_COUNT, isCount) ??
    fieldIn(body, 'max_tokens', A_COUNT, isCount);
  const given = {
    maxTokens: most,
    temperature: fieldIn(body, 'temperature', A_NUMBER, isNumber) ?? 1,
    topP: fieldIn(body, 'top_p', A_NUMBER, isNumber),
    topK: fieldIn(body, 'top_k', A_COUNT, isCount),
    repetitionPenalty: fieldIn(body, 'repetition_penalty', A_NUMBER, isNumber),
    seed: fieldIn(body, 'seed', 'a whole number', isNumber),
    stop: fieldIn(body, 'stop', 'a text or a list of texts', isStop),
    logprobs: fieldIn(body, 'logprobs', 'true or false', isFlag),
  };
  const options = Object.entries(given).filter(([, value]) => value !== undefined);
  return { messages: messagesIn(body['messages']), ...Object.fromEntries(options) };
}

function messagesIn(messages: unknown): readonly object[] {
  if (!Array.isArray(messages) || messages.length === 0) {
    throw new RequestError(
      `"messages" is ${formatValue(messages)}; give a list of at least one message`,
      'messages',
    );
  }
  return messages.map((message: unknown, i) => {
    const field = `messages[${i}]`;
    if (!isRecord(message) || !isText(message['role'])) {
      throw new RequestError(
        `"${field}" is ${formatValue(message)}; give { role, content }`,
        field,
      );
    }
    return { role: message['role'], content: contentIn(message['content'], `${field}.content`) };
  });
}

/** A text, or a list of parts that are texts. */
function contentIn(content: unknown, field: string): string {
  if (isString(content)) {
    return content;
  }
  const parts: readonly unknown[] = Array.isArray(content) ? content : [content];
  const texts = parts.map((part) => {
    if (isRecord(part) && part['type'] === 'text' && isString(part['text'])) {
      return part['text'];
    }
    const what =
      isRecord(part) && isString(part['type'])
        ? `a part of type "${part['type']}"`
        : formatValue(part);
    throw new RequestError(`"${field}" is or has ${what}; this model reads texts alone`, field);
  });
  return texts.join('');
}

/** Fields that these models can't follow, and the values that ask for nothing. */
const REFUSED: readonly (readonly [name: string, isNothing: (value: unknown) => boolean])[] = [
  ['n', (value) => value === 1],
  ['tools', isEmpty],
  ['functions', isEmpty],
  ['tool_choice', (value) => value === 'none' || value === 'auto'],
  ['response_format', (value) => isRecord(value) && value['type'] === 'text'],
  ['logit_bias', (value) => isRecord(value) && Object.keys(value).length === 0],
  ['presence_penalty', (value) => value === 0],
  ['frequency_penalty', (value) => value === 0],
  ['top_logprobs', (value) => value === 0],
  ['modalities', (value) => Array.isArray(value) && value.every((each) => each === 'text')],
  ['audio', () => false],
];

function isEmpty(value: unknown): boolean {
  return Array.isArray(value) && value.length === 0;
}

function refuseOthers(body: Body): void {
  for (const [name, isNothing] of REFUSED) {
    const value = body[name] ?? undefined;
    if (value !== undefined && !isNothing(value)) {
      throw new RequestError(
        `"${name}" is ${formatValue(value)}, which this model cannot do; leave it out`,
        name,
      );
    }
  }
}
