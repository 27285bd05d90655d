/** Each UTF-8 byte except letters, digits, `_` and `-` becomes `=XX`. */
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

export function isAddress(value: unknown): value is string {
  return typeof value === 'string' && /^[\w-]{1,128}$/.test(value);
}

/** For calls from clients that aren't nodes. */
export function servingPattern(namespace: string, serving: string): string {
  return `sv.${escapeName(namespace)}.s.${escapeName(serving)}`;
}

/** @throws RangeError if the packet is too large: the sender must split it */
export function checkSize(packet: Uint8Array, most: number): void {
  if (packet.byteLength > most) {
    throw new RangeError(`A packet of ${packet.byteLength} bytes, where ${most} are the most`);
  }
}
