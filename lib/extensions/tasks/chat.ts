import { createContext, Script } from 'node:vm';
import { InvalidInputError, ServingLoadError } from '../../index.js';
import { isRecord } from '../../doors/options.js';
import { formatValue, messageOf } from '../../doors/text.js';
import { placed, type TextTokenizer, type Tokens } from './text-tokenizer.js';
import { type CallFrame, callFrameOf, type ToolCall } from './tool-calls.js';

export interface Message {
  readonly role: string;
  readonly content: string;
  readonly toolCalls?: readonly (ToolCall & { readonly id?: string | undefined })[] | undefined;
  readonly toolCallId?: string | undefined;
  readonly name?: string | undefined;
}

/** Texts and values that a template lays out. */
export interface Conversation {
  readonly messages: readonly Message[];
  readonly tools?: readonly ChatTool[] | undefined;
  readonly variables?: TemplateVariables | undefined;
}

/** Variables of a chat template by name: values in JSON. */
export type TemplateVariables = Readonly<Record<string, unknown>>;

/** Function that a model may call. */
export interface ChatTool {
  /** Name, of at most 64 letters, digits, dots, underscores and dashes. */
  readonly name: string;
  /** What it does, for the model. */
  readonly description?: string | undefined;
  /** JSON schema of its arguments; without one it has none. */
  readonly parameters?: object | undefined;
}

/** Milliseconds of a template's work, far more than usual. */
const MOST_RENDERING = 2000;

interface Template {
  render(values: object): string;
}

interface ParsedTemplate extends Template {
  /** Syntax tree. */
  readonly parsed: object;
}

interface ChatFiles {
  readonly owner: string;
  readonly name: string;
  /** Jinja text. */
  readonly template: string;
  readonly ofTokenizer: Record<string, unknown>;
}

export class Chat {
  private constructor(
    private readonly files: ChatFiles,
    private readonly template: Template,
  ) {}

  /** @throws ServingLoadError for an invalid template, and without the library */
  static async of(files: ChatFiles): Promise<Chat> {
    const { Template } = await loadLibrary();
    try {
      const template = new Template(files.template);
      mendStrips(template.parsed);
      return new Chat(files, withinTime(template));
    } catch (cause) {
      throw new ServingLoadError(
        `The chat template of ${files.name} is invalid: ${messageOf(cause)}`,
        { cause },
      );
    }
  }

  /**
   * @throws InvalidInputError for messages or tools that the template or the tokenizer refuses
   * @throws RequestTooLargeError for too many tokens
   */
  encode(conversation: Conversation, tokenizer: TextTokenizer): Tokens {
    const { owner, template } = this.files;
    const { messages, tools, variables = {} } = conversation;
    checkVariables(variables, template, (what) => new InvalidInputError(`${owner} ${what}`));
    for (const [place, text] of textsOf(conversation)) {
      try {
        tokenizer.checkText(text);
      } catch (cause) {
        throw placed(place, cause);
      }
    }
    // Drops other properties, which are a caller's own and not checked.
    const known = { messages: withKnownRoles(owner, messages, template), tools, variables };
    const text = this.render(known);
    refuseLeftOut(owner, known, (marked) => this.render(marked));
    return { ids: tokenizer.encodeWritten(text), types: [] };
  }

  /** Texts around the model's calls of tools, if its template lays out any. */
  get callFrame(): CallFrame | undefined {
    const user = { role: 'user', content: 'Hi' };
    const tool = { name: 'a_tool', description: 'None', parameters: { type: 'object' } };
    return callFrameOf(({ content, toolCalls }) => {
      const answer = { role: 'assistant', content, ...(toolCalls.length > 0 && { toolCalls }) };
      const results = toolCalls.map(({ id, name }) => ({
        role: 'tool',
        content: '1',
        toolCallId: id,
        name,
      }));
      // The last answer may have more than text, such as thoughts.
      const messages = [user, answer, ...results, { role: 'assistant', content: 'Hm' }, user];
      return this.render({ messages, tools: [tool] });
    });
  }

  private render({ messages, tools, variables }: Conversation): string {
    const { owner, ofTokenizer } = this.files;
    try {
      return this.template.render({
        ...variables,
        ...namedTokens(ofTokenizer),
        [STRIPPED]: stripped,
        // Python's templates compare them with `none`.
        tools: tools?.map((tool) => ({ type: 'function', function: tool })) ?? null,
        documents: null,
        messages: messages.map(templateMessage),
        add_generation_prompt: true,
      });
    } catch (cause) {
      throw new InvalidInputError(
        `${owner}: the chat template of its model refuses these messages: ${messageOf(cause)}`,
        { cause },
      );
    }
  }
}

/** Name that no template can write. */
const STRIPPED = 'stripped text';
const STRIPS: readonly unknown[] = ['strip', 'lstrip', 'rstrip'];

/**
 * Calls `stripped` for `text.strip('characters')`, whose argument the library ignores: it would
 * strip all blanks, as of indented code.
 */
function mendStrips(node: object): void {
  for (const part of Object.values(node) as readonly unknown[]) {
    if (typeof part === 'object' && part !== null) {
      mendStrips(part);
    }
  }
  const { type, callee, args } = node as Record<string, unknown>;
  const { object, property } = isRecord(callee) ? callee : {};
  const method = isRecord(property) ? property['value'] : undefined;
  if (
    type === 'CallExpression' &&
    STRIPS.includes(method) &&
    Array.isArray(args) &&
    args.length > 0
  ) {
    Object.assign(node, {
      callee: { type: 'Identifier', value: STRIPPED },
      args: [object, { type: 'StringLiteral', value: method }, ...(args as readonly unknown[])],
    });
  }
}

/** Text without these characters at its ends, or without blanks, as in Python. */
function stripped(text: unknown, method: string, characters: unknown): string {
  if (typeof text !== 'string') {
    throw new TypeError(`${method} was called on ${formatValue(text)}, which is no text`);
  }
  const isKept = (one: string): boolean =>
    typeof characters === 'string' ? !characters.includes(one) : one.trim() !== '';
  const all = Array.from(text);
  const end = method === 'lstrip' ? all.length : all.findLastIndex(isKept) + 1;
  const start = method === 'rstrip' ? 0 : all.findIndex(isKept);
  return start < 0 ? '' : all.slice(start, end).join('');
}

/** Message as templates of Hugging Face's models read it. */
function templateMessage({ role, content, toolCalls, toolCallId, name }: Message): object {
  return {
    role,
    content,
    ...(toolCalls && {
      tool_calls: toolCalls.map(({ id, name: called, arguments: given }) => ({
        ...(id !== undefined && { id }),
        type: 'function',
        function: { name: called, arguments: given },
      })),
    }),
    ...(toolCallId !== undefined && { tool_call_id: toolCallId }),
    ...(name !== undefined && { name }),
  };
}

/** Characters of a caller's texts. */
export function charactersOf(conversation: Conversation): number {
  let sum = 0;
  for (const [, text] of textsOf(conversation)) {
    sum += text.length;
  }
  return sum;
}

/** A caller's texts with their places. */
function* textsOf({
  messages,
  tools = [],
  variables = {},
}: Conversation): Generator<readonly [place: string, text: string]> {
  for (const [
    i,
    { role, content, toolCalls = [], toolCallId = '', name = '' },
  ] of messages.entries()) {
    yield [`messages[${i}].role`, role];
    yield [`messages[${i}].content`, content];
    yield [`messages[${i}].toolCallId`, toolCallId];
    yield [`messages[${i}].name`, name];
    for (const [j, call] of toolCalls.entries()) {
      yield [`messages[${i}].toolCalls[${j}]`, JSON.stringify(call)];
    }
  }
  for (const [i, tool] of tools.entries()) {
    yield [`tools[${i}]`, JSON.stringify(tool)];
  }
  for (const [name, value] of Object.entries(variables)) {
    yield [`templateVariables.${name}`, JSON.stringify(value) ?? ''];
  }
}

/** Variables that we set. */
const OWN = /^(?:messages|tools|documents|add_generation_prompt|.*_token)$/;

/** @throws the error of `refuse` for a variable that the template does not read */
export function checkVariables(
  variables: TemplateVariables,
  template: string,
  refuse: (what: string) => Error,
): void {
  for (const name of Object.keys(variables)) {
    if (
      OWN.test(name) ||
      !/^[A-Za-z_]\w*$/.test(name) ||
      !new RegExp(`\\b${name}\\b`).test(template)
    ) {
      throw refuse(
        `was given the template variable ${formatValue(name)}, which ` +
          (OWN.test(name) ? 'it sets itself' : "its model's chat template does not read"),
      );
    }
  }
}

async function loadLibrary(): Promise<{ readonly Template: new (text: string) => ParsedTemplate }> {
  try {
    return (await import('@huggingface/jinja')) as {
      readonly Template: new (text: string) => ParsedTemplate;
    };
  } catch (cause) {
    throw new ServingLoadError(
      'The chat template of textGeneration needs @huggingface/jinja, which cannot be loaded; ' +
        'install it: npm install @huggingface/jinja',
      { cause },
    );
  }
}

/** Node ends any script in time, even a template that loops forever. */
function withinTime(template: Template): Template {
  const script = new Script('template.render(values)');
  const variables: Record<string, unknown> = createContext({ template });
  return {
    render(values) {
      variables['values'] = values;
      const text: unknown = script.runInContext(variables, { timeout: MOST_RENDERING });
      variables['values'] = undefined;
      return String(text);
    },
  };
}

/** Tokens such as `bos_token`: a text, or an object with its content. */
function namedTokens(config: Record<string, unknown>): Record<string, unknown> {
  // Python leaves null tokens undefined.
  const tokens = Object.entries(config).filter(
    ([name, token]) => name.endsWith('_token') && token !== null,
  );
  return Object.fromEntries(
    tokens.map(([name, token]) => [name, isRecord(token) ? token['content'] : token]),
  );
}

/** Roles that every conversation may have. */
const USUAL: ReadonlySet<string> = new Set(['system', 'user', 'assistant']);

/**
 * Messages with roles that the template knows. Newer clients' `developer` counts as `system` unless
 * the template names it.
 *
 * @throws InvalidInputError for an unknown role
 */
function withKnownRoles(
  owner: string,
  messages: readonly Message[],
  template: string,
): readonly Message[] {
  const knows = (role: string): boolean =>
    template.includes(`'${role}'`) || template.includes(`"${role}"`);
  return messages.map((message, i) => {
    const { role, content, toolCalls, toolCallId, name } = message;
    if (USUAL.has(role) || knows(role)) {
      return { role, content, toolCalls, toolCallId, name };
    }
    if (role === 'developer') {
      return { role: 'system', content };
    }
    throw new InvalidInputError(
      `${owner}: messages[${i}] has the role ${formatValue(role)}, which its model's chat template ` +
        'does not know; use system, user or assistant',
    );
  });
}

const markOf = (part: string, i: number): string => `${part}-${i}-of-a-conversation`;
const isBlank = ({ content }: Message): boolean => content.trim() === '';

/**
 * Checks by marks that the template writes each message's content and calls, and each tool.
 *
 * @throws InvalidInputError for a part left out
 */
function refuseLeftOut(
  owner: string,
  { messages, tools, variables }: Conversation,
  render: (conversation: Conversation) => string,
): void {
  const text = render({
    messages: messages.map((each, i) => ({
      ...each,
      content: isBlank(each) ? each.content : markOf('content', i),
      toolCalls: each.toolCalls?.map((call) => ({ ...call, name: markOf('calls', i) })),
    })),
    tools: tools?.map((tool, i) => ({ ...tool, name: markOf('tool', i) })),
    variables,
  });
  const isLeftOut = (part: string, i: number): boolean => !text.includes(markOf(part, i));
  const leftOut = messages.findIndex(
    (each, i) =>
      (!isBlank(each) && isLeftOut('content', i)) ||
      (each.toolCalls && each.toolCalls.length > 0 && isLeftOut('calls', i)),
  );
  if (leftOut >= 0) {
    throw new InvalidInputError(
      `${owner}: the chat template of its model leaves out messages[${leftOut}], of the role ` +
        `${formatValue(messages[leftOut]!.role)}; put its content in another message, or in another place`,
    );
  }
  if (tools?.some((_, i) => isLeftOut('tool', i))) {
    throw new InvalidInputError(
      `${owner}: the chat template of its model leaves out tools; use a model that knows them, or ` +
        'describe them in a message',
    );
  }
}
