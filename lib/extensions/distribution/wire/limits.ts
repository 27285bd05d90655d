/** A frame's limits. Senders check them, too. */
export interface WireLimits {
  /**
   * Bytes of a whole frame.
   *
   * @default 67108864
   */
  readonly bytes: number;
  /**
   * Number of tensors and typed arrays.
   *
   * @default 4096
   */
  readonly tensors: number;
  /**
   * Axes of a tensor.
   *
   * @default 16
   */
  readonly rank: number;
  /**
   * Bytes of the header.
   *
   * @default 65536
   */
  readonly headerBytes: number;
  /**
   * Nesting depth of lists and objects.
   *
   * @default 64
   */
  readonly depth: number;
  /**
   * Parts of a value: lists, objects, numbers, strings and so on. Elements of tensors and typed
   * arrays don't count.
   */
  readonly nodes: number;
}

export const defaultWireLimits: WireLimits = {
  bytes: 64 * 2 ** 20,
  tensors: 4096,
  rank: 16,
  headerBytes: 64 * 2 ** 10,
  depth: 64,
  // A part takes at least two bytes in the frame, and up to a hundred in memory.
  nodes: 2 ** 20,
};
