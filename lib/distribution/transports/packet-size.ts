/** @throws RangeError for a packet that no transport with this limit carries: its sender must take it apart */
export function checkSize(packet: Uint8Array, most: number): void {
  if (packet.byteLength > most) {
    throw new RangeError(`A packet of ${packet.byteLength} bytes, where ${most} are the most`);
  }
}
