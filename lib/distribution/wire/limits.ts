/**
 * What a frame may hold at most. Both sides keep to it: who sends more is told so before anything
 * leaves.
 */
export interface WireLimits {
  /** The bytes of a whole frame. */
  readonly bytes: number;
  /** Tensors and typed arrays. */
  readonly tensors: number;
  /** The axes of a tensor. */
  readonly rank: number;
  /** The bytes of the header, which says what the frame is about. */
  readonly headerBytes: number;
  /** How deep lists and objects may lie in each other. */
  readonly depth: number;
  /**
   * The parts of a value: its lists, objects, numbers, strings and so on; the elements of tensors
   * and typed arrays are none.
   */
  readonly nodes: number;
}

export const defaultWireLimits: WireLimits = {
  bytes: 64 * 2 ** 20,
  tensors: 4096,
  rank: 16,
  headerBytes: 64 * 2 ** 10,
  depth: 64,
  // A part takes two bytes of the frame or more, and up to a hundred in memory.
  nodes: 2 ** 20,
};
