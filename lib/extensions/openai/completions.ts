import { randomUUID } from 'node:crypto';
import { formatValue } from '../../doors/text.js';
import { callAll } from './calls.js';
import { type TextRequest, reasonOf, usageOf, usageWanted } from './chat.js';
import { fieldIn, isFlag, isText } from './fields.js';
import { fieldsOf, formatIn, type GeneratedText, samplingIn } from './generation.js';
import { beginEvents, type Body, eventOf, naming, RequestError } from './http.js';
import { checkFields, FIELDS } from './known-fields.js';
import type { OfferedModels } from './models.js';

const NAMES = {
  format: 'response_format',
  schema: 'response_format.json_schema.schema',
  parameters: '',
  messages: 'prompt',
};

/** Tokens of an answer whose request sets no limit, as in OpenAI's API. */
const USUAL = 16;

/**
 * Reads https://platform.openai.com/docs/api-reference/completions/create: texts that the model
 * continues, without a chat template, and with vLLM's fields.
 *
 * @throws RequestError for a request that the model can't answer
 */
export function readCompletion(models: OfferedModels, body: Body): TextRequest {
  const { id, serving, inputs: most } = models.find(body['model'], 'text-generation');
  checkFields(body, FIELDS.completions);
  const options = {
    maxTokens: USUAL,
    ...samplingIn(body, 'max_tokens'),
    ...formatIn(body['response_format'], 'response_format', (format) => format['json_schema']),
  };
  const inputs = promptsIn(body['prompt'], most).map((prompt) => ({ prompt, ...options }));
  const isStream = fieldIn(body, 'stream', 'true or false', isFlag) ?? false;
  const wantsUsage = usageWanted(body);
  const fieldOf = fieldsOf(body, NAMES);
  const head = {
    id: `cmpl-${randomUUID()}`,
    object: 'text_completion',
    created: Math.floor(Date.now() / 1000),
    model: id,
  };
  const chunkOf = (text: string, finish_reason: string | null): string =>
    eventOf({ ...head, choices: [{ index: 0, text, logprobs: null, finish_reason }] });
  if (isStream && inputs.length > 1) {
    throw new RequestError('"prompt" has several texts; a stream continues one', 'prompt');
  }
  return {
    isStream,
    async answer(call) {
      const replies = (await callAll(serving, inputs, call, (_, ...refusal) =>
        fieldOf(...refusal),
      )) as readonly GeneratedText[];
      const choices = replies.map((reply, index) => ({
        index,
        text: reply.text,
        logprobs: null,
        finish_reason: reasonOf(reply),
      }));
      return { ...head, choices, usage: usageOf(...replies) };
    },
    async events(call) {
      return naming(fieldOf, () =>
        beginEvents<GeneratedText>(serving.stream(inputs[0]!, call), async function* (pieces) {
          let last: GeneratedText | undefined;
          for await (const piece of pieces) {
            last = piece;
            if (piece.text !== '') {
              yield chunkOf(piece.text, null);
            }
          }
          yield chunkOf('', reasonOf(last));
          if (wantsUsage && last) {
            yield eventOf({ ...head, choices: [], usage: usageOf(last) });
          }
          yield 'data: [DONE]\n\n';
        }),
      );
    },
  };
}

function promptsIn(prompt: unknown, most: number): readonly string[] {
  const prompts: readonly unknown[] = Array.isArray(prompt) ? prompt : [prompt];
  if (prompts.length === 0 || prompts.length > most) {
    throw new RequestError(
      `"prompt" has ${prompts.length} texts; this model continues 1 to ${most} in a request`,
      'prompt',
    );
  }
  return prompts.map((each) => {
    if (!isText(each)) {
      throw new RequestError(
        `"prompt" is or has ${formatValue(each)}; give texts that are not empty`,
        'prompt',
      );
    }
    return each;
  });
}
