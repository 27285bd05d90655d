import type { TextCounts } from '../../encoding/json.js';
import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import type { TextRequest } from './chat.js';
import { fieldIn, isFlag, isString, isText } from './fields.js';
import {
  argumentsIn,
  fieldsOf,
  formatIn,
  type GeneratedText,
  type Message,
  newId,
  samplingIn,
  textIn,
  toolsIn,
} from './generation.js';
import { beginEvents, type Body, naming, RequestError } from './http.js';
import { checkFields, FIELDS } from './known-fields.js';
import type { OfferedModels } from './models.js';

const NAMES = {
  format: 'text.format',
  schema: 'text.format.schema',
  parameters: 'parameters',
  messages: 'input',
};

/**
 * Reads https://platform.openai.com/docs/api-reference/responses/create. Nothing is stored: a request
 * has all earlier items.
 *
 * @throws RequestError for a request that the model can't answer
 */
export function readResponse(models: OfferedModels, body: Body): TextRequest {
  const { id, serving } = models.find(body['model'], 'text-generation');
  checkFields(body, FIELDS.responses);
  const instructions = fieldIn(body, 'instructions', 'a text', isString);
  const text = fieldIn(body, 'text', 'an object', isRecord) ?? {};
  checkFields(text, FIELDS.responseText, 'text.');
  const ofStream = fieldIn(body, 'stream_options', 'an object', isRecord) ?? {};
  checkFields(ofStream, FIELDS.responseStreamOptions, 'stream_options.');
  const input = {
    messages: [
      ...(instructions === undefined ? [] : [{ role: 'system', content: instructions }]),
      ...messagesIn(body['input']),
    ],
    ...samplingIn(body, 'max_output_tokens'),
    ...toolsIn(body, false),
    ...formatIn(text['format'], 'text.format', (format) => format),
  };
  const fieldOf = fieldsOf(body, NAMES);
  const head = {
    ...UNSET,
    ...echoOf(body),
    id: newId('resp'),
    object: 'response',
    created_at: Math.floor(Date.now() / 1000),
    model: id,
    store: false,
  };
  return {
    isStream: fieldIn(body, 'stream', 'true or false', isFlag) ?? false,
    async answer(options) {
      const call = () => serving.batchedRun(input, options);
      const reply = (await naming(fieldOf, call)) as GeneratedText;
      const output = new Output();
      output.push(reply);
      output.end(reply);
      return { ...head, ...endOf(output, reply) };
    },
    async events(options) {
      let count = 0;
      const write = ({ type, ...rest }: Event): string => {
        const data = JSON.stringify({ type, sequence_number: count++, ...rest });
        return `event: ${type}\ndata: ${data}\n\n`;
      };
      return naming(fieldOf, () =>
        beginEvents<GeneratedText>(
          serving.stream(input, options),
          async function* (pieces) {
            for await (const event of eventsOf(pieces, head)) {
              yield write(event);
            }
          },
          ({ code, message, param }) => write({ type: 'error', code, message, param }),
        ),
      );
    },
  };
}

/** Fields of a response that repeat the request's, and their values if it has none. */
const UNSET = {
  background: false,
  error: null,
  incomplete_details: null,
  instructions: null,
  max_output_tokens: null,
  metadata: {},
  parallel_tool_calls: true,
  previous_response_id: null,
  reasoning: { effort: null, summary: null },
  temperature: 1,
  text: { format: { type: 'text' } },
  tool_choice: 'auto',
  tools: [],
  top_p: 1,
  truncation: 'disabled',
  user: null,
};

function echoOf(body: Body): Body {
  const names = Object.keys(UNSET).filter((name) => (body[name] ?? null) !== null);
  return Object.fromEntries(names.map((name) => [name, body[name]]));
}

/** Event of https://platform.openai.com/docs/api-reference/responses-streaming. */
type Event = Readonly<Record<string, unknown>> & { readonly type: string };

async function* eventsOf(
  pieces: AsyncIterable<GeneratedText>,
  head: object,
): AsyncGenerator<Event> {
  const begun = { ...head, status: 'in_progress', output: [], usage: null };
  yield { type: 'response.created', response: begun };
  yield { type: 'response.in_progress', response: begun };
  const output = new Output();
  let last: GeneratedText | undefined;
  for await (const piece of pieces) {
    last = piece;
    yield* output.push(piece);
  }
  yield* output.end(last);
  const response = { ...head, ...endOf(output, last) };
  yield { type: `response.${response.status}`, response };
}

/** Fields of a response at its end. */
function endOf({ items }: Output, last: GeneratedText | undefined) {
  const isCut = isCutIn(last);
  const { promptTokens = 0, completionTokens = 0 } = last?.usage ?? {};
  return {
    status: isCut ? 'incomplete' : 'completed',
    incomplete_details: isCut ? { reason: 'max_output_tokens' } : null,
    output: items,
    usage: {
      input_tokens: promptTokens,
      input_tokens_details: { cached_tokens: 0 },
      output_tokens: completionTokens,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: promptTokens + completionTokens,
    },
  };
}

function isCutIn(last: GeneratedText | undefined): boolean {
  return last?.finishReason === 'length';
}

/** Items of a response, and the events that tell them. */
class Output {
  readonly items: object[] = [];
  /** Message that still grows. */
  private open: { readonly id: string; text: string } | undefined;

  push({ text, toolCalls = [] }: GeneratedText): readonly Event[] {
    const events: Event[] = [];
    if (text !== '') {
      events.push(...this.write(text));
    }
    for (const { name, arguments: own } of toolCalls) {
      events.push(...this.close(), ...this.call(name, JSON.stringify(own)));
    }
    return events;
  }

  end(last: GeneratedText | undefined): readonly Event[] {
    const isEmpty = this.items.length === 0 && !this.open;
    const status = isCutIn(last) ? 'incomplete' : 'completed';
    return [...(isEmpty ? this.write('') : []), ...this.close(status)];
  }

  private write(text: string): readonly Event[] {
    const begin = this.open ? [] : this.begin();
    const { id } = this.open!;
    this.open!.text += text;
    const delta = { type: 'response.output_text.delta', delta: text, logprobs: [] };
    return [...begin, { ...delta, ...this.placeOf(id), content_index: 0 }];
  }

  private begin(): readonly Event[] {
    const id = newId('msg');
    this.open = { id, text: '' };
    const item = { id, type: 'message', status: 'in_progress', role: 'assistant', content: [] };
    return [
      { type: 'response.output_item.added', output_index: this.items.length, item },
      {
        type: 'response.content_part.added',
        ...this.placeOf(id),
        content_index: 0,
        part: partOf(''),
      },
    ];
  }

  private close(status = 'completed'): readonly Event[] {
    if (!this.open) {
      return [];
    }
    const { id, text } = this.open;
    this.open = undefined;
    const place = { ...this.placeOf(id), content_index: 0 };
    const part = partOf(text);
    const content = [part];
    const item = { id, type: 'message', status, role: 'assistant', content };
    return [
      { type: 'response.output_text.done', ...place, text, logprobs: [] },
      { type: 'response.content_part.done', ...place, part },
      this.done(item),
    ];
  }

  private call(name: string, given: string): readonly Event[] {
    const id = newId('fc');
    const item = { id, type: 'function_call', call_id: newId('call'), name };
    const place = this.placeOf(id);
    return [
      {
        type: 'response.output_item.added',
        output_index: this.items.length,
        item: { ...item, status: 'in_progress', arguments: '' },
      },
      { type: 'response.function_call_arguments.delta', ...place, delta: given },
      { type: 'response.function_call_arguments.done', ...place, name, arguments: given },
      this.done({ ...item, status: 'completed', arguments: given }),
    ];
  }

  private placeOf(item_id: string) {
    return { item_id, output_index: this.items.length };
  }

  private done(item: object): Event {
    const output_index = this.items.length;
    this.items.push(item);
    return { type: 'response.output_item.done', output_index, item };
  }
}

function partOf(text: string): object {
  return { type: 'output_text', text, annotations: [], logprobs: [] };
}

const TEXTS = ['input_text', 'output_text', 'text'];

/** Messages of a text, or of items; calls of one answer follow each other. */
function messagesIn(input: unknown): readonly Message[] {
  if (isText(input)) {
    return [{ role: 'user', content: input }];
  }
  if (!Array.isArray(input) || input.length === 0) {
    throw new RequestError(
      `"input" is ${formatValue(input)}; give a text, or a list of at least one item`,
      'input',
    );
  }
  const messages: Message[] = [];
  const counts = { nodes: 0, values: 0 };
  for (const [i, item] of (input as readonly unknown[]).entries()) {
    const message = messageOf(item, `input[${i}]`, counts);
    const last = messages.at(-1);
    if (message.toolCalls && last?.role === 'assistant') {
      const toolCalls = [...(last.toolCalls ?? []), ...message.toolCalls];
      messages[messages.length - 1] = { ...last, toolCalls };
    } else {
      messages.push(message);
    }
  }
  return messages;
}

function messageOf(item: unknown, field: string, counts: TextCounts): Message {
  const { type = 'message', role, content, call_id: id } = isRecord(item) ? item : {};
  if (isRecord(item) && type === 'message' && isText(role)) {
    checkFields(item, FIELDS.responseMessage, `${field}.`);
    return { role, content: textIn(content, `${field}.content`, TEXTS) };
  }
  if (isRecord(item) && type === 'function_call' && isText(id) && isText(item['name'])) {
    checkFields(item, FIELDS.responseCall, `${field}.`);
    const given = argumentsIn(item['arguments'], `${field}.arguments`, counts);
    const call = { id, name: item['name'], arguments: given };
    return { role: 'assistant', content: '', toolCalls: [call] };
  }
  if (isRecord(item) && type === 'function_call_output' && isText(id)) {
    checkFields(item, FIELDS.responseResult, `${field}.`);
    const text = textIn(item['output'], `${field}.output`, TEXTS);
    return { role: 'tool', content: text, toolCallId: id };
  }
  throw new RequestError(
    type === 'item_reference'
      ? `"${field}" refers to an item of an earlier response, and this server stores none; send the ` +
          'item itself (in the AI SDK: providerOptions: { openai: { store: false } })'
      : `"${field}" is ${formatValue(item)}; give messages, function calls and their outputs`,
    field,
  );
}
