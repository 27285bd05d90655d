import { expect, it } from '@jest/globals';
import { ProtobufMessage } from '../../../lib/extensions/cli/inspect/protobuf-message.js';

const message = (hex: string): ProtobufMessage => new ProtobufMessage(Buffer.from(hex, 'hex'));

it.each([
  ['zero', '00', 0],
  ['one byte', '7f', 127],
  ['the example of the specification', '9601', 150],
  ['four bytes', 'ffffff7f', 2 ** 28 - 1],
  ['five bytes', '8080808001', 2 ** 28],
  ['the largest safe integer', 'ffffffffffffff0f', Number.MAX_SAFE_INTEGER],
  ['minus one', 'ffffffffffffffffff01', -1],
  ['a negative number', 'feffffffffffffffff01', -2],
])('[21.1] An integer of protobuf is read: %s', (_, hex, expected) => {
  expect(message(`08${hex}`).number(1)).toBe(expected);
});

it('[21.1] Repeated numbers are read, packed into one field or not', () => {
  expect(message('089601080208ffffffffffffffffff01').numbers(1)).toEqual([150, 2, -1]);
  expect(message('0a0d960102ffffffffffffffffff01').numbers(1)).toEqual([150, 2, -1]);
});

it('[21.1] A field of protobuf that occurs several times has its last value', () => {
  expect(message('08010802').number(1)).toBe(2);
  expect(message('0a01610a0162').text(1)).toBe('b');
});

it('[21.1] A missing field of protobuf is empty', () => {
  const empty = message('');

  expect(empty.number(1)).toBeUndefined();
  expect(empty.numbers(1)).toEqual([]);
  expect(empty.text(1)).toBe('');
  expect(empty.message(1)).toBeUndefined();
  expect(empty.messages(1)).toEqual([]);
});

it('[21.1] Numbers of fixed size and unknown fields are skipped', () => {
  const read = message('0d00000000 110000000000000000 a2060178 1a02c3a9'.replaceAll(' ', ''));

  expect(read.text(3)).toBe('é');
});

it('[21.1] Messages in a message are read', () => {
  const read = message('0a0208070a020809');

  expect(read.messages(1).map((each) => each.number(1))).toEqual([7, 9]);
  expect(read.message(1)?.number(1)).toBe(9);
});

it.each([
  ['a tag without a value', '08', 'The bytes end inside a field'],
  ['fewer bytes than a field has', '0a0361', 'The bytes end inside a field'],
  ['a number that does not end', '08ffff', 'The bytes end inside a field'],
  ['a number of 11 bytes', `08${'ff'.repeat(10)}01`, 'A number has more than 10 bytes'],
  ['a negative length', '0afeffffffffffffffff01', 'The bytes end inside a field'],
  ['a cut number of fixed size', '0d000000', 'The bytes end inside a field'],
  ['a group', '0b0c', 'Unknown wire type 3'],
  ['a field of the number 0', '0000', 'Invalid number 0 of a field'],
])('[21.2] Bytes that are no message of protobuf are refused: %s', (_, hex, error) => {
  expect(() => message(hex)).toThrow(error);
});
