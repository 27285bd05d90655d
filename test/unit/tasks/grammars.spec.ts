import { afterEach, describe, expect, it, jest } from '@jest/globals';
import { InvalidInputError, ServingUnavailableError } from 'nestjs-serving';
import { formOf } from '../../../lib/extensions/tasks/answer-form.js';
import { Grammars, type HeldAnswer } from '../../../lib/extensions/tasks/grammars.js';

const END = '</s>';
const characters = Array.from({ length: 0x5f }, (_, i) => String.fromCharCode(0x20 + i));
const vocabulary = [...characters, '\n', '<tool_call>', '\n{"', END];
const idOf = new Map(vocabulary.map((text, id) => [text, id]));
const end = idOf.get(END)!;
const tokenizer = {
  model: { vocab: Object.fromEntries(vocabulary.map((text, id) => [text, id])) },
  added_tokens: [{ id: end, content: END, special: true }],
  decoder: { type: 'ByteFallback' },
};

const frame = {
  begin: '<tool_call>\n{"name": "',
  middle: '", "arguments": ',
  end: '}\n</tool_call>',
  between: '\n',
};
const tools = [
  { name: 'a' },
  { name: 'b', parameters: { type: 'object', properties: { c: { type: 'null' } } } },
];
const refuse = (what: string): Error => new Error(what);

const allows = ({ mask }: HeldAnswer, token: string): boolean => {
  const id = idOf.get(token)!;
  return ((mask![id >> 5]! >>> (id & 31)) & 1) === 1;
};

/** The place of the first token that does not fit, if any. */
async function misfit(
  answer: HeldAnswer,
  ...tokens: readonly string[]
): Promise<string | undefined> {
  for (const [i, token] of tokens.entries()) {
    await answer.ready();
    if (!allows(answer, token)) {
      return tokens.slice(0, i + 1).join('');
    }
    if (token !== END) {
      answer.accept(idOf.get(token)!);
    }
  }
  answer.close();
  return undefined;
}

describe('A thread of grammars', () => {
  let grammars: Grammars;
  afterEach(() => grammars.end());

  const start = (mostTime?: number): void => {
    grammars = new Grammars({ owner: 'A test', tokenizer, endTokens: [end] }, mostTime);
  };

  const CALL = [
    '<tool_call>',
    '\n{"',
    ...Array.from('name": "b", "arguments": {"c": null}}\n</tool_call>'),
  ];

  it('[22.25] A model that may call tools writes any text, and valid calls', async () => {
    start();
    const { grammar } = formOf({ tools }, frame, refuse);
    const free = (): HeldAnswer => grammars.hold(grammar!, [end]);

    expect(await misfit(free(), ...Array.from('No <tool, {"name": 1}'), END)).toBeUndefined();
    expect(
      await misfit(free(), ...Array.from('Yes '), ...CALL, ...CALL, ...Array.from(' so'), END),
    ).toBeUndefined();
    expect(await misfit(free(), '<tool_call>', ' ')).toBe('<tool_call> ');
    expect(await misfit(free(), '<tool_call>', END)).toBe(`<tool_call>${END}`);
    expect(await misfit(free(), '<tool_call>', '\n{"', ...Array.from('name": "c'))).toContain('c');
    expect(await misfit(free(), ...CALL.slice(0, -20), END)).toContain(END);
  });

  it('[22.25] A model that must call a tool writes calls alone', async () => {
    start();
    const required = formOf({ tools, toolChoice: 'required' }, frame, refuse).grammar!;
    const one = formOf({ tools, toolChoice: { name: 'b' } }, frame, refuse).grammar!;
    expect(await misfit(grammars.hold(required, [end]), 'N')).toBe('N');
    expect(
      await misfit(grammars.hold(required, [end]), ...CALL, '\n', ...CALL, END),
    ).toBeUndefined();
    expect(await misfit(grammars.hold(one, [end]), ...CALL, END)).toBeUndefined();
    expect(await misfit(grammars.hold(one, [end]), ...CALL, '\n')).toContain('\n');
    expect(
      await misfit(grammars.hold(one, [end]), '<tool_call>', '\n{"', ...Array.from('name": "a')),
    ).toContain('a');
  });

  it('[22.24] End tokens of a call end its answer where the grammar ends', async () => {
    start();
    const answer = grammars.hold('root ::= "ab"', [idOf.get('x')!]);
    expect(await misfit(answer, 'x')).toBe('x');
    expect(
      await misfit(grammars.hold('root ::= "ab"', [idOf.get('x')!]), 'a', 'b', 'x'),
    ).toBeUndefined();
  });

  it('[22.24] A grammar that takes too long fails its answer, and ends the thread', async () => {
    // The thread starts in more time than that.
    start(1);
    const first = grammars.hold('root ::= "a"', [end]);
    const second = grammars.hold('root ::= "b"', [end]);
    await Promise.all([first.ready(), second.ready()]);

    expect(first.failure).toBeInstanceOf(InvalidInputError);
    expect(first.failure!.message).toContain('takes more than 0.001 seconds to prepare');
    expect(second.failure).toBeInstanceOf(ServingUnavailableError);
    expect(second.failure!.message).toContain('has ended; call again');
  });

  it('[22.64] A grammar that takes too long fails its answer, however many others come and leave', () => {
    jest.useFakeTimers();
    start(1000);
    const grammar = 'root ::= "a"';
    const slow = grammars.hold(grammar, [end]);
    jest.advanceTimersByTime(600);
    const other = grammars.hold(grammar, [end]);
    grammars.hold(grammar, [end]).close();
    jest.advanceTimersByTime(600);
    expect(slow.failure).toBeInstanceOf(InvalidInputError);
    expect(other.failure).toBeInstanceOf(ServingUnavailableError);

    const left = grammars.hold(grammar, [end]);
    jest.advanceTimersByTime(600);
    const next = grammars.hold(grammar, [end]);
    left.close();
    jest.advanceTimersByTime(600);
    expect(next.failure).toBeInstanceOf(ServingUnavailableError);
    jest.useRealTimers();
  });

  it('[22.24] An invalid grammar fails its answer, and the next starts a thread', async () => {
    start();
    const broken = grammars.hold('root ::= nix', [end]);
    await broken.ready();
    expect(broken.failure!.message).toContain('A test could not hold its answer to a form');
    expect(await misfit(grammars.hold('root ::= "a"', [end]), 'a', END)).toBeUndefined();
  });
});
