import { readFile } from 'node:fs/promises';
import {
  InvalidInputError,
  InvalidServingError,
  type PreprocessContext,
  RequestTooLargeError,
  type ServingDefinition,
  type ServingOptions,
  ServingLoadError,
  type Steps,
} from '../../index.js';
import { asTask } from '../../encoding/task-kind.js';
import { type Fetching } from '../../doors/models.js';
import { isRecord, oneOf, type Rules, whole } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { scriptOfThread } from '../../encoding/entry-script.js';
import { AddedTokens, isToken } from './added-tokens.js';
import { type AnswerFormat, formOf, type ToolChoice } from './answer-form.js';
import { Chat, type ChatTool, checkVariables, type TemplateVariables } from './chat.js';
import {
  type AnswerDefaults,
  answerDefaultsIn,
  generationSettings,
  NO_LIMIT,
} from './generation-settings.js';
import type { GeneratedText, GeneratorFiles, PromptRow } from './generator.js';
import { GRAMMAR_PACKAGE, grammarLibrary } from './grammar-engine.js';
import { vocabularyTypeOf } from './token-texts.js';
import type { Repository } from './repository.js';
import { ofSteps, refuseUnknown, type TaskModelOptions } from './task-model.js';
import { isText, type TextFacts, TextModel } from './text-model.js';
import type { TextFiles, Tokens } from './text-tokenizer.js';
import { tokenizing } from './tokenizing.js';
import type { CallFrame, ToolCall } from './tool-calls.js';

/** Options of one answer. */
export interface GenerationOptions {
  /**
   * Most tokens of the answer.
   *
   * @default generation_config.json's, or else what the prompt leaves of the serving's `maxTokens`
   */
  readonly maxTokens?: number;
  /**
   * Randomness, up to 2: 0 takes the likeliest token, 1 draws by the model's own probabilities.
   *
   * @default with `do_sample` in generation_config.json its temperature, or 1; or else 0
   */
  readonly temperature?: number;
  /**
   * Number of the likeliest tokens to draw from.
   *
   * @default generation_config.json's, or else all, and 64 with `topP`
   */
  readonly topK?: number;
  /**
   * Draws among the fewest tokens, within `topK`, whose probabilities together reach this share:
   * above 0, up to 1.
   *
   * @default generation_config.json's, or else 1
   */
  readonly topP?: number;
  /**
   * Draws no token of less than this share of the likeliest token's probability: from 0 to 1.
   *
   * @default generation_config.json's, or else 0
   */
  readonly minP?: number;
  /**
   * Makes tokens of the prompt and the answer less likely, above 1 and up to 10, or likelier, above 0
   * and below 1.
   *
   * @default generation_config.json's, or else 1: no effect
   */
  readonly repetitionPenalty?: number;
  /**
   * Makes the answer's tokens less likely, or likelier below 0: from -2 to 2.
   *
   * @default 0
   */
  readonly presencePenalty?: number;
  /**
   * Makes each of the answer's tokens less likely by its count, or likelier below 0: from -2 to 2.
   *
   * @default 0
   */
  readonly frequencyPenalty?: number;
  /**
   * Seed: the same whole number draws the same tokens.
   *
   * @default random
   */
  readonly seed?: number;
  /**
   * Strings before which the answer ends: at most 16, of at most 256 characters each. A special
   * token of the model, such as a chat turn's end, ends it where the model writes it.
   *
   * @default none
   */
  readonly stop?: string | readonly string[];
  /**
   * Tokens that end this answer in addition to the serving's, at most 16: numbers, or texts of the
   * tokenizer's added tokens.
   *
   * @default none
   */
  readonly endTokens?: readonly (number | string)[];
  /**
   * Gives pieces the log-probability of each token.
   *
   * @default false
   */
  readonly logprobs?: boolean;
  /**
   * Form of the answer: `'json'` for an object in JSON, or JSON that fits a JSON schema, on one line.
   * An answer of `maxTokens` tokens may end before. Needs `@mlc-ai/web-xgrammar`.
   *
   * @default any text
   */
  readonly format?: AnswerFormat;
}

/** Message of a conversation. */
export interface ChatMessage {
  /** Role that the model's chat template knows, such as `system`, `user`, `assistant` or `tool`. */
  readonly role: string;
  /** Text, possibly empty. For a tool, its result. */
  readonly content: string;
  /** Calls of an earlier answer, as its reply has them. */
  readonly toolCalls?: readonly PastToolCall[];
  /** Id of the call that the tool answers. */
  readonly toolCallId?: string;
  /** Name of the tool. */
  readonly name?: string;
}

/** Call of an earlier answer. */
export interface PastToolCall extends ToolCall {
  /** Id of your own, by which a result names its call. */
  readonly id?: string;
}

/** Text that the model continues. */
export interface TextToContinue extends GenerationOptions {
  /** Text, not empty. */
  readonly prompt: string;
}

/** Conversation that the model answers, laid out by its chat template. */
export interface ChatToAnswer extends GenerationOptions {
  /** Messages, from 1 to 1,024, oldest first. */
  readonly messages: readonly ChatMessage[];
  /**
   * Tools that the model may call, at most 128. The reply has calls as `toolCalls`, whose arguments
   * fit the tool's schema: answer them with messages of the role `tool`. Needs
   * `@mlc-ai/web-xgrammar`, and a model whose chat template knows tools.
   *
   * @default none
   */
  readonly tools?: readonly ChatTool[];
  /**
   * Calls tools as the model chooses, never, at least once, or one tool by its name.
   *
   * @default 'auto'
   */
  readonly toolChoice?: ToolChoice;
  /**
   * Allows several calls in an answer, if the model's chat template lays out several.
   *
   * @default true
   */
  readonly parallelToolCalls?: boolean;
  /**
   * Variables of the chat template, such as `enable_thinking`.
   *
   * @default the serving's
   */
  readonly templateVariables?: TemplateVariables;
}

/** Model of {@link textGeneration}, in a thread or a process. */
export type GeneratorModel =
  | string
  | URL
  | (Omit<TaskModelOptions, 'blockingLimit' | 'checkRows' | 'isolation'> & {
      /** @default 'thread' */
      readonly isolation?: 'thread' | 'process';
    });

/** Options of {@link textGeneration} and of any serving. */
export interface TextGenerationOptions extends Omit<
  ServingOptions<string | TextToContinue | ChatToAnswer, GeneratedText>,
  'preprocess' | 'postprocess' | 'postprocessStream' | 'batchSize' | 'batchTimeout'
> {
  /** Decoder with its cache, and its tokenizer. */
  readonly model: GeneratorModel;
  /**
   * Most answers that a partition writes at the same time.
   *
   * @default 8
   */
  readonly batchSize?: number;
  /**
   * Most tokens of a prompt and its answer together.
   *
   * @default the limit in the model's files, at most 4096
   */
  readonly maxTokens?: number;
  /**
   * Most tokens of new prompts to read before the answers continue. Fewer delay new answers, and
   * disturb the others less.
   *
   * @default 64
   */
  readonly prefill?: number;
  /**
   * Jinja template of conversations.
   *
   * @default the model's `chat_template`
   */
  readonly chatTemplate?: string;
  /**
   * Variables of the chat template for all calls, such as `{ enable_thinking: false }`. A call's own
   * come first.
   *
   * @default {}
   */
  readonly templateVariables?: TemplateVariables;
  /**
   * Tokens that end an answer: numbers, or texts of the tokenizer's added tokens, such as
   * `<|im_end|>`.
   *
   * @default the model's own
   */
  readonly endTokens?: readonly (number | string)[];
  /**
   * Refuses texts with the tokenizer's special tokens with an InvalidInputError, or lets the model
   * read such tokens. Refusing keeps users from writing for the system.
   *
   * @default 'refuse'
   */
  readonly specialTokens?: 'refuse' | 'accept';
}

const MOST_USUAL = 4096;

const rules: Rules = {
  batchSize: whole(1, 1024),
  prefill: whole(1, 2 ** 20),
  chatTemplate: { check: isText, allowed: 'a Jinja template' },
  templateVariables: { check: isRecord, allowed: 'an object of values by name' },
  endTokens: {
    check: (value) => Array.isArray(value) && value.length > 0 && value.every(isToken),
    allowed: 'a list of numbers of tokens and texts of added tokens',
  },
  specialTokens: oneOf('refuse', 'accept'),
  overlap: { check: () => false, allowed: 'nothing here: a prompt is never cut' },
  tooLong: { check: () => false, allowed: 'nothing here: a prompt is never cut' },
};

interface Facts {
  /** How the model writes calls of tools, if its template says so. */
  readonly frame: CallFrame | undefined;
  readonly variables: TemplateVariables;
  readonly endTokens: readonly number[];
  readonly defaults: AnswerDefaults;
  readonly added: AddedTokens;
  readonly template: string | undefined;
  readonly tokenizer: object;
  readonly tokenizerConfig: object;
}

/** Limits messages: each takes time of the thread that lays them all out. */
const MOST_MESSAGES = 1024;

/**
 * Serving that continues texts and answers conversations, by a decoder on a CPU. It writes answers
 * together, one token each at a time; each begins when a place is free, and is the one that its
 * prompt gets alone. A stream gives it in pieces.
 *
 * Suits small models. For large ones, and for a GPU, use a server such as vLLM.
 *
 * Needs `@huggingface/tokenizers`, and `@huggingface/jinja` if the model has a chat template.
 *
 * @throws InvalidServingError for an invalid option
 * @experimental
 */
export function textGeneration(
  options: TextGenerationOptions,
): ServingDefinition<string | TextToContinue | ChatToAnswer, GeneratedText> {
  const { batchSize = 8, prefill = 64 } = options;
  const own: Generation = new TextModel('textGeneration', options, rules, {
    tokenizer: (files, limits, { template }) => tokenizing(files, limits, template),
    facts: (files) => factsIn(files, options),
    // The thread checks the model itself.
    output: ([first]) => first!,
    usual: MOST_USUAL,
    isNeverCut: true,
    ofModel: ofSteps,
  });
  const prepare = own.forSteps(({ name, file, facts }) => {
    const { endTokens, tokenizer, tokenizerConfig } = facts.own;
    const generation: GeneratorFiles = {
      owner: own.owner,
      name,
      model: file,
      tokenizer,
      tokenizerConfig,
      endTokens,
      session: own.sessionOfSteps,
      places: batchSize,
      context: facts.tokenizer.limits.maxTokens,
      prefill,
    };
    return { generation };
  });
  const definition: ServingDefinition<
    string | TextToContinue | ChatToAnswer,
    GeneratedText,
    GeneratedText | Steps<GeneratedText>,
    unknown,
    TextFacts<Facts>
  > = {
    warmUp: [{ prompt: 'a text to warm up', maxTokens: 2 }],
    ...own.others,
    batchSize,
    model: {
      useFile: scriptOfThread('extensions/tasks/generator'),
      isolation: own.isolationOfSteps,
      prepare,
      sequence: {},
    },
    async preprocess(input, context) {
      const { facts } = context;
      const asked = readInput(own.owner, input);
      const form = formOf(asked, facts.own.frame, refusing(own.owner));
      if (form.grammar !== undefined) {
        checkGrammars(own.owner, facts.own.tokenizer);
      }
      const { ids } = await tokensOf(own.owner, context, asked, form.tools);
      return { batch: { ...rowOf(own.owner, ids, asked, facts), ...form } };
    },
    postprocess: (output) => (Array.isArray(output) ? joined(output) : output),
  };
  return asTask('text-generation', definition);
}

const refusing =
  (owner: string) =>
  (what: string): InvalidInputError =>
    new InvalidInputError(`${owner} ${what}`);

/** @throws InvalidInputError if answers can't be held to grammars */
function checkGrammars(owner: string, tokenizer: object): void {
  if (grammarLibrary() === undefined) {
    throw new InvalidInputError(
      `${owner} cannot hold its answer to a form without the package ${GRAMMAR_PACKAGE}; install it: ` +
        `npm install ${GRAMMAR_PACKAGE}`,
    );
  }
  if (vocabularyTypeOf(tokenizer) === undefined) {
    throw new InvalidInputError(
      `${owner} cannot hold its answer to a form, since ${GRAMMAR_PACKAGE} cannot read its tokenizer; ` +
        'ask for any text',
    );
  }
}

function joined(pieces: readonly GeneratedText[]): GeneratedText {
  const logprobs = pieces.flatMap((piece) => piece.logprobs ?? []);
  const toolCalls = pieces.flatMap((piece) => piece.toolCalls ?? []);
  return {
    ...pieces.at(-1)!,
    text: pieces.map(({ text }) => text).join(''),
    tokens: pieces.flatMap(({ tokens }) => tokens),
    ...(pieces.at(-1)!.logprobs && { logprobs }),
    ...(toolCalls.length > 0 && { toolCalls }),
  };
}

type Asked = GenerationOptions & Partial<TextToContinue & ChatToAnswer>;

const RANGES: readonly (readonly [keyof GenerationOptions, number, number, string])[] = [
  ['maxTokens', 1, Infinity, 'a whole number of 1 or more'],
  ['temperature', 0, 2, 'a number from 0 to 2'],
  ['topK', 1, Infinity, 'a whole number of 1 or more'],
  ['topP', Number.MIN_VALUE, 1, 'a number above 0 and up to 1'],
  ['minP', 0, 1, 'a number from 0 to 1'],
  ['presencePenalty', -2, 2, 'a number from -2 to 2'],
  ['frequencyPenalty', -2, 2, 'a number from -2 to 2'],
  ['repetitionPenalty', Number.MIN_VALUE, 10, 'a number above 0 and up to 10'],
  ['seed', -Infinity, Infinity, 'a whole number'],
];

const WHOLE = new Set(['maxTokens', 'topK', 'seed']);

const OF_CHATS = ['tools', 'toolChoice', 'parallelToolCalls', 'templateVariables'] as const;

const NAMES = [
  ...RANGES.map(([name]) => name),
  'prompt',
  'messages',
  'stop',
  'endTokens',
  'logprobs',
  'format',
  ...OF_CHATS,
];

/** @throws InvalidInputError for an invalid input or option */
function readInput(owner: string, input: unknown): Asked {
  const asked: unknown = typeof input === 'string' ? { prompt: input } : input;
  const refuse = refusing(owner);
  if (
    !isRecord(asked) ||
    !(asked['prompt'] === undefined
      ? isChat(asked['messages'])
      : isText(asked['prompt']) && asked['messages'] === undefined)
  ) {
    throw refuse(
      'takes a text that is not empty, { prompt }, or { messages: [{ role, content }] }, and was ' +
        `given ${formatValue(input)}`,
    );
  }
  refuseUnknown(owner, asked, NAMES);
  const ofChats = OF_CHATS.find((name) => asked[name] !== undefined);
  if (ofChats !== undefined && asked['prompt'] !== undefined) {
    throw refuse(
      `was given ${ofChats} with { prompt }, which no chat template lays out; call it with { messages }`,
    );
  }
  checkRanges(asked, refuse);
  const { stop, endTokens = [], logprobs = false } = asked;
  if (!(Array.isArray(endTokens) && endTokens.length <= MOST_STOPS && endTokens.every(isToken))) {
    throw refuse(
      `was given endTokens ${formatValue(endTokens)}; allowed are at most ${MOST_STOPS} numbers of ` +
        'tokens and texts of added tokens',
    );
  }
  if (Array.isArray(stop) && stop.length > MOST_STOPS) {
    throw refuse(`was given ${stop.length} stop strings; allowed are ${MOST_STOPS}`);
  }
  if (!(stop === undefined || isStop(stop) || (Array.isArray(stop) && stop.every(isStop)))) {
    throw refuse(
      `was given stop ${formatValue(stop)}; allowed are strings of 1 to ${LONGEST_STOP} characters`,
    );
  }
  const { templateVariables = {} } = asked;
  if (!isRecord(templateVariables)) {
    throw refuse(
      `was given templateVariables ${formatValue(templateVariables)}; allowed is an object of values by name`,
    );
  }
  if (typeof logprobs !== 'boolean') {
    throw refuse(`was given logprobs ${formatValue(logprobs)}; allowed is true or false`);
  }
  return asked;
}

/**
 * @param nameOf how the error names an option
 * @throws the error of `refuse` for a number out of range
 */
function checkRanges(
  asked: Record<string, unknown>,
  refuse: (what: string) => Error,
  nameOf = (name: string): string => name,
): void {
  for (const [name, least, most, allowed] of RANGES) {
    const value = asked[name];
    const isAllowed =
      typeof value === 'number' &&
      value >= least &&
      value <= most &&
      (!WHOLE.has(name) || Number.isInteger(value));
    if (value !== undefined && !isAllowed) {
      throw refuse(`was given ${nameOf(name)} ${formatValue(value)}; allowed is ${allowed}`);
    }
  }
}

/** Limits: the thread of all answers compares each token with all of them. */
const MOST_STOPS = 16;
const LONGEST_STOP = 256;

/** Half of a character would cut a text within it. */
function isStop(value: unknown): value is string {
  return isText(value) && value.length <= LONGEST_STOP && !/\p{Surrogate}/u.test(value);
}

function isChat(messages: unknown): messages is readonly ChatMessage[] {
  return (
    Array.isArray(messages) &&
    messages.length > 0 &&
    messages.every(
      (message) =>
        isRecord(message) &&
        isText(message['role']) &&
        typeof message['content'] === 'string' &&
        areCalls(message['toolCalls']) &&
        ['toolCallId', 'name'].every((each) => isOptionalText(message[each])),
    )
  );
}

const isOptionalText = (value: unknown): boolean => value === undefined || isText(value);

function areCalls(calls: unknown): boolean {
  return (
    calls === undefined ||
    (Array.isArray(calls) &&
      calls.every(
        (call) =>
          isRecord(call) &&
          isText(call['name']) &&
          isRecord(call['arguments']) &&
          isOptionalText(call['id']),
      ))
  );
}

type Generation = TextModel<string | TextToContinue | ChatToAnswer, GeneratedText, Facts>;

function tokensOf(
  owner: string,
  context: PreprocessContext<TextFacts<Facts>>,
  { prompt, messages, templateVariables }: Asked,
  tools: readonly ChatTool[] | undefined,
): Tokens | Promise<Tokens> {
  const { tokenizer, own } = context.facts;
  if (prompt !== undefined) {
    return tokenizer.encode(context, prompt);
  }
  if (own.template === undefined) {
    throw new InvalidInputError(
      `${owner} cannot answer messages: its model has no chat template; give the option ` +
        'chatTemplate, or call it with { prompt }',
    );
  }
  if (messages!.length > MOST_MESSAGES) {
    throw new RequestTooLargeError(
      `${owner} answers conversations of at most ${MOST_MESSAGES} messages, and one has ` +
        `${messages!.length}; leave out the oldest`,
    );
  }
  return tokenizer.encodeChat(context, {
    messages: messages!.map(messageOf),
    tools,
    variables: { ...own.variables, ...templateVariables },
  });
}

/** Drops a caller's other properties. */
function messageOf({ role, content, toolCalls, toolCallId, name }: ChatMessage): ChatMessage {
  return {
    role,
    content,
    ...(toolCalls && {
      toolCalls: toolCalls.map((call) => ({
        ...(call.id !== undefined && { id: call.id }),
        name: call.name,
        arguments: call.arguments,
      })),
    }),
    ...(toolCallId !== undefined && { toolCallId }),
    ...(name !== undefined && { name }),
  };
}

function rowOf(
  owner: string,
  ids: readonly number[],
  asked: Asked,
  { tokenizer, own: { added, defaults } }: TextFacts<Facts>,
): PromptRow {
  const { stop = [], endTokens = [], logprobs = false } = asked;
  const {
    temperature = defaults.temperature,
    topK = defaults.topK,
    topP = defaults.topP,
    minP = defaults.minP,
    presencePenalty = 0,
    frequencyPenalty = 0,
    repetitionPenalty = defaults.repetitionPenalty,
  } = asked;
  const context = tokenizer.limits.maxTokens;
  if (ids.length === 0) {
    throw new InvalidInputError(`${owner}: the prompt has no tokens; give another one`);
  }
  const left = context - ids.length;
  if (left < 1) {
    throw new RequestTooLargeError(
      `${owner}: the prompt has ${ids.length} tokens, and leaves no room for an answer: both ` +
        `together may have ${context}; shorten it`,
    );
  }
  const refuse = refusing(owner);
  const { texts, tokens } = added.endsOf(typeof stop === 'string' ? [stop] : stop, refuse);
  const { maxNewTokens, maxLength = context } = defaults;
  const usual = maxNewTokens ?? Math.max(1, maxLength - ids.length);
  return {
    ids,
    maxTokens: Math.min(asked.maxTokens ?? usual, left),
    sampling: {
      temperature,
      topP,
      minP,
      presencePenalty,
      frequencyPenalty,
      topK: topK ?? (topP < 1 ? 64 : NO_LIMIT),
      repetitionPenalty,
      seed: asked.seed ?? Math.floor(Math.random() * 2 ** 31),
    },
    stops: texts,
    endTokens: [...tokens, ...endTokens.map((token) => added.idOf(token, refuse))],
    logprobs,
  };
}

async function factsIn(
  files: TextFiles,
  { name, chatTemplate, templateVariables: variables = {}, endTokens: own }: TextGenerationOptions,
): Promise<Facts> {
  const { repository, config, tokenizerJson, ofTokenizer, fetching } = files;
  const generation = await generationSettings(repository, config, fetching);
  const refuseFile = (what: string): Error =>
    new ServingLoadError(
      `Serving "${name}" ${what}. It comes from generation_config.json of ${repository.name}; ` +
        'correct the file',
    );
  const defaults = answerDefaultsIn(generation, refuseFile);
  checkRanges(
    { ...defaults },
    refuseFile,
    // Files write top_p.
    (option) => option.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
  );
  const added = new AddedTokens(tokenizerJson, config['vocab_size']);
  const refuse = (what: string): Error => new InvalidServingError(`Serving "${name}" ${what}`);
  const stated = generation['eos_token_id'] ?? config['eos_token_id'];
  const endTokens = own
    ? own.map((token) => added.idOf(token, refuse))
    : endTokensIn(repository.name, stated);
  if (endTokens.length === 0) {
    throw new ServingLoadError(
      `The files of ${repository.name} don't state which token ends an answer (eos_token_id in ` +
        'generation_config.json or config.json); add it, or give the option endTokens',
    );
  }
  const template = chatTemplate ?? (await templateIn(repository, ofTokenizer, fetching));
  // Fails the start if it is invalid.
  const chat =
    template === undefined
      ? undefined
      : await Chat.of({ owner: name, name: repository.name, template, ofTokenizer });
  checkVariables(variables, template ?? '', refuse);
  return {
    frame: frameOf(chat, added),
    variables,
    endTokens,
    defaults,
    added,
    template,
    tokenizer: tokenizerJson,
    tokenizerConfig: ofTokenizer,
  };
}

/** @throws ServingLoadError for what is no number of a token */
function endTokensIn(name: string, stated: unknown): readonly number[] {
  const ids: readonly unknown[] = [stated ?? []].flat();
  if (!ids.every((id) => typeof id === 'number')) {
    throw new ServingLoadError(
      `The files of ${name} have eos_token_id ${formatValue(stated)}; allowed is a token's number, or a ` +
        'list of them; correct the file',
    );
  }
  return ids;
}

/** Undefined, too, if special tokens frame calls: an answer's text leaves them out. */
function frameOf(chat: Chat | undefined, { special }: AddedTokens): CallFrame | undefined {
  const frame = chat?.callFrame;
  const parts = frame ? Object.values(frame) : [];
  const isLost = [...special].some((token) =>
    parts.some((part: string | undefined) => part?.includes(token)),
  );
  return isLost ? undefined : frame;
}

/** Template in its own file, or in tokenizer_config.json as a text or named list. */
async function templateIn(
  repository: Repository,
  { chat_template: given }: Record<string, unknown>,
  fetching: Fetching,
): Promise<string | undefined> {
  const file = await repository.fetch('chat_template.jinja', fetching);
  if (file !== undefined) {
    return typeof file === 'string' ? readFile(file, 'utf8') : Buffer.from(file).toString();
  }
  if (Array.isArray(given)) {
    const usual: unknown = given.find((each) => isRecord(each) && each['name'] === 'default');
    return isRecord(usual) ? String(usual['template']) : undefined;
  }
  return typeof given === 'string' ? given : undefined;
}
