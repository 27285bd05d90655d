import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { TextStream } from '../../../sample/04-token-stream/src/text-stream.js';

/**
 * GPT-2's alphabet by its own definition: visible bytes stand for themselves, the others follow
 * from 256 on, in order.
 */
const visible = (byte: number) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
const hidden = Array.from({ length: 256 }, (_, byte) => byte).filter((byte) => !visible(byte));
const written = (byte: number) =>
  String.fromCodePoint(visible(byte) ? byte : 256 + hidden.indexOf(byte));

/** A stream whose tokens are bytes, with the given tokens as its vocabulary. */
function read(tokens: readonly (readonly number[])[]): string[] {
  const stream = new TextStream((token) => tokens[token]?.map(written).join(''));
  return [...tokens.map((_, token) => stream.push(token)), stream.end()];
}

const utf8 = (text: string) => [...Buffer.from(text)];

describe('TextStream', () => {
  it('Text is returned as it arrives, spaces and line ends included', () => {
    expect(read([utf8('The'), utf8(' sky'), utf8('\n\n'), utf8('is blue.')])).toEqual([
      'The',
      ' sky',
      '\n\n',
      'is blue.',
      '',
    ]);
  });

  it('The bytes of a character are held back until it is complete', () => {
    const [first, second, third] = utf8('蓝') as [number, number, number];

    expect(read([[first], [second], [third, ...utf8('色')]])).toEqual(['', '', '蓝色', '']);
  });

  it('Text before an incomplete character is returned at once', () => {
    const [first, ...rest] = utf8('😀') as [number, ...number[]];

    expect(read([[...utf8('hello '), first], rest])).toEqual(['hello ', '😀', '']);
  });

  it('A truncated character ends as a replacement character', () => {
    expect(read([utf8('天').slice(0, 2)])).toEqual(['', '\ufffd']);
  });

  it('Bytes that form no character are not held back for ever', () => {
    expect(read([[0xe5], utf8('a'), utf8('b')])).toEqual(['', '\ufffda', 'b', '']);
  });

  it('Special tokens are left out', () => {
    const stream = new TextStream((token) => (token === 0 ? undefined : 'a'));

    expect([stream.push(1), stream.push(0), stream.push(1), stream.end()]).toEqual([
      'a',
      '',
      'a',
      '',
    ]);
  });

  it('The text does not depend on how its bytes are cut into tokens', () => {
    const anyText = fc.string({ unit: 'binary' });
    const anyCuts = fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 1 });
    fc.assert(
      fc.property(anyText, anyCuts, (text, sizes) => {
        const bytes = utf8(text);
        const tokens: number[][] = [];
        while (bytes.length > 0) {
          tokens.push(bytes.splice(0, sizes[tokens.length % sizes.length]));
        }
        const pieces = read(tokens);

        expect(pieces.join('')).toBe(text);
        expect(pieces.at(-1)).toBe('');
      }),
    );
  });
});
