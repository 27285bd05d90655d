/**
 * A name as one part of a pattern or subject: every byte of its UTF-8 that is no letter, digit, `_`
 * or `-` becomes `=XX`.
 */
export function escapeName(name: string): string {
  return name === ''
    ? '='
    : name.replace(/[^\w-]+/g, (characters) =>
        [...Buffer.from(characters)].map(escapeByte).join(''),
      );
}

function escapeByte(byte: number): string {
  return `=${byte.toString(16).toUpperCase().padStart(2, '0')}`;
}

/** Whether the text is valid and safe as the address of a node. */
export function isAddress(value: unknown): value is string {
  return typeof value === 'string' && /^[\w-]{1,128}$/.test(value);
}

/** The pattern by which clients that are no nodes call a serving. */
export function servingPattern(namespace: string, serving: string): string {
  return `sv.${escapeName(namespace)}.s.${escapeName(serving)}`;
}

/** @throws RangeError for a packet beyond the limit of the transport: the sender must split it */
export function checkSize(packet: Uint8Array, most: number): void {
  if (packet.byteLength > most) {
    throw new RangeError(`A packet of ${packet.byteLength} bytes, where ${most} are the most`);
  }
}
