import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { decimalsOf, EXACT_DIGITS, NumberRules, numbersIn, type Place } from './number-rules.js';

/** @returns the error that refuses a schema's part */
type Refuse = (place: string, what: string) => Error;

/** Nested schemas: more would end the stack. */
const DEEPEST = 64;
/** Characters of a grammar: about a second to compile. */
const LONGEST_GRAMMAR = 2 ** 16;
const MOST_ITEMS = 10_000;
const LONGEST_PATTERN = 1000;
/** Rules of a call's numbers that may be tried: they take a fifth of a second on the event loop. */
const MOST_TRIED = 20_000;
/** Values in a schema, which take time on the event loop. */
const MOST_PARTS = 10_000;

/** Keywords that describe a value and allow no less. */
const ANNOTATIONS = new Set([
  '$anchor',
  '$comment',
  '$defs',
  '$id',
  '$schema',
  'contentEncoding',
  'contentMediaType',
  'default',
  'definitions',
  'deprecated',
  'description',
  // OpenAPI's, for readers.
  'discriminator',
  'example',
  'examples',
  'readOnly',
  'title',
  'writeOnly',
]);

const TYPES = {
  object: ['properties', 'required', 'additionalProperties', 'propertyNames'],
  array: ['items', 'prefixItems', 'minItems', 'maxItems'],
  string: ['minLength', 'maxLength', 'format', 'pattern'],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
  integer: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
  boolean: [],
  null: [],
} as const;

type TypeName = keyof typeof TYPES;

const isTypeName = (type: unknown): type is TypeName =>
  typeof type === 'string' && Object.hasOwn(TYPES, type);

const OF_TYPES: ReadonlySet<string> = new Set(Object.values(TYPES).flat());

/** Keywords that stand for a whole value; those beside them are annotations. */
const WHOLE = ['$ref', 'enum', 'const', 'anyOf', 'oneOf', 'allOf'] as const;

/**
 * Texts of the formats, in the grammar's notation, without quotes: usual ones, and no endless ones.
 * Lengths are their fewest and most characters.
 */
const FORMATS: Readonly<Record<string, Length & { readonly text: string }>> = {
  date: { text: '[0-9]{4} "-" day-of-any-year | leap-year "-02-29"', least: 10, most: 10 },
  time: {
    text: '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})? ("Z" | [+\\-] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])',
    least: 9,
    most: 21,
  },
  'date-time': { text: 'format-date "T" format-time', least: 20, most: 32 },
  uuid: {
    text: '[0-9a-f]{8} "-" [0-9a-f]{4} "-" [1-8] [0-9a-f]{3} "-" [89ab] [0-9a-f]{3} "-" [0-9a-f]{12}',
    least: 36,
    most: 36,
  },
  uuid4: {
    text: '[0-9a-f]{8} "-" [0-9a-f]{4} "-4" [0-9a-f]{3} "-" [89ab] [0-9a-f]{3} "-" [0-9a-f]{12}',
    least: 36,
    most: 36,
  },
  duration: {
    text: '"P" ([0-9]{1,4} "D" ("T" hours-and-less)? | "T" hours-and-less)',
    least: 3,
    most: 17,
  },
  ipv6: { text: 'hex{1,4} (":" hex{1,4}){7,7}', least: 15, most: 39 },
  ipv4: { text: 'octet "." octet "." octet "." octet', least: 7, most: 15 },
  email: {
    text: 'name ([._+\\-] name){0,3} "@" host "." [a-zA-Z]{2,10}',
    least: 6,
    most: 209,
  },
  uri: {
    text: '[a-z]{2,10} "://" host (":" [1-9] [0-9]{0,3})? ("/" [0-9a-zA-Z._~\\-]{0,30}){0,8}',
    least: 6,
    most: 380,
  },
  hostname: { text: 'host', least: 1, most: 114 },
};

/** Character of a string that needs no escape. */
const CHARACTER = '[^"\\\\\\x00-\\x1f]';

/** Rules that others name. */
const COMMON: Readonly<Record<string, string>> = {
  value: 'object | array | string | number | "true" | "false" | "null"',
  object: '"{" (string ": " value (", " string ": " value)*)? "}"',
  array: '"[" (value (", " value)*)? "]"',
  string: '"\\"" rest-of-string',
  // The library knows by such a rule that most tokens go on in it.
  'rest-of-string': `"\\"" | ${CHARACTER} rest-of-string | "\\\\" escape rest-of-string`,
  // A half of a pair alone is no character.
  escape: '["\\\\/bfnrt] | "u" ([0-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex | high low)',
  high: '[dD] [89abAB] hex hex',
  low: '"\\\\u" [dD] [c-fC-F] hex hex',
  hex: '[0-9a-fA-F]',
  // Digits that JavaScript reads exactly.
  integer: '"0" | "-"? [1-9] [0-9]{0,14}',
  number: '"-"? ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,15})? ([eE] [+\\-]? [0-9]{1,2})?',
  'day-of-any-year':
    '("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01]) | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30") | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8])',
  // A full hundred only if 400 divides it.
  'leap-year':
    '[0-9]{2} ("0" [48] | [2468] [048] | [13579] [26]) | ([02468] [048] | [13579] [26]) "00"',
  'hours-and-less':
    '[0-9]{1,3} "H" ([0-9]{1,2} "M")? ([0-9]{1,2} "S")? | [0-9]{1,3} "M" ([0-9]{1,2} "S")? | [0-9]{1,3} "S"',
  octet: '"25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9]? [0-9]',
  name: '[0-9a-zA-Z]{1,20}',
  host: 'label ("." label){0,4}',
  label: '[0-9a-zA-Z] ([0-9a-zA-Z\\-]{0,20} [0-9a-zA-Z])?',
  ...Object.fromEntries(
    Object.entries(FORMATS).map(([name, { text }]) => [`format-${name}`, text] as const),
  ),
};

/** A rule's name or text, and the rules that it names. */
export interface Rules {
  readonly root: string;
  readonly others: readonly (readonly [name: string, text: string])[];
}

/** Work on a call's schemas so far. */
export interface Effort {
  /** Rules of numbers that were tried. */
  tried: number;
}

/** Texts that a pattern allows. */
export interface PatternTexts extends Length {
  /** Place of the pattern in the caller's input. */
  readonly place: string;
  readonly pattern: string;
}

/**
 * Begins a rule with {@link PatternTexts}. The thread of grammars puts the pattern's own rules in
 * its place, `NAME-0` and on, since they may take a second.
 */
export const PATTERN_RULE = 'texts of ';

/** Fewest and most characters of a string. */
export interface Length {
  readonly least: number;
  /** Undefined without a limit. */
  readonly most?: number | undefined;
}

/**
 * Begins a rule for the rest of a string with a {@link Length}, which xgrammar would take seconds to
 * count. The thread of grammars puts another in its place, and counts.
 */
export const LENGTH_RULE = 'characters of ';

/** Byte that a grammar allows where such a string may open; JSON has no control characters. */
export const OPENING = 0x01;

/** JSON objects, on one line. */
export const JSON_OBJECT: Rules = { root: 'object', others: [] };

/**
 * Rules of the JSON texts that a JSON schema allows: on one line, with a space behind commas and
 * colons. Objects have only the schema's properties, in its order.
 *
 * @param place of the schema in the caller's input
 * @param prefix of the rules' names, if a grammar has several schemas
 * @param effort of all the call's schemas
 * @throws the error of `refuse` for a keyword that a grammar can't hold, and for a schema that is too
 *   large
 */
export function jsonRules(
  schema: unknown,
  place: string,
  refuse: Refuse,
  prefix = '',
  effort: Effort = { tried: 0 },
): Rules {
  if (hasMoreParts(schema, MOST_PARTS)) {
    throw refuse(place, `has more than ${MOST_PARTS} parts; describe less of the answer`);
  }
  const rules = new SchemaRules(schema, place, refuse, prefix, effort);
  return { root: rules.root, others: rules.written };
}

/** True if the value has more values within than these. */
function hasMoreParts(value: unknown, most: number): boolean {
  const left = [value];
  for (let count = 0; left.length > 0; count++) {
    if (count > most) {
      return true;
    }
    const part = left.pop();
    if (typeof part === 'object' && part !== null) {
      for (const each of Object.values(part)) {
        left.push(each);
        if (left.length > most) {
          return true;
        }
      }
    }
  }
  return false;
}

/** Grammar in xgrammar's notation. */
export function grammarOf({ root, others }: Rules): string {
  return [['root', root] as const, ...others, ...Object.entries(COMMON)]
    .map(([name, text]) => `${name} ::= ${text}\n`)
    .join('');
}

/** Text as a grammar's literal. */
export const literal: (text: string) => string = JSON.stringify;

const ANY_LENGTH: Length = { least: 0 };

function both(one: Length, other: Length): Length {
  if (other === ANY_LENGTH) {
    return one;
  }
  const most = Math.min(one.most ?? Infinity, other.most ?? Infinity);
  return { least: Math.max(one.least, other.least), most };
}

const exceeds = ({ least }: Length, { most = Infinity }: Length): boolean => least > most;

class SchemaRules {
  readonly root: string;
  private readonly rules = new Map<string, string>();
  private readonly ofRefs = new Map<string, { readonly name: string; common: Length }>();
  /** Schemas by the references to them. */
  private readonly found = new Map<unknown, unknown>();
  /** Names of references whose schemas are being read. */
  private readonly open = new Set<string>();
  private length = 0;
  /** Highest `least` and lowest `most` of all strings so far. */
  private common: Length = ANY_LENGTH;
  private readonly ofNumbers = new Map<string, string>();
  /** Places in all numbers. */
  private readonly places = new Map<string, Place>();
  private readonly names = new Map<string, string>();

  constructor(
    private readonly schema: unknown,
    private readonly place: string,
    private readonly refuse: Refuse,
    private readonly prefix: string,
    private readonly effort: Effort,
  ) {
    this.root = this.rule(schema, place, 0);
  }

  get written(): readonly (readonly [string, string])[] {
    return [...this.rules];
  }

  /** Name of a rule with this text, which may be there already. */
  private add(text: string): string {
    const name = this.names.get(text) ?? this.addAs(`${this.prefix}rule-${this.rules.size}`, text);
    this.names.set(text, name);
    return name;
  }

  private addAs(name: string, text: string): string {
    this.length += text.length;
    if (this.length > LONGEST_GRAMMAR) {
      throw this.refuse(this.place, 'is too large; describe less of the answer');
    }
    this.rules.set(name, text);
    return name;
  }

  /** Name of the schema's rule, or of a common one. */
  private rule(schema: unknown, place: string, depth: number): string {
    if (schema === true || (isRecord(schema) && Object.keys(schema).length === 0)) {
      return 'value';
    }
    if (!isRecord(schema)) {
      throw this.refuse(place, `is ${formatValue(schema)}; give a JSON schema that allows a value`);
    }
    if (depth > DEEPEST) {
      throw this.refuse(place, `is nested more than ${DEEPEST} levels deep`);
    }
    const whole = WHOLE.filter((keyword) => schema[keyword] !== undefined);
    if (whole.length > 0) {
      return this.ofWhole(schema, whole, place, depth);
    }
    const types = this.typesOf(schema, place);
    const allowed = new Set<string>(['type', ...types.flatMap((type) => [...TYPES[type]])]);
    this.checkKeywords(schema, allowed, place);
    return this.oneOf(types.map((type) => this.ofType(type, schema, place, depth)));
  }

  private checkKeywords(
    schema: Readonly<Record<string, unknown>>,
    allowed: ReadonlySet<string>,
    place: string,
  ): void {
    const unknown = Object.keys(schema).find(
      (keyword) =>
        !allowed.has(keyword) && !ANNOTATIONS.has(keyword) && schema[keyword] !== undefined,
    );
    if (unknown !== undefined) {
      const why = OF_TYPES.has(unknown)
        ? 'does nothing beside its other keywords'
        : 'is a keyword that answers cannot be held to';
      throw this.refuse(`${place}.${unknown}`, `${why}; leave it out`);
    }
  }

  private typesOf(schema: Readonly<Record<string, unknown>>, place: string): readonly TypeName[] {
    const { type } = schema;
    if (type === undefined) {
      // Keywords name the type if it is left out.
      const meant = (['object', 'array'] as const).find((each) =>
        TYPES[each].some((keyword) => schema[keyword] !== undefined),
      );
      if (meant) {
        return [meant];
      }
      const isFree = Object.keys(schema).every((keyword) => ANNOTATIONS.has(keyword));
      if (isFree) {
        return ['object', 'array', 'string', 'number', 'boolean', 'null'];
      }
      this.checkKeywords(schema, OF_TYPES, place);
      throw this.refuse(`${place}.type`, 'is missing');
    }
    const types = [...new Set([type].flat())];
    if (types.length === 0 || !types.every(isTypeName)) {
      const known = Object.keys(TYPES).join(', ');
      throw this.refuse(`${place}.type`, `is ${formatValue(type)}; types are ${known}`);
    }
    return types;
  }

  private ofWhole(
    schema: Readonly<Record<string, unknown>>,
    [keyword, ...others]: readonly (typeof WHOLE)[number][],
    place: string,
    depth: number,
  ): string {
    const value = schema[keyword!];
    // A type that each value has says nothing more.
    const type = keyword === 'enum' || keyword === 'const' ? ['type'] : [];
    this.checkKeywords(schema, new Set([keyword!, ...type]), place);
    if (others.length > 0) {
      throw this.refuse(`${place}.${others[0]}`, `stands beside ${keyword}; give one of them`);
    }
    if (keyword === '$ref') {
      return this.ofRef(value, `${place}.$ref`, depth);
    }
    if (keyword === 'const') {
      return this.ofValues([value], schema, place);
    }
    if (!Array.isArray(value) || value.length === 0) {
      throw this.refuse(`${place}.${keyword}`, `is ${formatValue(value)}; give a list`);
    }
    if (keyword === 'enum') {
      return this.ofValues(value, schema, place);
    }
    if (keyword === 'allOf' && value.length > 1) {
      throw this.refuse(`${place}.allOf`, 'has several schemas; write them as one');
    }
    if (keyword === 'oneOf' && !exclude(value.map((each) => this.resolved(each)))) {
      throw this.refuse(
        `${place}.oneOf`,
        'has schemas that may allow the same value; give anyOf, or a property whose const differs in each',
      );
    }
    return this.oneOf(this.alternatives(value, `${place}.${keyword}`, depth + 1));
  }

  /**
   * Rules of alternatives. Their strings may stand in one place, where an answer's length has to suit
   * them all, since it may become any of them.
   */
  private alternatives(schemas: readonly unknown[], place: string, depth: number): string[] {
    const { common } = this;
    const own: Length[] = [];
    const rules = schemas.map((schema, i) => {
      this.common = ANY_LENGTH;
      const rule = this.rule(schema, `${place}[${i}]`, depth);
      own.push(this.common);
      return rule;
    });
    this.common = own.reduce(both, common);
    const held = schemas.filter((_, i) => own[i] !== ANY_LENGTH);
    if (!beginApart(held.map((schema) => this.resolved(schema)))) {
      own.reduce((before, length, i) => {
        if (exceeds(before, length) || exceeds(length, before)) {
          throw this.refuse(
            `${place}[${i}]`,
            'has strings of other lengths than the schemas before it; leave out a minLength, or begin ' +
              'their objects with a const that differs in each',
          );
        }
        return both(before, length);
      }, ANY_LENGTH);
    }
    return rules;
  }

  /** Schema that a reference, or a chain of them, leads to. */
  private resolved(schema: unknown): unknown {
    let found = schema;
    for (let step = 0; isRecord(found) && found['$ref'] !== undefined && step < DEEPEST; step++) {
      const { $ref: ref } = found;
      if (!this.found.has(ref)) {
        const path = pathOf(ref);
        this.found.set(ref, path && this.partAt(path));
      }
      found = this.found.get(ref);
    }
    return found;
  }

  private partAt(path: readonly string[]): unknown {
    return path.reduce<unknown>(
      (within, part) =>
        (isRecord(within) || Array.isArray(within)) && Object.hasOwn(within, part)
          ? (within as Record<string, unknown>)[part]
          : undefined,
      this.schema,
    );
  }

  private ofValues(
    values: readonly unknown[],
    schema: Readonly<Record<string, unknown>>,
    place: string,
  ): string {
    const types = schema['type'] === undefined ? undefined : this.typesOf(schema, place);
    const allowed = values.filter((value) => types?.some((type) => isOf(type, value)) ?? true);
    if (allowed.length === 0) {
      throw this.refuse(`${place}.type`, 'allows none of its values');
    }
    return this.add(allowed.map((value) => literal(onOneLine(value))).join(' | '));
  }

  private ofRef(ref: unknown, place: string, depth: number): string {
    const path = pathOf(ref);
    if (!path) {
      throw this.refuse(
        place,
        `is ${formatValue(ref)}; refer to a part of this schema: "#/$defs/…"`,
      );
    }
    const known = this.ofRefs.get(String(ref));
    if (known) {
      this.common = both(this.common, known.common);
      return known.name;
    }
    const found = this.partAt(path);
    if (found === undefined) {
      throw this.refuse(place, `is ${formatValue(ref)}, which this schema does not have`);
    }
    // Named first, since a schema may refer to itself.
    const name = `${this.prefix}ref-${this.ofRefs.size}`;
    const made = { name, common: ANY_LENGTH };
    this.ofRefs.set(String(ref), made);
    this.open.add(name);
    const { common } = this;
    this.common = ANY_LENGTH;
    const rule = this.rule(found, [this.place, ...path].join('.'), depth + 1);
    if (this.open.has(rule)) {
      throw this.refuse(place, 'refers to itself alone');
    }
    this.open.delete(name);
    made.common = this.common;
    this.common = both(common, this.common);
    return this.addAs(name, rule);
  }

  private ofType(
    type: TypeName,
    schema: Readonly<Record<string, unknown>>,
    place: string,
    depth: number,
  ): string {
    switch (type) {
      case 'object':
        return this.ofObject(schema, place, depth);
      case 'array':
        return this.ofArray(schema, place, depth);
      case 'string':
        return this.ofString(schema, place);
      case 'number':
      case 'integer':
        return this.ofNumber(type, schema, place);
      case 'boolean':
        return this.add('"true" | "false"');
      default:
        return this.add('"null"');
    }
  }

  /** @param known rules of schemas that several properties share */
  private ofObject(
    schema: Readonly<Record<string, unknown>>,
    place: string,
    depth: number,
    known: ReadonlyMap<unknown, string> = new Map(),
  ): string {
    const { properties = {}, required = [], additionalProperties: more, propertyNames } = schema;
    if (!isRecord(properties)) {
      throw this.refuse(`${place}.properties`, `is ${formatValue(properties)}; give an object`);
    }
    if (isRecord(propertyNames) && schema['properties'] === undefined) {
      const { enum: listed = [propertyNames['const']] } = propertyNames;
      if (Array.isArray(listed) && listed.every((name) => typeof name === 'string')) {
        // Once for all names: nested schemas would take exponential time.
        const value = this.rule(more, `${place}.additionalProperties`, depth + 1);
        const named = Object.fromEntries(listed.map((name) => [name, more]));
        const { propertyNames: _, ...others } = schema;
        return this.ofObject(
          { ...others, properties: named, additionalProperties: false },
          place,
          depth,
          new Map([[more, value]]),
        );
      }
    }
    const names = isRecord(propertyNames) ? { type: 'string', ...propertyNames } : undefined;
    const areAny = names?.type === 'string' && Object.keys(names).length === 1;
    if (propertyNames !== undefined && !areAny) {
      throw this.refuse(
        `${place}.propertyNames`,
        'is a keyword that answers cannot be held to; leave it out',
      );
    }
    const declared = Object.keys(properties);
    const isDeclared = (name: unknown): boolean => Object.hasOwn(properties, name as string);
    if (!Array.isArray(required) || !required.every(isDeclared)) {
      throw this.refuse(
        `${place}.required`,
        `is ${formatValue(required)}; give a list of names that are in properties`,
      );
    }
    if (declared.length === 0) {
      const hasMore = more ?? schema['properties'] === undefined;
      if (hasMore === false) {
        return this.add('"{}"');
      }
      const value = this.rule(more ?? true, `${place}.additionalProperties`, depth + 1);
      const member = `string ": " ${value}`;
      return this.add(`"{" (${member} (", " ${member})*)? "}"`);
    }
    if (isRecord(more) && Object.keys(more).length > 0) {
      throw this.refuse(
        `${place}.additionalProperties`,
        'is a schema beside properties, which answers cannot be held to; give false',
      );
    }
    // The rules of the rest, from the last property on: behind another member, or as the first.
    const needed = new Set<unknown>(required);
    let behind = '""';
    let first = '""';
    for (const name of declared.toReversed()) {
      const { [name]: property } = properties;
      const value =
        known.get(property) ?? this.rule(property, `${place}.properties.${name}`, depth + 1);
      const member = `${literal(JSON.stringify(name))} ": " ${value} ${behind}`;
      const isRequired = needed.has(name);
      first = this.add(isRequired ? member : `${member} | ${first}`);
      behind = this.add(isRequired ? `", " ${member}` : `", " ${member} | ${behind}`);
    }
    return this.add(`"{" ${first} "}"`);
  }

  private ofArray(schema: Readonly<Record<string, unknown>>, place: string, depth: number): string {
    const { items = true, prefixItems = [], minItems: least = 0, maxItems: most } = schema;
    const counts = { minItems: least, maxItems: most ?? least };
    for (const [name, count] of Object.entries(counts)) {
      this.checkCount(count, `${place}.${name}`, MOST_ITEMS);
    }
    const few = least as number;
    const limit = most as number | undefined;
    if (limit !== undefined && limit < few) {
      throw this.refuse(`${place}.maxItems`, `is less than minItems`);
    }
    if (!Array.isArray(prefixItems)) {
      throw this.refuse(`${place}.prefixItems`, `is ${formatValue(prefixItems)}; give a list`);
    }
    if (prefixItems.length > 0) {
      return this.ofTuple(prefixItems, schema['items'], few, limit, place, depth);
    }
    if (limit === 0) {
      return this.add('"[]"');
    }
    const item = this.rule(items, `${place}.items`, depth + 1);
    const end = limit === undefined ? '' : limit - 1;
    const list = `${item} (", " ${item}){${Math.max(0, few - 1)},${end}}`;
    return this.add(few === 0 ? `"[" (${list})? "]"` : `"[" ${list} "]"`);
  }

  /** Array with all of these items, and maybe others. */
  private ofTuple(
    prefixItems: readonly unknown[],
    others: unknown,
    few: number,
    limit: number | undefined,
    place: string,
    depth: number,
  ): string {
    const count = prefixItems.length;
    const isOpen = others !== undefined && others !== false;
    if ((limit ?? count) < count || (few > count && !isOpen)) {
      throw this.refuse(
        `${place}.prefixItems`,
        `has ${count} items, which minItems and maxItems do not allow; answers have all of them`,
      );
    }
    const rules = prefixItems.map((each, i) =>
      this.rule(each, `${place}.prefixItems[${i}]`, depth + 1),
    );
    const own = rules.join(' ", " ');
    if (!isOpen || limit === count) {
      return this.add(`"[" ${own} "]"`);
    }
    const other = this.rule(others, `${place}.items`, depth + 1);
    const end = limit === undefined ? '' : limit - count;
    return this.add(`"[" ${own} (", " ${other}){${Math.max(0, few - count)},${end}} "]"`);
  }

  private ofString(schema: Readonly<Record<string, unknown>>, place: string): string {
    const { minLength: least = 0, maxLength: most, format, pattern } = schema;
    for (const [name, count] of Object.entries({ minLength: least, maxLength: most ?? least })) {
      this.checkCount(count, `${place}.${name}`, Number.MAX_SAFE_INTEGER);
    }
    const length = { least: least as number, most: most as number | undefined };
    if (pattern !== undefined) {
      if (!isPattern(pattern)) {
        throw this.refuse(
          `${place}.pattern`,
          `is ${formatValue(pattern)}; give a regular expression of at most ${LONGEST_PATTERN} characters`,
        );
      }
      // A format beside it describes what the pattern allows.
      const texts: PatternTexts = { place: `${place}.pattern`, pattern, ...length };
      const name = this.addText(PATTERN_RULE + JSON.stringify(texts));
      return this.add(`"\\"" ${name}-0`);
    }
    if (format !== undefined) {
      const name = typeof format === 'string' ? format : '';
      const own = Object.hasOwn(FORMATS, name) ? FORMATS[name] : undefined;
      if (!own) {
        throw this.refuse(
          `${place}.format`,
          `is ${formatValue(format)}; answers can be held to ${Object.keys(FORMATS).join(', ')}`,
        );
      }
      if (length.least > own.least || (length.most ?? Infinity) < own.most!) {
        throw this.refuse(
          `${place}.format`,
          `is ${formatValue(format)}, with ${own.least} to ${own.most} characters; leave out lengths that allow fewer`,
        );
      }
      return this.add(`"\\"" format-${name} "\\""`);
    }
    if (least === 0 && most === undefined) {
      return 'string';
    }
    if (length.most !== undefined && length.most < length.least) {
      throw this.refuse(`${place}.maxLength`, 'is less than minLength');
    }
    this.common = both(this.common, length);
    const name = this.addText(LENGTH_RULE + JSON.stringify(length));
    return this.add(`"\\"" ${name} | [\\x0${OPENING}]`);
  }

  /** Name of a rule that the thread of grammars writes anew. */
  private addText(text: string): string {
    return this.addAs(`${this.prefix}text-${this.rules.size}`, text);
  }

  private checkCount(count: unknown, place: string, most: number): void {
    if (!Number.isInteger(count) || (count as number) < 0 || (count as number) > most) {
      throw this.refuse(
        place,
        `is ${formatValue(count)}; answers can be held to whole numbers from 0 to ${most}`,
      );
    }
  }

  private ofNumber(
    type: 'number' | 'integer',
    schema: Readonly<Record<string, unknown>>,
    place: string,
  ): string {
    const given = TYPES[type].filter((keyword) => schema[keyword] !== undefined);
    if (given.length === 0) {
      return type;
    }
    for (const keyword of given) {
      const value = schema[keyword];
      if (typeof value !== 'number' || !Number.isFinite(value)) {
        throw this.refuse(`${place}.${keyword}`, `is ${formatValue(value)}; give a number`);
      }
      if (keyword === 'multipleOf' && (value <= 0 || decimalsOf(value) === undefined)) {
        throw this.refuse(
          `${place}.${keyword}`,
          `is ${value}; give a number above 0 with at most ${EXACT_DIGITS - 1} digits`,
        );
      }
    }
    const numbers = numbersIn(schema as Record<string, number>, type);
    const key = JSON.stringify(numbers);
    const known = this.ofNumbers.get(key);
    if (known !== undefined) {
      return known;
    }
    const last = `${place}.${given.at(-1)}`;
    const rules = new NumberRules(
      numbers,
      this.places,
      (text) => this.add(text),
      () => {
        this.effort.tried++;
        if (this.effort.tried > MOST_TRIED) {
          throw this.refuse(last, 'needs too many rules; leave it out, or give closer bounds');
        }
      },
    );
    const alternatives = rules.alternatives();
    if (alternatives.length === 0) {
      throw this.refuse(last, `leaves no number of up to ${EXACT_DIGITS} digits; change a bound`);
    }
    const name = this.add(alternatives.join(' | '));
    this.ofNumbers.set(key, name);
    return name;
  }

  /** Name of a rule that allows what one of these rules does. */
  private oneOf(rules: readonly string[]): string {
    return rules.length === 1 ? rules[0]! : this.add([...new Set(rules)].join(' | '));
  }
}

function isPattern(pattern: unknown): pattern is string {
  try {
    return (
      typeof pattern === 'string' && pattern.length <= LONGEST_PATTERN && !!new RegExp(pattern)
    );
  } catch {
    return false;
  }
}

/** Path of a reference within its schema; undefined for another one. */
function pathOf(ref: unknown): readonly string[] | undefined {
  const [begin, ...parts] = String(ref).split('/');
  try {
    return begin === '#'
      ? parts.map((part) => decodeURIComponent(part).replaceAll('~1', '/').replaceAll('~0', '~'))
      : undefined;
  } catch {
    return undefined;
  }
}

/** JSON as models write it on one line. */
function onOneLine(value: unknown): string {
  if (Array.isArray(value)) {
    return `[${value.map(onOneLine).join(', ')}]`;
  }
  if (isRecord(value)) {
    const members = Object.entries(value).map(
      ([name, member]) => `${JSON.stringify(name)}: ${onOneLine(member)}`,
    );
    return `{${members.join(', ')}}`;
  }
  return JSON.stringify(value);
}

function isOf(type: TypeName, value: unknown): boolean {
  switch (type) {
    case 'object':
      return isRecord(value);
    case 'array':
      return Array.isArray(value);
    case 'integer':
      return Number.isInteger(value);
    case 'null':
      return value === null;
    default:
      return typeof value === type;
  }
}

/** Ends early, since references repeat large schemas. */
function areDistinct<Value>(values: readonly Value[], keyOf: (value: Value) => unknown): boolean {
  const texts = new Set<string | undefined>([undefined]);
  return values.every((value) => {
    const { size } = texts;
    return texts.add(JSON.stringify(keyOf(value))).size > size;
  });
}

type Schema = Readonly<Record<string, unknown>>;

/** Undefined for a schema that is no object, or is there twice. */
function unlike(schemas: readonly unknown[]): readonly Schema[] | undefined {
  const isUsable = new Set(schemas).size === schemas.length;
  return isUsable && schemas.every((schema) => isRecord(schema)) ? schemas : undefined;
}

/** Constants of the properties that each value has. */
function constantsOf({ properties, required }: Schema): ReadonlyMap<string, unknown> {
  const needed = new Set<unknown>(Array.isArray(required) ? required : []);
  const own = Object.entries(isRecord(properties) ? properties : {});
  return new Map(
    own.flatMap(([name, property]) =>
      needed.has(name) && isRecord(property) ? [[name, property['const']] as const] : [],
    ),
  );
}

function haveOtherTypes(schemas: readonly Schema[]): boolean {
  return areDistinct(schemas, ({ type }) =>
    typeof type === 'string' ? type.replace('integer', 'number') : undefined,
  );
}

/** True if texts of the schemas differ before a string whose length they limit. */
function beginApart(given: readonly unknown[]): boolean {
  const schemas = unlike(given);
  const names = schemas?.map(({ properties }) =>
    isRecord(properties) ? Object.keys(properties)[0] : undefined,
  );
  return (
    schemas !== undefined &&
    (haveOtherTypes(schemas) ||
      (new Set(names).size === 1 &&
        areDistinct(schemas, (schema) => constantsOf(schema).get(names![0] ?? ''))))
  );
}

/** True if no value fits two of the schemas, by their type or by a property's constant. */
function exclude(given: readonly unknown[]): boolean {
  const schemas = unlike(given);
  if (!schemas || areDistinct(schemas, (schema) => schema['const']) || haveOtherTypes(schemas)) {
    return schemas !== undefined;
  }
  const constants = schemas.map(constantsOf);
  return [...constants[0]!.keys()].some((name) => areDistinct(constants, (own) => own.get(name)));
}
