import { InvalidInputError } from '../../index.js';
import { formatValue } from '../../internal.js';

/** A message of a conversation, as a chat template gets it. */
interface Message {
  readonly role: string;
  readonly content: string;
}

/** Roles that every conversation may have. */
const USUAL: ReadonlySet<string> = new Set(['system', 'user', 'assistant']);

/**
 * The messages with roles that the template knows: `developer`, as newer clients name it, counts as
 * `system` unless the template names it.
 *
 * @throws InvalidInputError for a role that the template does not name
 */
export function withKnownRoles(
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
 * Checks that the template writes the content of each message, with a mark in the place of each.
 *
 * @throws InvalidInputError for a message that the template leaves out
 */
export function refuseLeftOut(
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
