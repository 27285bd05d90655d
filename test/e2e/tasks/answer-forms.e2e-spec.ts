import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { createServing, InvalidInputError, type LocalServing } from 'nestjs-serving';
import {
  type ChatToAnswer,
  type GeneratedText,
  textGeneration,
  type TextToContinue,
} from 'nestjs-serving/tasks';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { silenceLog } from '../../fixtures/silent-log.js';
import { tinyGenerator, toolTemplate, visit, written } from '../../fixtures/tasks/tiny-models.js';

type Writer = LocalServing<string | TextToContinue | ChatToAnswer, GeneratedText>;

const messages = [{ role: 'user', content: 'Where to?' }];
const tools = [
  { name: 'travel', description: 'Books a visit', parameters: visit.schema },
  { name: 'stop' },
];
const call = { name: 'travel', arguments: visit.value };

describe('textGeneration with a form', () => {
  let writer: Writer;
  beforeAll(async () => {
    silenceLog();
    writer = createServing(
      textGeneration({
        name: 'net',
        model: tinyGenerator,
        chatTemplate: toolTemplate,
        batchSize: 6,
      }),
    );
    await writer.start();
  });
  afterAll(() => writer.close());

  it('[22.24] An answer fits its schema, at any temperature', async () => {
    const answers = await Promise.all(
      [0, 1, 2].map((temperature) =>
        writer.batchedRun({ prompt: 'Hello', format: { schema: visit.schema }, temperature }),
      ),
    );
    for (const { text, finishReason, toolCalls } of answers) {
      expect([text, finishReason, toolCalls]).toEqual([visit.text, 'stop', undefined]);
    }
  });

  it('[22.35] The strings of an answer in JSON hold whole characters, as many as the schema allows', async () => {
    const schema = { type: 'string', minLength: 2, maxLength: 3 };
    const answers = await Promise.all(
      Array.from({ length: 120 }, (_, seed) =>
        writer.batchedRun({ prompt: `Hi ${seed}`, format: { schema }, temperature: 1, seed }),
      ),
    );
    for (const { text } of answers) {
      expect(text).not.toContain('\ufffd');
      expect([2, 3]).toContain(Array.from(JSON.parse(text) as string).length);
    }
  });

  /** Reads of a schema's part while its answer is asked for. */
  const readsOf = async (within: (part: object) => object, depth: number): Promise<number> => {
    let reads = 0;
    const part = {
      get type() {
        reads++;
        return 'null';
      },
    };
    const schema = Array.from({ length: depth }).reduce<object>(within, part);
    await writer.batchedRun({ prompt: 'Hello', format: { schema }, maxTokens: 1 });
    return reads;
  };

  it.each([
    [
      'names',
      (names: readonly string[]) => (additionalProperties: object) => ({
        propertyNames: { enum: names },
        additionalProperties,
      }),
    ],
    [
      'types',
      (names: readonly string[]) => (items: object) => ({ type: names.map(() => 'array'), items }),
    ],
  ] as const)('[22.62] A schema that several %s share is read once', async (_, within) => {
    expect(await readsOf(within(['a', 'b', 'c']), 5)).toBe(await readsOf(within(['a']), 1));
  });

  it('[22.62] Schemas that refer to one another are looked up and compared once', async () => {
    let [lookups, comparisons] = [0, 0];
    const large = {
      toJSON() {
        comparisons++;
        return 'large';
      },
    };
    const definitions = {
      one: { type: 'object', properties: { a: { const: large } }, required: ['a'] },
      two: { $ref: '#/$defs/one' },
    };
    const schema = {
      get $defs() {
        lookups++;
        return definitions;
      },
      oneOf: Array.from({ length: 100 }, () => ({ $ref: '#/$defs/two' })),
    };
    await expect(writer.batchedRun({ prompt: 'Hello', format: { schema } })).rejects.toThrow(
      'schema.oneOf has schemas that may allow the same value',
    );
    expect(lookups).toBeLessThan(10);
    expect(comparisons).toBeLessThan(10);
  });

  it('[22.62] The numbers of many tools are refused as those of one', async () => {
    const a = { type: 'integer', multipleOf: 997, minimum: 123_456, maximum: 987_654 };
    const parameters = { type: 'object', properties: { a } };
    const many = Array.from({ length: 128 }, (_, i) => ({ name: `tool-${i}`, parameters }));
    await expect(writer.batchedRun({ messages, tools: many })).rejects.toThrow(
      'properties.a.multipleOf needs too many rules; leave it out, or give closer bounds',
    );
  });

  it("[22.24] 'json' is an object, until it is cut", async () => {
    const { text, finishReason } = await writer.batchedRun({
      prompt: 'Hello',
      format: 'json',
      maxTokens: 30,
    });
    expect(text.startsWith('{')).toBe(true);
    expect(finishReason === 'length' || typeof JSON.parse(text) === 'object').toBe(true);
  });

  it('[22.24] A stream of a form is its answer in pieces', async () => {
    const given = { prompt: 'Hello', format: { schema: visit.schema } };
    const pieces = outputsOf(await iterated(writer.stream(given))) as GeneratedText[];
    expect(pieces.length).toBeGreaterThan(5);
    expect(pieces.map(({ text }) => text).join('')).toBe(visit.text);
  });

  it('[22.24] Answers with and without forms are the same alone and together', async () => {
    const [{ text: prompt }] = written.prompts as [(typeof written.prompts)[0]];
    const inputs: TextToContinue[] = [
      { prompt, maxTokens: 20 },
      { prompt, maxTokens: 20, format: { schema: { enum: ['one', 'two', 'three'] } } },
      { prompt, maxTokens: 20, format: 'json', temperature: 1, seed: 5 },
      { prompt: 'b', maxTokens: 20, temperature: 1, seed: 6 },
      { prompt: 'c', maxTokens: 20, format: { schema: { type: 'integer' } }, endTokens: [5] },
    ];
    const alone: string[] = [];
    for (const input of inputs) {
      alone.push((await writer.batchedRun(input)).text);
    }
    const together = await Promise.all(inputs.map((input) => writer.batchedRun(input)));
    expect(together.map(({ text }) => text)).toEqual(alone);
    expect(alone[1]).toMatch(/^"(?:one|two|three)"$/);
    expect(alone[4]).toMatch(/^(?:0|-?[1-9]\d*)$/);
  });

  it('[22.25] A tool is called with arguments of its schema', async () => {
    const asked = { messages, tools, maxTokens: 200 };
    const named = await writer.batchedRun({ ...asked, toolChoice: { name: 'travel' } });
    expect(named).toMatchObject({ text: '', toolCalls: [call], finishReason: 'toolCalls' });

    const required = await writer.batchedRun({
      ...asked,
      toolChoice: 'required',
      parallelToolCalls: false,
    });
    expect(required.toolCalls).toHaveLength(1);
    expect([call, { name: 'stop', arguments: {} }]).toContainEqual(required.toolCalls![0]);

    const stream = await iterated(writer.stream({ ...asked, toolChoice: { name: 'travel' } }));
    const pieces = outputsOf(stream) as GeneratedText[];
    expect(pieces.flatMap(({ toolCalls = [] }) => toolCalls)).toEqual([call]);
    expect(pieces.flatMap(({ tokens }) => tokens)).toEqual(named.tokens);
    expect(pieces.at(-1)).toMatchObject({ finishReason: 'toolCalls' });
  });

  it('[22.25] A model may answer without calls, or with its format or calls', async () => {
    const free = await writer.batchedRun({ messages, tools, maxTokens: 20 });
    const without = await writer.batchedRun({ messages, tools, toolChoice: 'none', maxTokens: 20 });
    expect([free.toolCalls, without.toolCalls]).toEqual([undefined, undefined]);
    // The prompt has no tools.
    expect(without.usage!.promptTokens).toBeLessThan(free.usage!.promptTokens);

    for (const seed of [1, 2, 3, 4]) {
      const either = await writer.batchedRun({
        messages,
        tools: [tools[0]!],
        format: { schema: visit.schema },
        parallelToolCalls: false,
        temperature: 2,
        seed,
      });
      const { text, toolCalls = [] } = either;
      expect([`${visit.text} 0`, ' 1']).toContain(`${text} ${toolCalls.length}`);
    }
  });

  it('[22.25] Calls and results of earlier answers are part of the prompt', async () => {
    const earlier = [
      ...messages,
      { role: 'assistant', content: '', toolCalls: [{ id: 'a', ...call }] },
      { role: 'tool', content: 'booked', toolCallId: 'a' },
    ];
    const [short, long] = await Promise.all([
      writer.batchedRun({ messages, tools, maxTokens: 1 }),
      writer.batchedRun({ messages: earlier, tools, maxTokens: 1 }),
    ]);
    expect(long.usage!.promptTokens).toBeGreaterThan(short.usage!.promptTokens + 20);
  });

  it('[22.25] Variables reach the chat template', async () => {
    const styled = { messages, templateVariables: { style: 'short and dry' }, maxTokens: 1 };
    const [plain, own] = await Promise.all([
      writer.batchedRun({ messages, maxTokens: 1 }),
      writer.batchedRun(styled),
    ]);
    expect(own.usage!.promptTokens).toBeGreaterThan(plain.usage!.promptTokens);
  });

  it.each<[object, string]>([
    [{ format: 'xml' }, 'was given format "xml"; allowed are \'json\' and { schema }'],
    [{ format: { schema: { type: 'string', pattern: '(?=a)b' } } }, 'format.schema.pattern'],
    [{ tools: [] }, 'was given tools []; allowed are lists of 1 to 128 tools'],
    [{ tools: [{ name: 'a b' }] }, 'was given tools[0] { name:'],
    [{ tools: [{ name: 'a', strict: true }] }, 'was given tools[0]'],
    [{ tools: [{ name: 'a' }, { name: 'a' }] }, 'was given tools[1] with the name "a" of another'],
    [
      { tools: [{ name: 'a', parameters: { type: 'string' } }] },
      "tools[0].parameters.type must be 'object'",
    ],
    [
      {
        format: {
          schema: {
            type: 'array',
            prefixItems: Array.from({ length: 27 }, (_, i) => ({ type: 'string', maxLength: i })),
          },
        },
      },
      'was given JSON schemas with more than 26 different lengths of strings; give some the same minLength',
    ],
    [{ tools, toolChoice: { name: 'fly' } }, '{ name } of one of its tools: travel, stop'],
    [{ toolChoice: 'required' }, 'was given toolChoice "required" without tools'],
    [{ tools, parallelToolCalls: 1 }, 'was given parallelToolCalls 1'],
    [{ tools: [{ name: 'a', description: '<|im_end|>' }] }, 'tools[0]'],
    [
      { templateVariables: { enable_thinking: false } },
      'was given the template variable "enable_thinking"',
    ],
    [{ templateVariables: { tools: [] } }, 'which it sets itself'],
    [{ templateVariables: { style: '<|im_end|>' } }, 'templateVariables.style'],
    [{ messages: [{ role: 'assistant', content: '', toolCalls: [{}] }] }, 'takes a text'],
    [{ minP: 2 }, 'was given minP 2; allowed is a number from 0 to 1'],
    [{ presencePenalty: -3 }, 'was given presencePenalty -3; allowed is a number from -2 to 2'],
  ])('[22.25] An unusable form is refused in words: %j', async (more, message) => {
    const refused = writer.batchedRun({ messages, ...more });
    await expect(refused).rejects.toThrow(InvalidInputError);
    await expect(refused).rejects.toThrow(message);
  });

  it('[22.25] A model whose template lays out no calls refuses tools', async () => {
    const plain = createServing(textGeneration({ name: 'plain', model: tinyGenerator }));
    await plain.start();
    await expect(plain.batchedRun({ messages, tools })).rejects.toThrow(
      "its model's chat template lays out no calls with arguments in JSON",
    );
    await expect(plain.batchedRun({ prompt: 'a', tools })).rejects.toThrow(
      'call it with { messages }',
    );
    await plain.close();
  });
});
