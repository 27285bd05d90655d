import { afterAll, describe, expect, it, jest } from '@jest/globals';
import { isIPv6 } from 'node:net';
import { Ajv2020 } from 'ajv/dist/2020.js';
import * as fc from 'fast-check';
import { InvalidInputError } from 'nestjs-serving';
import { Grammars, type HeldAnswer } from '../../../lib/extensions/tasks/grammars.js';
import { withPatterns } from '../../../lib/extensions/tasks/text-patterns.js';
import { withLengths } from '../../../lib/extensions/tasks/token-texts.js';
import { grammarOf, jsonRules } from '../../../lib/extensions/tasks/json-grammar.js';

const END = '</s>';

/** Characters, and tokens that cross the borders of JSON's parts. */
const vocabulary = [
  ...Array.from({ length: 0x5f }, (_, i) => String.fromCharCode(0x20 + i)),
  '\n',
  '\t',
  '\u0001',
  'é',
  '漢',
  '😀',
  '": "',
  '", "',
  '{"',
  '"}',
  ', ',
  '],',
  '"ab',
  'ab',
  'b",',
  'ab"',
  '""',
  '["a',
  '": "b',
  '", "b',
  '{}, "ab',
  'b": 1, "a": "ab',
  '\\", "ab',
  'a\\',
  '\\"',
  '\\u0',
  END,
];
const idOf = new Map(vocabulary.map((text, id) => [text, id]));
const end = idOf.get(END)!;

const tokenizer = {
  model: { vocab: Object.fromEntries(vocabulary.map((text, id) => [text, id])) },
  decoder: { type: 'ByteFallback' },
};

const refuse = (place: string, what: string): Error => new Error(`${place} ${what}`);
const grammarFor = (schema: unknown): string => grammarOf(jsonRules(schema, 'schema', refuse));

/** True for a day that there is; JavaScript takes February 30 for March 2. */
function isDate(text: string): boolean {
  const date = new Date(`${text}T00:00Z`);
  return !Number.isNaN(date.getTime()) && date.toISOString().startsWith(text);
}

const formats: Readonly<Record<string, (text: string) => boolean>> = {
  date: isDate,
  time: (text) => /^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/.test(text),
  'date-time': (text) => isDate(text.slice(0, 10)) && /^T\d\d:\d\d:\d\d/.test(text.slice(10)),
  uuid: (text) => /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/.test(text),
  ipv4: (text) =>
    text.split('.').length === 4 && text.split('.').every((part) => Number(part) < 256),
  uuid4: (text) => /^[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/.test(text),
  duration: (text) => /^P(?!$)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?$/.test(text),
  ipv6: (text) => isIPv6(text),
  email: (text) => /^[^\s@]+@[^\s@]+\.[a-z]+$/i.test(text),
  uri: (text) => URL.canParse(text),
  hostname: (text) => /^[a-z\d](?:[a-z\d.-]*[a-z\d])?$/i.test(text),
};
/** Tightest ones. */
const lengthsOfFormats = [
  ['date', 10, 10],
  ['time', 9, 21],
  ['date-time', 20, 32],
  ['uuid', 36, 36],
  ['uuid4', 36, 36],
  ['duration', 3, 17],
  ['ipv6', 15, 39],
  ['ipv4', 7, 15],
  ['email', 6, 209],
  ['uri', 6, 380],
  ['hostname', 1, 114],
] as const;
const ajv = new Ajv2020({ strict: false, formats, multipleOfPrecision: 9 });

const number = fc
  .record({
    type: fc.constantFrom('number', 'integer'),
    lower: fc.constantFrom('minimum', 'exclusiveMinimum', undefined),
    upper: fc.constantFrom('maximum', 'exclusiveMaximum', undefined),
    from: fc.oneof(
      fc.integer({ min: -30, max: 30 }),
      fc.integer({ min: -99_999, max: 99_999 }),
      fc.double({ min: -20, max: 20, noNaN: true }),
    ),
    width: fc.oneof(
      fc.integer({ min: 2, max: 12 }),
      fc.integer({ min: 2, max: 99_999 }),
      fc.double({ min: 2, max: 9, noNaN: true }),
    ),
    multipleOf: fc.constantFrom(undefined, 1, 2, 0.5, 0.01, 0.25, 1.5),
  })
  .map(({ type, lower, upper, from, width, multipleOf }) => ({
    type,
    // Wide enough for a multiple.
    ...(lower && { [lower]: from }),
    ...(upper && { [upper]: from + width + (multipleOf ?? 0) }),
    ...(multipleOf !== undefined && { multipleOf }),
  }));
/** Patterns of zod's formats, and others. */
const patterns: Readonly<Record<string, string>> = {
  email:
    "^(?:[A-Za-z0-9_'+\\-]+\\.)*[A-Za-z0-9_'+\\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$",
  date: '^\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|02-(?:0[1-9]|1\\d|2[0-8]))$',
  base64: '^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$',
  begins: '^a\\.b',
  letters: '^[a-zé漢]+$',
  word: '^[^\\s@]+$',
  dots: '^.*$',
  others: '^[^A-Za-z ]*$',
  lines: '^(.|\\n)*$',
  alternatives: '^(?:yes|no|perhaps)$|^\\d',
  escaped: '^[\\x00-\\x1f"\\\\]{1,3}$',
};

const text = fc.oneof(
  fc.constantFrom(...Object.values(patterns)).map((pattern) => ({ type: 'string', pattern })),
  fc
    .tuple(fc.constantFrom('letters', 'others', 'lines', 'dots'), fc.nat(3), fc.nat(3))
    .map(([name, minLength, more]) => ({
      type: 'string',
      pattern: patterns[name],
      minLength,
      maxLength: minLength + 1 + more,
    })),
  fc.constant({ type: 'string' }),
  fc.constantFrom(...lengthsOfFormats).map(([format, minLength, maxLength]) => ({
    type: 'string',
    format,
    minLength,
    maxLength,
  })),
  fc.tuple(fc.nat(4), fc.option(fc.nat(3), { nil: undefined })).map(([minLength, more]) => ({
    type: 'string',
    minLength,
    ...(more !== undefined && { maxLength: minLength + more }),
  })),
);
const value = fc.constantFrom<unknown>('a', 'b"c', 'd\\e', 'é\n', 5, -1.5, null, true, {
  a: [1, 'x y', {}],
});
const { schema } = fc.letrec<{ schema: unknown }>((tie) => ({
  schema: fc.oneof(
    { depthSize: 'small' },
    number,
    text,
    fc.constantFrom({ type: 'boolean' }, { type: 'null' }, { type: ['string', 'null'] }),
    fc.array(value, { minLength: 1, maxLength: 3 }).map((values) => ({ enum: values })),
    fc.tuple(tie('schema'), tie('schema')).map((anyOf) => ({ anyOf })),
    fc
      .record({ items: tie('schema'), minItems: fc.nat(2), more: fc.option(fc.nat(2)) })
      .map(({ items, minItems, more }) => ({
        type: 'array',
        items,
        minItems,
        ...(more !== null && { maxItems: minItems + more }),
      })),
    fc
      .tuple(tie('schema'), tie('schema'))
      .map((prefixItems) => ({ type: 'array', prefixItems, items: false, minItems: 2 })),
    tie('schema').map((more) => ({ type: 'object', additionalProperties: more })),
    fc
      .record({
        names: fc.subarray(['a', 'b"x', 'c d', 'é'], { minLength: 1 }),
        schemas: fc.array(tie('schema'), { minLength: 4, maxLength: 4 }),
        required: fc.array(fc.boolean(), { minLength: 4, maxLength: 4 }),
      })
      .map(({ names, schemas, required }) => ({
        type: 'object',
        properties: Object.fromEntries(names.map((name, i) => [name, schemas[i]])),
        required: names.filter((_, i) => required[i]),
        additionalProperties: false,
      })),
  ),
}));

const allows = ({ mask }: HeldAnswer, id: number): boolean =>
  ((mask![id >> 5]! >>> (id & 31)) & 1) === 1;

/** From 0 to 1, each as likely. */
const share = fc.noBias(fc.nat(9999).map((part) => part / 10_000));

/** JSON as on one line of a model's. */
const spaced = (given: unknown): string =>
  JSON.stringify(given, undefined, 1)
    .replaceAll(/\n\s*/g, ' ')
    .replaceAll(/([[{]) | ([\]}])/g, '$1$2');
const patternsOf = (count: number, isSame: boolean) => ({
  type: 'array',
  items: false,
  prefixItems: Array.from({ length: count }, (_, i) => ({
    type: 'string',
    pattern: `^a{${isSame ? 1 : i}}$`,
  })),
});

const kindOf = (kind: string, length: object) => ({
  properties: { kind: { const: kind }, text: { type: 'string', ...length } },
  required: ['kind', 'text'],
});

const lengthsOf = (count: number) => ({
  type: 'array',
  items: false,
  prefixItems: Array.from({ length: count }, (_, i) => ({ type: 'string', maxLength: i + 1 })),
});

function grammarOfLength(maxLength: number): string {
  const short = { type: 'string', maxLength };
  const items = { anyOf: [{ properties: {} }, short] };
  return grammarFor({ anyOf: [{ properties: { b: { type: 'integer' }, a: short } }, { items }] });
}

describe("A JSON schema's grammar", () => {
  const grammars = new Grammars({ owner: 'A test', tokenizer, endTokens: [end] });

  afterAll(() => grammars.end());

  /** A text that the grammar allows, which the draws choose. */
  async function walk(grammar: string, draw: () => number): Promise<string> {
    const answer = grammars.hold(grammar, [end]);
    const pieces: string[] = [];
    for (;;) {
      await answer.ready();
      expect(answer.failure).toBeUndefined();
      const allowed = vocabulary.flatMap((_, id) => (allows(answer, id) ? [id] : []));
      // Long texts end as soon as they can.
      const closing = [END, '"', '}', ']'].find((each) => allowed.includes(idOf.get(each)!));
      const choices = pieces.length > 60 && closing ? [idOf.get(closing)!] : allowed;
      const chosen = choices[Math.floor(draw() * choices.length)]!;
      if (chosen === end) {
        answer.close();
        return pieces.join('');
      }
      answer.accept(chosen);
      pieces.push(vocabulary[chosen]!);
    }
  }

  /** True if the grammar allows the text, by characters. */
  const accepts = (grammar: string, written: string): Promise<boolean> =>
    acceptsTokens(grammar, [...Array.from(written), END]);

  async function acceptsTokens(grammar: string, tokens: readonly string[]): Promise<boolean> {
    const answer = grammars.hold(grammar, [end]);
    try {
      for (const character of tokens) {
        await answer.ready();
        const id = idOf.get(character)!;
        expect(answer.failure).toBeUndefined();
        if (!allows(answer, id)) {
          return false;
        }
        if (id !== end) {
          answer.accept(id);
        }
      }
      return true;
    } finally {
      answer.close();
    }
  }

  it('[22.24] allows only JSON that fits the schema', async () => {
    await fc.assert(
      fc.asyncProperty(schema, fc.infiniteStream(share), async (given, draws) => {
        const found = await walk(grammarFor(given), () => draws.next().value);
        const parsed: unknown = JSON.parse(found);
        expect([given, parsed, ajv.validate(given as object, parsed)]).toEqual([
          given,
          parsed,
          true,
        ]);
      }),
      { numRuns: 150 },
    );
  });

  it('[22.24] allows each value that JavaScript writes on one line', async () => {
    const cases: readonly [object | true, ...unknown[]][] = [
      [true, null, 5, -0.25, 'a "text"', [1, [2]], { a: { b: [] } }],
      [{ type: 'integer', minimum: -12, maximum: 345 }, -12, -9, 0, 7, 99, 300, 345],
      [{ type: 'integer', exclusiveMinimum: 0 }, 1, 10, 999_999_999_999_999],
      [{ type: 'number', minimum: 0, maximum: 1 }, 0, 0.5, 1],
      [{ type: 'number', exclusiveMinimum: -2, exclusiveMaximum: 0 }, -1.5, -1, -0.5],
      [{ type: 'number', minimum: 0.1, maximum: 12.75 }, 0.1, 0.10000000000001, 1, 9.99, 12.75],
      [{ type: 'number', exclusiveMinimum: -1.5, maximum: -0.05 }, -1.49999999999999, -0.05],
      [{ type: 'integer', minimum: 0.5, maximum: 12.75 }, 1, 12],
      [{ type: 'number', minimum: 0, multipleOf: 0.01 }, 0, 0.01, 19.99, 9_999_999_999_999.99],
      [{ type: 'integer', multipleOf: 7 }, -49, 0, 7, 700, 999_999_999_999_994],
      [{ type: 'integer', multipleOf: 2.5 }, -5, 0, 10, 1005],
      [{ type: 'number', minimum: -1e300, maximum: 1e-7 }, -999_999_999_999_999, 0],
      [{ type: 'string', maxLength: 3 }, '', 'é漢😀', '"\\"'],
      [{ type: 'string', minLength: 1000, maxLength: 1001 }, 'a'.repeat(1000), 'é'.repeat(1001)],
      [
        {
          type: 'array',
          items: {
            anyOf: [
              { type: 'string', minLength: 2, maxLength: 9 },
              { properties: { code: { type: 'string', maxLength: 2 } } },
              { type: 'null' },
            ],
          },
        },
        ['ab', null, { code: '' }, { code: 'de' }, 'abcdefghi'],
      ],
      [
        { type: 'string', format: 'date' },
        '1900-02-28',
        '2000-02-29',
        '2024-02-29',
        '2023-04-30',
        '2023-12-31',
        '0104-02-29',
      ],
      [{ enum: ['a', 1, null, { b: [1, 2] }] }, 'a', 1, null, { b: [1, 2] }],
      [
        {
          $ref: '#/$defs/tree',
          $defs: { tree: { properties: { of: { items: { $ref: '#/$defs/tree' } } } } },
        },
        {},
        { of: [{}, { of: [] }] },
      ],
      [{ oneOf: [{ type: 'string' }, { type: 'integer' }] }, 'a', 1],
      [
        {
          oneOf: [{ $ref: '#/$defs/long' }, { $ref: '#/$defs/short' }],
          discriminator: { propertyName: 'kind' },
          $defs: {
            long: kindOf('long', { minLength: 30 }),
            short: kindOf('short', { maxLength: 3 }),
          },
        },
        { kind: 'long', text: 'a'.repeat(30) },
        { kind: 'short', text: 'abc' },
      ],
      [
        { prefixItems: [{ type: 'null' }], items: { type: 'integer' }, minItems: 2, maxItems: 3 },
        [null, 1],
        [null, 1, 2],
      ],
      [
        {
          type: 'object',
          propertyNames: { type: 'string', enum: ['a', 'b'] },
          additionalProperties: { type: 'integer' },
          required: ['b'],
        },
        { b: 1 },
        { a: 2, b: 1 },
      ],
      [
        {
          type: 'object',
          properties: { a: { type: 'null' }, b: { type: 'null' } },
          required: ['b'],
        },
        { b: null },
        { a: null, b: null },
      ],
      [{ type: 'string', format: 'email', pattern: patterns['email'] }, 'a.b@c.de', 'x@y.z.io'],
      [{ type: 'string', pattern: 'x"\\\\|y', minLength: 3 }, 'ax"\\', 'aya', 'éy😀'],
      [{ type: 'string', format: 'uri', minLength: 1, maxLength: 2083 }, 'https://a.de/b'],
      [{ type: 'string', pattern: '' }, '', 'a', '\n"'],
      [{ type: 'string', pattern: '\\_' }, '_', 'a_'],
    ];
    for (const [given, ...values] of cases) {
      const grammar = grammarFor(given);
      for (const each of values) {
        expect([given, each, await accepts(grammar, spaced(each))]).toEqual([given, each, true]);
      }
    }
  });

  it.each<[object, ...string[]]>([
    [{ type: 'integer', minimum: -12, maximum: 345 }, '-13', '346', '-0', '01', '1.0', '1e3'],
    [{ type: 'number', minimum: 0, maximum: 1 }, '1.5', '-0.5', '2'],
    [{ type: 'number', exclusiveMinimum: 0 }, '0', '0.0', '-1'],
    [{ type: 'number', minimum: 0.1, maximum: 12.75 }, '0.09', '0', '12.751', '13', '1.', '00.5'],
    [{ type: 'number', exclusiveMinimum: -1.5, maximum: -0.05 }, '-1.5', '-0.04', '-0', '0'],
    [{ type: 'integer', minimum: 0.5, maximum: 12.75 }, '0', '13', '1.5'],
    [{ type: 'number', multipleOf: 0.25 }, '0.1', '0.255', '1.3', '-0.2', '1e3'],
    [{ type: 'integer', multipleOf: 7 }, '1', '8', '70000000000000000', '7.0'],
    [{ type: 'integer', multipleOf: 2.5 }, '2.5', '2', '7'],
    [
      { type: 'string', format: 'date' },
      '"1900-02-29"',
      '"2023-02-29"',
      '"2023-11-31"',
      '"2024-02-30"',
      '"2023-13-01"',
    ],
    [{ type: 'string', format: 'date-time' }, '"2023-09-31T00:00:00Z"'],
    [{ type: 'string', maxLength: 1000 }, `"${'a'.repeat(1001)}"`],
    [{ type: 'string', maxLength: 1 }, '"\\u0041\\u0042"', '"ab"', '"\\"a"'],
    [{ type: 'string', minLength: 1000 }, `"${'a'.repeat(999)}"`],
    [{ type: 'string', minLength: 2 }, '"\\""', '"\\u0041\\u0042"', '"é"', '"😀"'],
    [{ type: 'array', items: { type: 'null' }, maxItems: 1000 }, `[${'null, '.repeat(1000)}null]`],
    [{ type: 'string', minLength: 2, maxLength: 2 }, '"a"', '"abc"', '"a\t"'],
    [
      { type: 'string', pattern: patterns['email']! },
      '"a@b"',
      '"a b@c.de"',
      '".a@c.de"',
      '"a@c.d"',
    ],
    [{ type: 'string', pattern: '^a+$', maxLength: 2 }, '""', '"aaa"', '"b"', '"a\\n"'],
    [{ type: 'string', pattern: '^[é]$' }, '"e"', '"漢"', '"éé"'],
    [{ type: 'string', pattern: '^.$' }, '"\\n"', '"aa"', '"\\u0061"'],
    [{ type: 'string' }, '"\t"', '"\\x"', '"\\ud83d"', '"'],
    [{ type: 'object', properties: {} }, '{"a": 1}'],
    [{ propertyNames: { const: 'a' }, additionalProperties: {} }, '{"b": 1}'],
    [{ prefixItems: [{}], items: { type: 'null' }, minItems: 2 }, '[1]', '[1, 2]'],
    [{ type: 'object', properties: { a: {} }, required: ['a'] }, '{}', '{"b": 1}', '{ "a": 1}'],
    [{ type: 'array', maxItems: 2, items: { type: 'null' } }, '[null, null, null]', '[null,null]'],
  ])('[22.24] %j allows nothing else', async (given, ...texts) => {
    const grammar = grammarFor(given);
    for (const each of texts) {
      expect([each, await accepts(grammar, each)]).toEqual([each, false]);
    }
  });

  it.each<[unknown, string]>([
    [false, 'schema is false; give a JSON schema that allows a value'],
    [{ type: 'text' }, 'schema.type is "text"; types are object, array'],
    [
      { type: 'string', pattern: '(' },
      'schema.pattern is "("; give a regular expression of at most',
    ],
    [{ type: 'string', pattern: 5 }, 'schema.pattern is 5; give a regular expression'],
    [{ type: 'string', pattern: 'a'.repeat(1001) }, 'of at most 1000 characters'],
    [{ properties: { a: { not: {} } } }, 'schema.properties.a.not is a keyword'],
    [{ type: 'integer', multipleOf: 0 }, 'schema.multipleOf is 0; give a number above 0'],
    [{ multipleOf: 2 }, 'schema.type is missing'],
    [{ type: 'number', multipleOf: Math.PI }, 'schema.multipleOf is 3.141592653589793; give a'],
    [{ type: 'integer', multipleOf: 9973 }, 'schema.multipleOf needs too many rules; leave it out'],
    [
      { type: 'integer', minimum: 1, maximum: 9, multipleOf: 10 },
      'schema.multipleOf leaves no number',
    ],
    [
      { type: 'object', additionalProperties: {}, propertyNames: { type: 'integer' } },
      'schema.propertyNames is a keyword',
    ],
    [{ type: 'integer', minLength: 2 }, 'schema.minLength does nothing beside its other keywords'],
    [{ type: 'number', minimum: '0.5' }, 'schema.minimum is "0.5"; give a number'],
    [{ type: 'integer', minimum: 3, maximum: 2 }, 'schema.maximum leaves no number'],
    [{ type: 'number', minimum: 1e15 }, 'schema.minimum leaves no number of up to 15 digits'],
    [{ type: 'string', format: 'color' }, 'schema.format is "color"; answers can be held to date'],
    [
      { type: 'string', format: 'uri', maxLength: 200 },
      'schema.format is "uri", with 6 to 380 characters; leave out lengths that allow fewer',
    ],
    [{ type: 'string', minLength: -1 }, 'schema.minLength is -1'],
    [{ type: 'string', maxLength: 1, minLength: 2 }, 'schema.maxLength is less than minLength'],
    [
      {
        anyOf: [
          { type: 'string', maxLength: 5 },
          { type: 'string', minLength: 6 },
        ],
      },
      'schema.anyOf[1] has strings of other lengths than the schemas before it; leave out a minLength',
    ],
    [
      {
        $defs: { long: { items: { type: 'string', minLength: 6 } } },
        properties: { a: { $ref: '#/$defs/long' } },
        anyOf: [{ $ref: '#/$defs/long' }, { items: { type: 'string', maxLength: 5 } }],
      },
      'schema.properties does nothing beside its other keywords',
    ],
    [
      {
        $defs: { long: { items: { type: 'string', minLength: 6 } } },
        anyOf: [{ $ref: '#/$defs/long' }, { items: { type: 'string', maxLength: 5 } }],
      },
      'schema.anyOf[1] has strings of other lengths',
    ],
    [{ type: 'array', maxItems: 1, minItems: 2 }, 'schema.maxItems is less than minItems'],
    [
      { type: 'array', prefixItems: [{}, {}], minItems: 1, maxItems: 1 },
      'schema.prefixItems has 2 items, which minItems and maxItems do not allow; answers have all',
    ],
    [{ type: 'array', prefixItems: [{}], minItems: 2 }, 'schema.prefixItems has 1 items, which'],
    [
      {
        type: 'object',
        propertyNames: { enum: ['a'] },
        additionalProperties: { type: 'x' },
      },
      'schema.additionalProperties.type is "x"',
    ],
    [
      { oneOf: [{ $ref: '#/$defs/a' }, { $ref: '#/$defs/a' }], $defs: { a: { const: 1 } } },
      'schema.oneOf has schemas that may allow the same value',
    ],
    [{ type: 'object', required: ['a'] }, "schema.required is [ 'a' ]; give a list of names"],
    [
      { properties: { a: {} }, additionalProperties: { type: 'null' } },
      'schema.additionalProperties',
    ],
    [{ allOf: [{ type: 'string' }, { minLength: 1 }] }, 'schema.allOf has several schemas'],
    [
      { oneOf: [{ type: 'number' }, { type: 'integer' }] },
      'schema.oneOf has schemas that may allow',
    ],
    [{ anyOf: [] }, 'schema.anyOf is []; give a list'],
    [{ enum: [1], const: 1 }, 'schema.const'],
    [{ enum: [1], type: 'string' }, 'schema.type allows none of its values'],
    [{ $ref: 'https://a.b/c' }, 'schema.$ref is "https://a.b/c"; refer to a part of this schema'],
    [{ $ref: '#/$defs/a' }, 'schema.$ref is "#/$defs/a", which this schema does not have'],
    [{ $ref: '#/%' }, 'schema.$ref is "#/%"; refer to a part of this schema'],
    [{ $ref: '#' }, 'schema.$ref refers to itself alone'],
    [
      { $ref: '#/$defs/a', $defs: { a: { $ref: '#/$defs/b' }, b: { $ref: '#/$defs/a' } } },
      'schema.$defs.a.$ref refers to itself alone',
    ],
    [{ $ref: '#/__proto__' }, 'which this schema does not have'],
    [{ enum: Array.from({ length: 9999 }, (_, i) => `value ${i}`) }, 'schema is too large'],
    [{ enum: Array.from({ length: 10_001 }, () => 1) }, 'schema has more than 10000 parts'],
    [
      Array.from({ length: 70 }).reduce<object>((items) => ({ type: 'array', items }), {}),
      'is nested more than 64 levels deep',
    ],
  ])('[22.24] A schema that no grammar holds is refused: %j', (given, message) => {
    expect(() => grammarFor(given)).toThrow(message);
  });

  it('[22.24] Very many different lengths in a schema are refused', () => {
    expect(withLengths(grammarFor(lengthsOf(26))).lengths).toHaveLength(26);
    expect(() => withLengths(grammarFor(lengthsOf(27)))).toThrow(
      'was given JSON schemas with more than 26 different lengths of strings; give some the same',
    );
  });

  it('[22.24] A pattern without the package that reads it says what to install', async () => {
    jest.doMock('refa', () => {
      throw new Error('Cannot find module');
    });
    const grammar = grammarFor({ type: 'string', pattern: 'a' });
    await expect(withPatterns(grammar)).rejects.toThrow(
      'schema.pattern is a keyword that needs the package refa; install it (npm install refa), or',
    );
    jest.dontMock('refa');
    expect(await withPatterns(grammar)).toContain('text-0-0 ::= ');
  });

  it('[22.24] Very many patterns in a schema are refused, and one that repeats counts once', async () => {
    await expect(withPatterns(grammarFor(patternsOf(33, false)))).rejects.toThrow(
      'schema.prefixItems[32].pattern makes the patterns of all strings too large; leave some out',
    );
    expect(await withPatterns(grammarFor(patternsOf(33, true)))).toContain('text-64-1 ::= ');
  });

  it('[22.24] Strings have the lengths of the schema, where tokens open and close several', async () => {
    const length = fc.tuple(fc.nat(3), fc.nat(3)).map(([minLength, more]) => ({
      type: 'string',
      minLength,
      maxLength: minLength + more,
    }));
    await fc.assert(
      fc.asyncProperty(length, length, fc.infiniteStream(share), async (one, other, draws) => {
        const given = {
          type: 'array',
          minItems: 2,
          maxItems: 4,
          items: { anyOf: [one, { properties: { a: other, b: {}, c: one }, required: ['a'] }] },
        };
        const isMixed = one.minLength > other.maxLength || other.minLength > one.maxLength;
        fc.pre(!isMixed);
        const found = await walk(grammarFor(given), () => draws.next().value);
        const parsed: unknown = JSON.parse(found);
        expect([found, ajv.validate(given, parsed)]).toEqual([found, true]);
      }),
      { numRuns: 100 },
    );
  });

  it.each([
    ['[', '{}, "ab'],
    ['{"', 'b": 1, "a": "ab'],
    ['["\\', '\\", "ab'],
  ])('[22.24] Behind %s, no token opens a string that is too long: %s', async (before, token) => {
    const tokens = [...Array.from(before), ...Array.from(token)];
    expect(await acceptsTokens(grammarOfLength(2), tokens)).toBe(true);
    expect(await acceptsTokens(grammarOfLength(1), tokens)).toBe(false);
    expect(await acceptsTokens(grammarOfLength(1), [...Array.from(before), token])).toBe(false);
  });

  it.each([
    [{ pattern: '^(?=.*a)b' }, 'is "^(?=.*a)b", which answers cannot be held to: Assertions'],
    [{ pattern: String.raw`(a|b)*\1` }, 'which answers cannot be held to'],
    [{ pattern: '(a|b)*a(a|b){18}' }, 'which answers cannot be held to: The DFA is not allowed'],
    [
      { pattern: '^(x{1,50}){1,50}$' },
      'answers cannot be held to: The NFA is not allowed to create',
    ],
    [{ pattern: '^a$', minLength: 2 }, 'is "^a$", and no text fits it and the lengths'],
    [{ pattern: '^\\x01$' }, 'and no text fits it'],
    [
      { pattern: String.raw`^\p{L}+$` },
      'beyond ASCII a place may have all characters, or at most 512',
    ],
    [{ pattern: '^.{1,130}$' }, 'makes the patterns of all strings too large; leave some out'],
  ])(
    '[22.24] A pattern that no grammar holds is refused for its call alone: %j',
    async (given, message) => {
      const other = grammars.hold(grammarFor({ type: 'null' }), [end]);
      const answer = grammars.hold(grammarFor({ type: 'string', ...given }), [end]);
      await answer.ready();
      expect(answer.failure).toBeInstanceOf(InvalidInputError);
      expect(answer.failure!.message).toContain(
        `A test was given a JSON schema whose schema.pattern `,
      );
      expect(answer.failure!.message).toContain(message);
      answer.close();
      await other.ready();
      expect(other.failure).toBeUndefined();
      other.close();
    },
  );
});
