import { randomUUID } from 'node:crypto';
import { parseJson, type TextCounts } from '../../encoding/json.js';
import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { fieldIn, isCount, isFlag, isString, isText } from './fields.js';
import { type Body, type FieldOf, RequestError, textLimits } from './http.js';
import { checkFields, FIELDS } from './known-fields.js';

/** Reply of a 'text-generation' serving, whole or a piece. */
export interface GeneratedText {
  readonly text: string;
  readonly tokens: readonly number[];
  readonly logprobs?: readonly { readonly text: string; readonly logprob: number }[];
  readonly toolCalls?: readonly {
    readonly name: string;
    readonly arguments: Readonly<Record<string, unknown>>;
  }[];
  readonly finishReason?: 'stop' | 'length' | 'toolCalls';
  readonly usage?: { readonly promptTokens: number; readonly completionTokens: number };
}

/** Message of a conversation, as a serving takes it. */
export interface Message {
  readonly role: string;
  readonly content: string;
  readonly toolCalls?: readonly PastCall[];
  readonly toolCallId?: string;
  readonly name?: string;
}

/** Call of an earlier answer. */
export interface PastCall {
  readonly id: string;
  readonly name: string;
  readonly arguments: Readonly<Record<string, unknown>>;
}

/** Id such as `call_…`, of letters and digits. */
export function newId(kind: string): string {
  return `${kind}_${randomUUID().replaceAll('-', '')}`;
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
const A_PENALTY = 'a number from -2 to 2';

/** Drops options that are not given. */
export function given(
  options: Readonly<Record<string, unknown>>,
): Readonly<Record<string, unknown>> {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}

/**
 * Reads sampling by clients' names. Without a temperature, OpenAI's is 1.
 *
 * @param limits the fields that limit the answer's tokens, the first given one first
 */
export function samplingIn(body: Body, ...limits: readonly string[]): object {
  const [most] = limits.flatMap((name) => fieldIn(body, name, A_COUNT, isCount) ?? []);
  const top = fieldIn(body, 'top_k', 'a whole number; -1 and 0 set no limit', isTop);
  return given({
    maxTokens: most,
    temperature: fieldIn(body, 'temperature', 'a number from 0 to 2', isBetween(0, 2)) ?? 1,
    topP: fieldIn(body, 'top_p', 'a number above 0 and up to 1', isBetween(Number.MIN_VALUE, 1)),
    topK: top !== undefined && top <= 0 ? NO_LIMIT : top,
    minP: fieldIn(body, 'min_p', 'a number from 0 to 1', isBetween(0, 1)),
    repetitionPenalty: fieldIn(
      body,
      'repetition_penalty',
      'a number above 0 and up to 10',
      isBetween(Number.MIN_VALUE, 10),
    ),
    presencePenalty: fieldIn(body, 'presence_penalty', A_PENALTY, isBetween(-2, 2)),
    frequencyPenalty: fieldIn(body, 'frequency_penalty', A_PENALTY, isBetween(-2, 2)),
    seed: fieldIn(body, 'seed', 'a whole number', isWhole),
    stop: fieldIn(body, 'stop', 'a text or a list of texts', isStop),
    endTokens: fieldIn(body, 'stop_token_ids', 'a list of whole numbers', isListOfWhole),
  });
}

/** Places of a route's fields. */
export interface FieldNames {
  /** Field that asks for a format, and its schema's. */
  readonly format: string;
  readonly schema: string;
  /** Path of a tool's schema, behind `tools[0]`. */
  readonly parameters: string;
  /** Field with the conversation. */
  readonly messages: string;
}

/** Parts of messages about options that routes name otherwise. */
const NAMED: readonly (readonly [RegExp, string])[] = [
  [/was given toolChoice/, 'tool_choice'],
  [/was given tools|leaves out tools/, 'tools'],
  [/template ?variable/i, 'chat_template_kwargs'],
];

/** Finds the field that a serving refuses. A caller's own text stands behind a colon. */
export function fieldsOf(body: Body, names: FieldNames): FieldOf {
  return (message, code) => {
    const [, option] =
      /^[^:]* was given (\d+ stop|stop|the end token|endTokens)\b/.exec(message) ?? [];
    if (option !== undefined) {
      return option.endsWith('stop') ? 'stop' : 'stop_token_ids';
    }
    const [, format, tool, part] =
      /JSON schema whose (?:(format\.schema)|(tools\[\d+\])\.parameters)(\S*)/.exec(message) ?? [];
    if (part !== undefined) {
      return (format === undefined ? `${tool}.${names.parameters}` : names.schema) + part;
    }
    if (/its answer to a form|^[^:]* given (?:a form|JSON schemas)/.test(message)) {
      return isEmpty(body['tools']) ? names.format : 'tools';
    }
    const [ofTool] = /^tools\[\d+\]/.exec(message) ?? [];
    const [, named = ofTool] = NAMED.find(([what]) => what.test(message)) ?? [];
    if (named !== undefined) {
      return named;
    }
    const [, place, role] =
      /(messages\[\d+\](?:\.role|\.content)?)( has the role)?/.exec(message) ?? [];
    if (place !== undefined && names.messages === 'messages') {
      return role === undefined ? place : `${place}.role`;
    }
    const isOfAll =
      code === 'context_length_exceeded' || /chat template|messages\[|special token/.test(message);
    return isOfAll ? names.messages : undefined;
  };
}

const isEmpty = (value: unknown): boolean => [value ?? []].flat().length === 0;

/**
 * Reads tools, as chat's `{ type, function }` or as responses' `{ type, name, ... }`.
 *
 * @param within true if a tool's description is in its field `function`
 */
export function toolsIn(body: Body, within: boolean): object {
  const tools = fieldIn(body, 'tools', 'a list of tools', Array.isArray);
  const choice = body['tool_choice'] ?? undefined;
  const parallel = fieldIn(body, 'parallel_tool_calls', 'true or false', isFlag);
  if (!tools || tools.length === 0) {
    if (choice !== undefined && choice !== 'none' && choice !== 'auto') {
      throw new RequestError(
        `"tool_choice" is ${formatValue(choice)}, and "tools" has no tools; give them, or leave it out`,
        'tool_choice',
      );
    }
    return {};
  }
  return given({
    tools: tools.map((tool, i) => toolIn(tool, `tools[${i}]`, within)),
    toolChoice: choice === undefined ? undefined : choiceIn(choice, within),
    parallelToolCalls: parallel,
  });
}

function toolIn(tool: unknown, field: string, within: boolean): object {
  if (!isRecord(tool) || tool['type'] !== 'function') {
    const type = isRecord(tool) ? `of the type ${formatValue(tool['type'])}` : formatValue(tool);
    throw new RequestError(`"${field}" is ${type}; this model calls functions alone`, field);
  }
  const described = within ? tool['function'] : tool;
  const place = within ? `${field}.function` : field;
  if (!isRecord(described) || !isText(described['name'])) {
    throw new RequestError(
      `"${place}" is ${formatValue(described)}; give { name, description, parameters }`,
      place,
    );
  }
  if (within) {
    checkFields(tool, FIELDS.tool, `${field}.`);
  }
  checkFields(described, FIELDS.function, `${place}.`);
  return given({
    name: described['name'],
    description: fieldIn(described, 'description', 'a text', isString),
    parameters: fieldIn(described, 'parameters', 'a JSON schema', isRecord),
  });
}

function choiceIn(choice: unknown, within: boolean): unknown {
  if (!isRecord(choice)) {
    return choice;
  }
  const named = within ? choice['function'] : choice;
  if (choice['type'] !== 'function' || !isRecord(named) || !isText(named['name'])) {
    throw new RequestError(
      `"tool_choice" is ${formatValue(choice)}; allowed are "auto", "none", "required" and the name of a function`,
      'tool_choice',
    );
  }
  checkFields(choice, within ? FIELDS.tool : FIELDS.calledFunction, 'tool_choice.');
  if (within) {
    checkFields(named, FIELDS.calledFunction, 'tool_choice.function.');
  }
  return { name: named['name'] };
}

/**
 * Reads an answer's format.
 *
 * @param described the format's object with `schema`, if it asks for one
 */
export function formatIn(
  format: unknown,
  field: string,
  described: (format: Body) => unknown,
): object {
  if (format === undefined || format === null) {
    return {};
  }
  const { type } = isRecord(format) ? format : {};
  if (isRecord(format) && (type === 'text' || type === 'json_object')) {
    checkFields(format, FIELDS.anyFormat, `${field}.`);
    return type === 'text' ? {} : { format: 'json' };
  }
  const own = isRecord(format) && type === 'json_schema' ? described(format) : undefined;
  if (!isRecord(own) || !isRecord(own['schema'])) {
    throw new RequestError(
      `"${field}" is ${formatValue(format)}; allowed are the types "text", "json_object", and ` +
        '"json_schema" with a schema',
      field,
    );
  }
  if (own === format) {
    checkFields(own, FIELDS.format, `${field}.`);
  } else {
    checkFields(format as Body, FIELDS.schemaFormat, `${field}.`);
    checkFields(own, FIELDS.format, `${field}.json_schema.`);
  }
  return { format: { schema: own['schema'] } };
}

/**
 * Arguments of an earlier call, which clients send as text.
 *
 * @param counts of the request's earlier arguments
 */
export function argumentsIn(
  text: unknown,
  field: string,
  counts: TextCounts,
): Readonly<Record<string, unknown>> {
  const parsed = isString(text) ? parseJson(text, textLimits, counts) : undefined;
  if (parsed && 'fault' in parsed) {
    throw new RequestError(`"${field}" ${parsed.fault}`, field);
  }
  if (!isRecord(parsed?.value)) {
    throw new RequestError(
      `"${field}" is ${formatValue(text)}; give an object as JSON text`,
      field,
    );
  }
  return parsed.value;
}

/**
 * Joins a message's texts.
 *
 * @param types of parts that have a text
 */
export function textIn(content: unknown, field: string, types: readonly string[]): string {
  if (isString(content)) {
    return content;
  }
  const parts: readonly unknown[] = Array.isArray(content) ? content : [content];
  const texts = parts.map((part, i) => {
    if (isRecord(part) && (isString(part['text']) || isString(part['refusal']))) {
      checkFields(part, FIELDS.part, `${field}[${i}].`);
    }
    if (isRecord(part) && types.includes(part['type'] as string) && isString(part['text'])) {
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
