import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { InvalidInputError, Tensor } from 'nestjs-serving';
import {
  readJsonCall,
  writeJson,
} from '../../../../lib/extensions/distribution/json/json-handlers.js';
import { defaultWireLimits } from '../../../../lib/extensions/distribution/wire/limits.js';
import { sixOfEachType } from '../../../fixtures/values/tensors.js';

const read = (message: unknown) => readJsonCall(message, defaultWireLimits);

describe('A JSON call', () => {
  it('[11] A JSON call needs only an input', () => {
    expect(read({ input: null })).toEqual({
      method: 'batchedRun',
      input: null,
      options: { timeout: undefined, priority: undefined, tenant: undefined, key: undefined },
      form: 'base64',
    });
  });

  it('[11] A JSON call names its method, options and tensor form', () => {
    const terms = { timeout: 5, priority: -1, tenant: 'a', key: 'long', hooks: ['step'] };

    expect(
      read({
        input: { $tensor: { shape: [1], datatype: 'INT8', data: [1] } },
        method: 'stream',
        tensors: 'list',
        ...terms,
      }),
    ).toEqual({
      method: 'stream',
      input: new Tensor('int8', [1], [1]),
      options: terms,
      form: 'list',
    });
  });

  it.each<[unknown, string]>([
    [undefined, 'The message is a undefined; give an object'],
    ['text', 'The message is a string'],
    [[1], 'The message is an instance of Array'],
    [{}, 'The message has no field "input"'],
    [{ input: 1, inputs: 2 }, 'The message has a field "inputs"; known are input, method, timeout'],
    [JSON.parse('{"input":1,"__proto__":{"method":"run"}}'), 'The message has a field "__proto__"'],
    [
      { input: 1, method: 'close' },
      '"method" in the message is "close"; allowed is "batchedRun", "run" or "stream"',
    ],
    [{ input: 1, method: null }, '"method" in the message is null'],
    [
      { input: 1, timeout: '5' },
      '"timeout" in the message is "5"; allowed is a number of milliseconds',
    ],
    [{ input: 1, priority: true }, '"priority" in the message is true'],
    [{ input: 1, tenant: 7 }, '"tenant" in the message is 7'],
    [
      { input: 1, method: 'stream', hooks: 'step' },
      '"hooks" in the message is "step"; allowed is a list of names',
    ],
    [{ input: 1, method: 'stream', hooks: [1] }, '"hooks" in the message is [ 1 ]'],
    [{ input: 1, hooks: ['step'] }, 'The message has hooks, and method "batchedRun"'],
    [
      { input: 1, tensors: 'hex' },
      '"tensors" in the message is "hex"; allowed is "base64" or "list"',
    ],
  ])('[11] The message %j is refused', (message, fault) => {
    expect(() => read(message)).toThrow(InvalidInputError);
    expect(() => read(message)).toThrow(fault);
  });

  it('[11] A mutated message is read or refused with an InvalidInputError', () => {
    const faults: unknown[] = [];
    let understood = 0;

    fc.assert(
      fc.property(messages, fc.array(changes, { minLength: 1, maxLength: 3 }), (message, all) => {
        const mutant = all.reduce<unknown>((json, { at, by }) => changedAt(json, at, by), message);
        try {
          read(mutant);
          understood++;
        } catch (error) {
          faults.push(error);
        }
      }),
      { numRuns: 20_000 },
    );

    expect(faults.filter((fault) => !(fault instanceof InvalidInputError))).toEqual([]);
    expect(faults.length).toBeGreaterThan(5000);
    expect(understood).toBeGreaterThan(500);
    expect(Object.prototype).not.toHaveProperty('isAdmin');
  });
});

/** Valid messages with tensors of every type, in both forms, and in nested lists. */
const messages = fc.constantFrom(
  ...sixOfEachType.flatMap((tensor) =>
    (['base64', 'list'] as const).map((tensors) => ({
      input: {
        rows: [
          writeJson(tensor, tensors, defaultWireLimits),
          {
            $tensor: {
              shape: [2, 2],
              datatype: 'INT8',
              data: [
                [1, 2],
                [3, 4],
              ],
            },
          },
          { $bigint: '-12' },
          { $number: 'NaN' },
          { $$tensor: [1, 'a'] },
        ],
      },
      method: 'stream',
      timeout: 1000,
      priority: 1,
      tenant: 'a',
      key: 'long',
      hooks: ['step'],
      tensors,
    })),
  ),
);

/** Values that may stand in place of any other. */
const strangers: fc.Arbitrary<unknown> = fc.oneof(
  fc.constantFrom(
    null,
    true,
    false,
    '',
    'a',
    'NaN',
    '-0',
    'AAAA',
    '====',
    'FP32',
    'BYTES',
    'BOOL',
    'INT64',
    'float32',
    'json',
    '__proto__',
  ),
  fc.constantFrom<unknown>(
    0,
    -1,
    1,
    6,
    1.5,
    2 ** 31,
    2 ** 32,
    2 ** 53,
    1e300,
    -0,
    Infinity,
    '9'.repeat(30),
    '1'.repeat(2000),
    'x'.repeat(1e5),
  ),
  fc.constantFrom<unknown>(
    [],
    {},
    [[]],
    [
      [1, 2, 3],
      [4, 5, 6],
    ],
    [6],
    [2, 3],
    [2 ** 31, 2 ** 31, 2 ** 31],
    [0, 2 ** 32 - 1],
    Array(40).fill(1),
  ),
  fc.constantFrom<unknown>(
    { $tensor: null },
    { $tensor: {} },
    { $bigint: '1' },
    { $number: '1' },
    { $tensor: 1, $bigint: 1 },
    { length: 6 },
  ),
  fc.constant(JSON.parse('{"__proto__":{"isAdmin":true}}')),
  fc.constant(JSON.parse(`${'['.repeat(3000)}${']'.repeat(3000)}`)),
  fc.json({ maxDepth: 3 }).map((text) => JSON.parse(text) as unknown),
);

type Change =
  | { readonly kind: 'replace' | 'add'; readonly name: string; readonly value: unknown }
  | { readonly kind: 'drop' | 'cut' | 'double' };

const changes = fc.record({
  at: fc.array(fc.nat(), { maxLength: 8 }),
  by: fc.oneof(
    fc.record<Change & { kind: 'replace' | 'add' }>({
      kind: fc.constantFrom('replace', 'replace', 'add'),
      name: fc.constantFrom(
        'shape',
        'datatype',
        'data',
        'input',
        '$tensor',
        '$bigint',
        '$number',
        '$$tensor',
        '__proto__',
        'constructor',
        'x',
      ),
      value: strangers,
    }),
    fc.record<Change & { kind: 'drop' | 'cut' | 'double' }>({
      kind: fc.constantFrom('drop', 'cut', 'double'),
    }),
  ),
});

/** The JSON with a change at the place that the numbers lead to. */
function changedAt(json: unknown, [turn, ...rest]: readonly number[], change: Change): unknown {
  if (typeof json !== 'object' || json === null) {
    return changed(json, change);
  }
  const parts: [string, unknown][] = Object.entries(json);
  if (turn === undefined || parts.length === 0) {
    return changed(json, change);
  }
  const at = turn % parts.length;
  const inner =
    change.kind === 'drop' && rest.length === 0
      ? []
      : [[parts[at]![0], changedAt(parts[at]![1], rest, change)] as const];
  const all = [...parts.slice(0, at), ...inner, ...parts.slice(at + 1)];
  return Array.isArray(json) ? all.map(([, part]) => part) : Object.fromEntries(all);
}

function changed(part: unknown, change: Change): unknown {
  switch (change.kind) {
    case 'replace':
      return change.value;
    case 'add':
      return Array.isArray(part)
        ? [...part, change.value]
        : typeof part === 'object'
          ? Object.fromEntries([...Object.entries(part ?? {}), [change.name, change.value]])
          : [part, change.value];
    case 'double':
      return typeof part === 'string'
        ? part + part
        : Array.isArray(part)
          ? [...part, ...part]
          : [part, part];
    case 'cut':
      return typeof part === 'string' || Array.isArray(part) ? part.slice(1) : 0;
    default:
      return part;
  }
}
