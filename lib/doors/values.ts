export { flatten, isPlainObject } from '../core/batch/container.js';
export type { LeafRows } from '../core/batch/tensor-rows.js';
export {
  blankOf,
  checkTensor,
  elementSize,
  isTensor,
  numberOfFloat16,
  storageClasses,
  Tensor,
  zerosOf,
} from '../core/batch/tensor.js';
export { isFixed } from '../core/partitions/worker/transfer.js';
