import { describe, expect, it } from '@jest/globals';
import { parseJson } from '../../../lib/encoding/json.js';

const limits = { depth: 3, nodes: 5, values: 6, advice: 'send less' };

describe('A text of JSON', () => {
  it.each([
    ['[[[1]]]', [[[1]]]],
    ['[[],[],[],[]]', [[], [], [], []]],
    ['"[[[[[[,,,,,,,"', '[[[[[[,,,,,,,'],
    ['{"a":"\\"[[[[","b":"\\\\"}', { a: '"[[[[', b: '\\' }],
    ['[1,2,3,4,5,6,7]', [1, 2, 3, 4, 5, 6, 7]],
  ])('[18.13] %s is within the limits', (json, value) => {
    expect(parseJson(Buffer.from(json), limits)).toEqual({ value });
    expect(parseJson(json, limits)).toEqual({ value });
  });

  it.each([
    ['[[[[', 'deeper than 3 levels'],
    ['{"a":[{"b":{', 'deeper than 3 levels'],
    ['"\\\\"[[[[', 'deeper than 3 levels'],
    ['[[],[],[],[],[]]', 'has more than 5 lists and objects; send less'],
    ['[1,2,3,4,5,6,7,8', 'has more than 6 values; send less'],
    ['', 'is not JSON: '],
    [']]]]', 'is not JSON: '],
  ])('[18.13] %s is refused, and large ones before they are parsed', (json, fault) => {
    expect(parseJson(json, limits)).toEqual({ fault: expect.stringContaining(fault) });
  });

  it('[18.13] that is not UTF-8 is refused', () => {
    expect(parseJson(Buffer.from([0x22, 0xff, 0x22]), limits)).toEqual({ fault: 'is not UTF-8' });
  });
});
