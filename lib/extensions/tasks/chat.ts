import { createContext, Script } from 'node:vm';
import { InvalidInputError, ServingLoadError } from '../../index.js';
import { isRecord } from '../../doors/options.js';
import { formatValue, messageOf } from '../../doors/text.js';
import { placed, type TextTokenizer, type Tokens } from './text-tokenizer.js';

export interface Message {
  readonly role: string;
  readonly content: string;
}

/** Milliseconds of a template's work, far more than usual. */
const MOST_RENDERING = 2000;

interface Template {
  render(values: object): string;
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
      return new Chat(files, withinTime(new Template(files.template)));
    } catch (cause) {
      throw new ServingLoadError(
        `The chat template of ${files.name} is invalid: ${messageOf(cause)}`,
        { cause },
      );
    }
  }

  /**
   * @throws InvalidInputError for messages that the template or the tokenizer refuses
   * @throws RequestTooLargeError for too many tokens
   */
  encode(messages: readonly Message[], tokenizer: TextTokenizer): Tokens {
    const { owner, template } = this.files;
    messages.forEach((message, i) => {
      for (const part of ['role', 'content'] as const) {
        try {
          tokenizer.checkText(message[part]);
        } catch (cause) {
          throw placed(`messages[${i}].${part}`, cause);
        }
      }
    });
    // Drops other properties, which are a caller's own and not checked.
    const known = withKnownRoles(owner, messages, template);
    const text = this.render(known);
    refuseLeftOut(owner, known, (marked) => this.render(marked));
    return { ids: tokenizer.encodeWritten(text), types: [] };
  }

  private render(messages: readonly Message[]): string {
    const { owner, ofTokenizer } = this.files;
    try {
      return this.template.render({
        ...namedTokens(ofTokenizer),
        // Python's templates compare them with `none`.
        tools: null,
        documents: null,
        messages,
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

async function loadLibrary(): Promise<{ readonly Template: new (text: string) => Template }> {
  try {
    return (await import('@huggingface/jinja')) as {
      readonly Template: new (text: string) => Template;
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
  return messages.map(({ role, content }, i) => {
    if (USUAL.has(role) || knows(role)) {
      return { role, content };
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

const markOf = (i: number): string => `content-${i}-of-a-message`;
const isBlank = ({ content }: Message): boolean => content.trim() === '';

/**
 * Checks by marks that the template writes each message's content.
 *
 * @throws InvalidInputError for a message left out
 */
function refuseLeftOut(
  owner: string,
  messages: readonly Message[],
  render: (messages: readonly Message[]) => string,
): void {
  const text = render(
    messages.map((each, i) => (isBlank(each) ? each : { role: each.role, content: markOf(i) })),
  );
  const leftOut = messages.findIndex((each, i) => !isBlank(each) && !text.includes(markOf(i)));
  if (leftOut >= 0) {
    throw new InvalidInputError(
      `${owner}: the chat template of its model leaves out messages[${leftOut}], of the role ` +
        `${formatValue(messages[leftOut]!.role)}; put its content in another message, or in another place`,
    );
  }
}
