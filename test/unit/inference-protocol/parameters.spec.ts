import { describe, expect, it } from '@jest/globals';
import {
  callOptionsOf,
  type ParameterValue,
  sequenceStepOf,
} from '../../../lib/extensions/inference-protocol/server/inference-request.js';
import { useVirtualTime } from '../../fixtures/async/virtual-time.js';

const parameters = (entries: Readonly<Record<string, ParameterValue>>) =>
  new Map(Object.entries(entries));

const timeoutOf = (timeout: ParameterValue, left?: number) =>
  callOptionsOf(
    { parameters: parameters({ timeout }) },
    left === undefined ? {} : { deadline: Date.now() + left },
  ).timeout;

const keyOf = (id: ParameterValue) => sequenceStepOf(parameters({ sequence_id: id }))?.key;

describe('The parameters of a request', () => {
  useVirtualTime();

  it.each<[ParameterValue, number | undefined]>([
    [0, undefined],
    [1, 2],
    [3, 0],
    [4n, -1],
    [2 ** 40, -10],
  ])('[18.7] The priority %s is %s in a call, 1 being the highest', (priority, own) => {
    expect(callOptionsOf({ parameters: parameters({ priority }) }, {}).priority).toBe(own);
  });

  it('[18.7] The timeout is in microseconds, and the earlier of it and the deadline counts', () => {
    expect(timeoutOf(1500)).toBe(1.5);
    expect(timeoutOf(0)).toBeUndefined();
    expect(timeoutOf(2n ** 63n)).toBeUndefined();
    expect(timeoutOf(5_000_000, 2000)).toBe(2000);
    expect(timeoutOf(1_000_000, 2000)).toBe(1000);
    expect(timeoutOf(0, 2000)).toBe(2000);
    expect(timeoutOf(0, -1)).toBe(0);
  });

  it('[18.7] Parameters that a call has no use for are tolerated', () => {
    expect(
      callOptionsOf(
        { parameters: parameters({ triton_enable_empty_final_response: true, any: 'x' }) },
        {},
      ),
    ).toEqual({ priority: undefined, timeout: undefined });
  });

  it.each<[string, ParameterValue]>([
    ['priority', -1],
    ['priority', 1.5],
    ['priority', '1'],
    ['timeout', true],
    ['timeout', Number.NaN],
  ])('[18.4] The parameter %s must not be %s', (name, value) => {
    expect(() => callOptionsOf({ parameters: parameters({ [name]: value }) }, {})).toThrow(
      `The parameter "${name}" is`,
    );
  });

  it('[18.8] A sequence is known by the type and value of its id', () => {
    expect(keyOf(5)).toBe(keyOf(5n));
    expect(keyOf(5)).not.toBe(keyOf('5'));
    expect(keyOf(2n ** 64n - 1n)).not.toBe(keyOf(2n ** 64n - 2n));
    expect([keyOf(0), keyOf(0n), keyOf('')]).toEqual([undefined, undefined, undefined]);
    // JSON has lost digits of such a number, so that two sequences would be one.
    expect(() => keyOf(2 ** 53 + 2)).toThrow('beyond 2 ** 53 as a string');
    expect(() => keyOf(true)).toThrow('The parameter "sequence_id" is true');
    expect(() => sequenceStepOf(parameters({ sequence_id: 1, sequence_end: 1 }))).toThrow(
      'The parameter "sequence_end" is 1; allowed is true or false',
    );
  });
});
