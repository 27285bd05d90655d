/**
 * Text from tokens one by one. A token of a byte-level BPE is a run of bytes, and a Chinese
 * character may be spread over two or three of them: its bytes are held back until it is whole.
 */
export class TextStream {
  private readonly decoder = new TextDecoder('utf-8', { ignoreBOM: true });

  /**
   * @param written the entry of a token in the vocabulary; undefined for special tokens, which are no
   * text
   */
  constructor(private readonly written: (token: number) => string | undefined) {}

  /** The complete characters so far: often the text of the token, sometimes none. */
  push(token: number): string {
    const bytes = Array.from(this.written(token) ?? '', (character) => byteOf.get(character) ?? 0);
    return this.decoder.decode(Uint8Array.from(bytes), { stream: true });
  }

  /** The rest of the text after the last token: a replacement character for an incomplete one. */
  end(): string {
    return this.decoder.decode();
  }
}

/**
 * GPT-2's alphabet, in which every byte is a visible character: those that are no such character
 * are moved past 255.
 */
const byteOf = new Map<string, number>();
let moved = 256;
for (let byte = 0; byte < 256; byte++) {
  const visible = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  byteOf.set(String.fromCodePoint(visible ? byte : moved++), byte);
}
