import { describe, expect, it } from '@jest/globals';
import { checkNesting } from '../../../lib/extensions/inference-protocol/server/call-input.js';

const limits = { depth: 3, nodes: 5 };

describe('The nesting of JSON', () => {
  it.each(['[[[1]]]', '[[],[],[],[]]', '"[[[[[["', '{"a":"\\"[[[[","b":"\\\\"}', '', ']]]]'])(
    '[18.13] %s is within the limits',
    (json) => {
      expect(() => checkNesting(Buffer.from(json), limits)).not.toThrow();
    },
  );

  it.each([
    ['[[[[', 'deeper than 3 levels'],
    ['{"a":[{"b":{', 'deeper than 3 levels'],
    ['"\\\\"[[[[', 'deeper than 3 levels'],
    ['[[],[],[],[],[]]', 'more than 5 lists and objects'],
  ])('[18.13] %s is refused before it is parsed', (json, message) => {
    expect(() => checkNesting(json, limits)).toThrow(message);
  });
});
