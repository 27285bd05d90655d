import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import type { ChatTool } from './chat.js';
import {
  type Effort,
  grammarOf,
  JSON_OBJECT,
  jsonRules,
  literal,
  type Rules,
} from './json-grammar.js';
import { type CallFrame, triggerOf } from './tool-calls.js';

/** Form of an answer: JSON of an object, or JSON that fits a schema. */
export type AnswerFormat = 'json' | SchemaFormat;

/** Form of answers that a JSON schema describes. */
export interface SchemaFormat {
  /** JSON schema. */
  readonly schema: object;
}

/** Which tools an answer calls: what the model chooses, none, at least one, or this one. */
export type ToolChoice = 'auto' | 'none' | 'required' | NamedTool;

/** Tool that an answer must call. */
export interface NamedTool {
  /** Name of one of the call's tools. */
  readonly name: string;
}

/** Options of an answer's form. */
export interface FormOptions {
  readonly format?: AnswerFormat;
  readonly tools?: readonly ChatTool[];
  readonly toolChoice?: ToolChoice;
  readonly parallelToolCalls?: boolean;
}

/** Grammar of xgrammar: a text, or its structural tag. */
export type Grammar = string | object;

/** Grammar with other texts. */
export function mapTexts(grammar: Grammar, change: (text: string) => string): Grammar {
  return JSON.parse(JSON.stringify(grammar), (_, value: unknown) =>
    typeof value === 'string' ? change(value) : value,
  ) as Grammar;
}

/** A grammar that answers can't be held to. */
export class GrammarError extends Error {}

/** Form that an answer is held to. */
export interface AnswerForm {
  /** Undefined for any text. */
  readonly grammar: Grammar | undefined;
  /** Frame of the calls to take out of the text. */
  readonly frame: CallFrame | undefined;
  /** Tools for the prompt. */
  readonly tools: readonly ChatTool[] | undefined;
}

type Refuse = (what: string) => Error;

const MOST_TOOLS = 128;
/** Characters of all tools' grammars: a few seconds to compile. */
const LONGEST_TOGETHER = 2 ** 19;
const NAME = /^[\w.-]{1,64}$/;

/**
 * @param frame how the model writes calls, if its chat template says so
 * @throws the error of `refuse` for invalid options, and for a schema that no grammar holds
 */
export function formOf(
  { format, tools, toolChoice = 'auto', parallelToolCalls = true }: FormOptions,
  frame: CallFrame | undefined,
  refuse: Refuse,
): AnswerForm {
  const refuseSchema = (place: string, what: string): Error =>
    refuse(`was given a JSON schema whose ${place} ${what}`);
  checkFormat(format, refuse);
  checkTools(tools, toolChoice, parallelToolCalls, refuse);
  const effort = { tried: 0 };
  const answer = format && rulesOf(format, refuseSchema, effort);
  if (!tools || toolChoice === 'none') {
    return { grammar: answer && grammarOf(answer), frame: undefined, tools: undefined };
  }
  if (!frame) {
    throw refuse(
      "was given tools, and its model's chat template lays out no calls with arguments in JSON; use a " +
        'model that calls tools, or give the option chatTemplate',
    );
  }
  const called = isRecord(toolChoice)
    ? tools.filter(({ name }) => name === toolChoice.name)
    : tools;
  const isRepeated = parallelToolCalls && !isRecord(toolChoice) && frame.between !== undefined;
  const argumentsOf = (tool: ChatTool, prefix: string): Rules =>
    argumentRules(tool, `tools[${tools.indexOf(tool)}]`, refuseSchema, prefix, effort);
  if (toolChoice === 'auto' && !answer) {
    const tags = called.map((tool) => ({
      type: 'tag',
      begin: frame.begin + tool.name + frame.middle,
      content: { type: 'grammar', grammar: grammarOf(argumentsOf(tool, '')) },
      end: frame.end,
    }));
    checkSize(
      tags.map(({ content }) => content.grammar),
      refuse,
    );
    const triggers = [triggerOf(frame)];
    const triggered = { type: 'triggered_tags', triggers, tags, stop_after_first: !isRepeated };
    return { grammar: { type: 'structural_tag', format: triggered }, frame, tools };
  }
  const all = called.map((tool, i) => argumentsOf(tool, `tool-${i}-`));
  const calls = called.map(
    ({ name }, i) =>
      `${literal(frame.begin + name + frame.middle)} ${all[i]!.root} ${literal(frame.end)}`,
  );
  const others: Rules['others'] = [
    ['call', calls.join(' | ')],
    ['calls', isRepeated ? `call (${literal(frame.between)} call)*` : 'call'],
    ...all.flatMap((rules) => rules.others),
  ];
  const grammar =
    toolChoice === 'auto' && answer
      ? grammarOf({ root: `calls | ${answer.root}`, others: [...others, ...answer.others] })
      : grammarOf({ root: 'calls', others });
  checkSize([grammar], refuse);
  return { grammar, frame, tools };
}

function checkSize(grammars: readonly string[], refuse: Refuse): void {
  const size = grammars.reduce((sum, { length }) => sum + length, 0);
  if (size > LONGEST_TOGETHER) {
    throw refuse(
      'was given tools whose schemas are too large together; give fewer, or describe less',
    );
  }
}

function rulesOf(
  format: AnswerFormat,
  refuse: (place: string, what: string) => Error,
  effort: Effort,
): Rules {
  return format === 'json'
    ? JSON_OBJECT
    : jsonRules(format.schema, 'format.schema', refuse, '', effort);
}

/** Schema of no arguments. */
const NONE = { type: 'object', properties: {} };

function argumentRules(
  { parameters = NONE }: ChatTool,
  tool: string,
  refuse: (place: string, what: string) => Error,
  prefix: string,
  effort: Effort,
): Rules {
  const place = `${tool}.parameters`;
  if ((parameters as Record<string, unknown>)['type'] !== 'object') {
    throw refuse(`${place}.type`, "must be 'object': arguments have names");
  }
  return jsonRules(parameters, place, refuse, prefix, effort);
}

function checkFormat(format: unknown, refuse: Refuse): void {
  const isKnown =
    format === undefined ||
    format === 'json' ||
    (isRecord(format) && isRecord(format['schema']) && Object.keys(format).length === 1);
  if (!isKnown) {
    throw refuse(`was given format ${formatValue(format)}; allowed are 'json' and { schema }`);
  }
}

function checkTools(tools: unknown, choice: unknown, parallel: unknown, refuse: Refuse): void {
  if (typeof parallel !== 'boolean') {
    throw refuse(`was given parallelToolCalls ${formatValue(parallel)}; allowed is true or false`);
  }
  if (tools === undefined) {
    if (choice !== 'auto' && choice !== 'none') {
      throw refuse(`was given toolChoice ${formatValue(choice)} without tools; give tools, too`);
    }
    return;
  }
  if (!Array.isArray(tools) || tools.length === 0 || tools.length > MOST_TOOLS) {
    throw refuse(
      `was given tools ${formatValue(tools)}; allowed are lists of 1 to ${MOST_TOOLS} tools`,
    );
  }
  const names = tools.map((tool: unknown, i) => {
    if (!isTool(tool)) {
      throw refuse(
        `was given tools[${i}] ${formatValue(tool)}; allowed is { name, description?, parameters? } ` +
          'with a name of at most 64 letters, digits, dots and dashes and a JSON schema as parameters',
      );
    }
    return tool.name;
  });
  const twice = names.findIndex((name, i) => names.indexOf(name) < i);
  if (twice >= 0) {
    throw refuse(
      `was given tools[${twice}] with the name ${formatValue(names[twice])} of another tool; give each its own`,
    );
  }
  const isKnown =
    choice === 'auto' ||
    choice === 'none' ||
    choice === 'required' ||
    (isRecord(choice) && names.includes(choice['name'] as string));
  if (!isKnown) {
    throw refuse(
      `was given toolChoice ${formatValue(choice)}; allowed are 'auto', 'none', 'required' and ` +
        `{ name } of one of its tools: ${names.join(', ')}`,
    );
  }
}

function isTool(tool: unknown): tool is ChatTool {
  if (!isRecord(tool)) {
    return false;
  }
  const { name, description, parameters, ...others } = tool;
  return (
    typeof name === 'string' &&
    NAME.test(name) &&
    (description === undefined || typeof description === 'string') &&
    (parameters === undefined || isRecord(parameters)) &&
    Object.keys(others).length === 0
  );
}
