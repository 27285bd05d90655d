/** The limits of a frame. The sender checks them, too, before it sends anything. */
export interface WireLimits {
  /**
   * The bytes of a whole frame.
   *
   * @default 67108864
   */
  readonly bytes: number;
  /**
   * The number of tensors and typed arrays.
   *
   * @default 4096
   */
  readonly tensors: number;
  /**
   * The number of axes of a tensor.
   *
   * @default 16
   */
  readonly rank: number;
  /**
   * The bytes of the header.
   *
   * @default 65536
   */
  readonly headerBytes: number;
  /**
   * The nesting depth of lists and objects.
   *
   * @default 64
   */
  readonly depth: number;
  /**
   * The parts of a value: its lists, objects, numbers, strings and so on. Elements of tensors and
   * typed arrays are not counted.
   */
  readonly nodes: number;
}

export const defaultWireLimits: WireLimits = {
  bytes: 64 * 2 ** 20,
  tensors: 4096,
  rank: 16,
  headerBytes: 64 * 2 ** 10,
  depth: 64,
  // A part takes at least two bytes of the frame, and up to a hundred in memory.
  nodes: 2 ** 20,
};
