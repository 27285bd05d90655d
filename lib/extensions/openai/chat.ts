import { randomUUID } from 'node:crypto';
import type { CallOptions } from '../../index.js';
import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { fieldIn, isCount, isFlag, isString, isText } from './fields.js';
import { beginEvents, type Body, eventOf, naming, RequestError } from './http.js';
import { checkFields, FIELDS } from './known-fields.js';
import type { OfferedModels } from './models.js';

/** Reply of a 'text-generation' serving, whole or a piece. */
interface GeneratedText {
  readonly text: string;
  readonly tokens: readonly number[];
  readonly logprobs?: readonly { readonly text: string; readonly logprob: number }[];
  readonly finishReason?: 'stop' | 'length';
  readonly usage?: { readonly promptTokens: number; readonly completionTokens: number };
}

export interface ChatRequest {
  readonly isStream: boolean;
  answer(options: CallOptions): Promise<object>;
  /** Events of a stream that has begun; until then it fails like a call. */
  events(options: CallOptions): Promise<AsyncIterable<string>>;
}

/**
 * Reads https://platform.openai.com/docs/api-reference/chat/create, with vLLM's `top_k`,
 * `repetition_penalty` and `stop_token_ids`.
 *
 * @throws RequestError for a request that the model can't answer, such as one with tools
 */
export function readChat(models: OfferedModels, body: Body): ChatRequest {
  const { id, serving } = models.find(body['model'], 'text-generation');
  checkFields(body, FIELDS.chat);
  const input = inputIn(body);
  const isStream = fieldIn(body, 'stream', 'true or false', isFlag) ?? false;
  const ofStream = fieldIn(body, 'stream_options', 'an object', isRecord) ?? {};
  checkFields(ofStream, FIELDS.streamOptions, 'stream_options.');
  const wantsUsage = fieldIn(ofStream, 'include_usage', 'true or false', isFlag) ?? false;
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
      return naming(fieldOf, () =>
        beginEvents<GeneratedText>(serving.stream(input, options), (pieces) =>
          chunksOf(pieces, chunk, wantsUsage),
        ),
      );
    },
  };
}

/** Field that a serving refuses. A caller's own text stands behind a colon. */
function fieldOf(message: string, code: string | null): string | undefined {
  const [, option] =
    /^[^:]* was given (\d+ stop|stop|the end token|endTokens)\b/.exec(message) ?? [];
  if (option !== undefined) {
    return option.endsWith('stop') ? 'stop' : 'stop_token_ids';
  }
  const [, place, role] =
    /(messages\[\d+\](?:\.role|\.content)?)( has the role)?/.exec(message) ?? [];
  if (place !== undefined) {
    return role === undefined ? place : `${place}.role`;
  }
  const isOfAll = code === 'context_length_exceeded' || message.includes('chat template');
  return isOfAll ? 'messages' : undefined;
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

const isBetween =
  (least: number, most: number) =>
  (value: unknown): value is number =>
    typeof value === 'number' && value >= least && value <= most;
const isWhole = (value: unknown): value is number => Number.isInteger(value);
const isListOfWhole = (value: unknown): value is readonly number[] =>
  Array.isArray(value) && value.every(isWhole);
/** Accepts -1 and 0, which set no limit. */
const isTop = (value: unknown): value is number => isWhole(value) && value >= -1;
const isStop = (value: unknown): value is string | readonly string[] =>
  isText(value) || (Array.isArray(value) && value.every(isText));
/** More tokens than any model has. */
const NO_LIMIT = 2 ** 31;
const A_COUNT = 'a whole number from 1 on';

/** Reads clients' names. Without a temperature, OpenAI's is 1. */
function inputIn(body: Body): object {
  const most =
    fieldIn(body, 'max_completion_tokens', A_COUNT, isCount) ??
    fieldIn(body, 'max_tokens', A_COUNT, isCount);
  const top = fieldIn(body, 'top_k', 'a whole number; -1 and 0 set no limit', isTop);
  const given = {
    maxTokens: most,
    temperature: fieldIn(body, 'temperature', 'a number from 0 to 2', isBetween(0, 2)) ?? 1,
    topP: fieldIn(body, 'top_p', 'a number above 0 and up to 1', isBetween(Number.MIN_VALUE, 1)),
    topK: top !== undefined && top <= 0 ? NO_LIMIT : top,
    repetitionPenalty: fieldIn(
      body,
      'repetition_penalty',
      'a number above 0 and up to 10',
      isBetween(Number.MIN_VALUE, 10),
    ),
    seed: fieldIn(body, 'seed', 'a whole number', isWhole),
    stop: fieldIn(body, 'stop', 'a text or a list of texts', isStop),
    endTokens: fieldIn(body, 'stop_token_ids', 'a list of whole numbers', isListOfWhole),
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
    checkFields(message, FIELDS.message, `${field}.`);
    return { role: message['role'], content: contentIn(message, field) };
  });
}

/** Text, or a list of text parts; for an assistant, also a refusal, or nothing. */
function contentIn({ role, content, refusal }: Body, message: string): string {
  const field = `${message}.content`;
  if (isString(content)) {
    return content;
  }
  if (content === undefined || content === null) {
    if (role === 'assistant') {
      return isString(refusal) ? refusal : '';
    }
    throw new RequestError(`"${field}" is missing; give a text`, field);
  }
  const parts: readonly unknown[] = Array.isArray(content) ? content : [content];
  const texts = parts.map((part, i) => {
    if (isRecord(part) && (isString(part['text']) || isString(part['refusal']))) {
      checkFields(part, FIELDS.part, `${field}[${i}].`);
    }
    if (isRecord(part) && part['type'] === 'text' && isString(part['text'])) {
      return part['text'];
    }
    if (isRecord(part) && part['type'] === 'refusal' && isString(part['refusal'])) {
      return part['refusal'];
    }
    const what =
      isRecord(part) && isString(part['type'])
        ? `a part of type "${part['type']}"`
        : formatValue(part);
    throw new RequestError(`"${field}" is or has ${what}; this model reads texts alone`, field);
  });
  return texts.join('');
}
