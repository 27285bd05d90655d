import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Chat } from '../../../lib/extensions/tasks/chat.js';
import {
  type CallFrame,
  CallReader,
  type ToolCall,
} from '../../../lib/extensions/tasks/tool-calls.js';
import { toolTemplate } from '../../fixtures/tasks/tiny-models.js';

const hermes: CallFrame = {
  begin: '<tool_call>\n{"name": "',
  middle: '", "arguments": ',
  end: '}\n</tool_call>',
  between: '\n',
};

/** Writes a turn as Llama does: one call, alone, and its result in another role. */
const llama = `{% for message in messages %}<|start|>{{ 'ipython' if message.role == 'tool' else message.role }}<|header|>
{% if message.tool_calls %}{% if message.tool_calls | length != 1 %}{{ raise_exception('One call at once') }}{% endif %}{"name": "{{ message.tool_calls[0].function.name }}", "parameters": {{ message.tool_calls[0].function.arguments | tojson }}}{% else %}{{ message.content }}{% endif %}<|eot|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|header|>
{% endif %}{{ tools | tojson }}`;

const templates: readonly [string, string, CallFrame | undefined][] = [
  ['Hermes and Qwen', toolTemplate, hermes],
  [
    'Llama',
    llama,
    { begin: '{"name": "', middle: '", "parameters": ', end: '}', between: undefined },
  ],
  [
    'a template with ids, which the model would have to invent',
    toolTemplate.replace('tojson }}}\n', 'tojson }}, "id": "{{ call.id }}"}\n'),
    undefined,
  ],
  [
    'arguments outside JSON',
    toolTemplate.replace(
      '{{ call.function.arguments | tojson }}',
      '{% for key, value in call.function.arguments.items() %}<{{ key }}>{{ value }}{% endfor %}',
    ),
    undefined,
  ],
  ['a template without tools', toolTemplate.replace('message.tool_calls or []', '[]'), undefined],
  ['a template that raises', "{{ raise_exception('no') }}", undefined],
];

const call = fc.record({
  name: fc.stringMatching(/^[a-z_]{1,8}$/),
  arguments: fc.dictionary(
    fc.string({ maxLength: 4 }),
    fc.oneof(
      fc.constantFrom('}', '"}\n</tool_call>', '<tool_call>', '\\'),
      fc.jsonValue({ maxDepth: 1 }),
    ),
    { maxKeys: 3 },
  ),
}) as fc.Arbitrary<ToolCall>;

describe('Calls of tools', () => {
  it.each(templates)('[22.25] The frame of a template: %s', async (_, template, frame) => {
    const chat = await Chat.of({ owner: 'A', name: 'b', template, ofTokenizer: {} });
    expect(chat.callFrame).toEqual(frame);
  });

  it('[22.25] A reader takes calls out of a text in any pieces', () => {
    const text = fc.constantFrom('', 'Well', 'a < b\n', '<tool', '{"name": "x"}');
    fc.assert(
      fc.property(
        fc.array(fc.tuple(text, call), { maxLength: 3 }),
        text,
        fc.infiniteStream(fc.integer({ min: 1, max: 9 })),
        (parts, after, sizes) => {
          const { begin, middle, end } = hermes;
          const all =
            parts
              .map(
                ([before, { name, arguments: own }]) =>
                  `${before}${begin}${name}${middle}${JSON.stringify(own)}${end}`,
              )
              .join('') + after;
          const reader = new CallReader(hermes);
          const calls: ToolCall[] = [];
          let read = '';
          for (let at = 0; at < all.length;) {
            const { value: size } = sizes.next();
            read += reader.push(all.slice(at, at + size));
            calls.push(...reader.take());
            at += size;
          }
          read += reader.end();

          expect(calls).toEqual(
            parts.map(([, own]) => ({
              ...own,
              arguments: JSON.parse(JSON.stringify(own.arguments)) as object,
            })),
          );
          expect(read).toBe([...parts.map(([before]) => before), after].join(''));
        },
      ),
    );
  });

  it('[22.25] Blank text around calls is no text, and a cut call is', () => {
    const one = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>';
    const reader = new CallReader(hermes);
    expect(reader.push(`${one}\n${one}\n`) + reader.end()).toBe('');
    expect(reader.take()).toHaveLength(2);

    const cut = new CallReader(hermes);
    expect(cut.push(one.slice(0, -3)) + cut.end()).toBe(one.slice(0, -3));
    expect(cut.hasCalls).toBe(false);
  });
});
