import type { Tensor } from 'onnxruntime-common';
import type { ServingSignature, TensorSignature } from '../../../index.js';
import { storageClasses } from '../../../internal.js';
import { FrameError } from '../wire/prelude.js';
import { listIn, oneOfIn, recordOf, stringIn, wholeIn } from '../wire/record-reader.js';

const MOST_TENSORS = 256;
const MOST_AXES = 64;
const TYPES = [...storageClasses.keys(), 'string'] as Tensor.Type[];
const NAME = /^[^]{0,256}$/;

/** @throws FrameError for a malformed signature */
export function readSignature(value: unknown): ServingSignature {
  const signature = recordOf(value, 'A signature');
  const tensorsIn = (name: string): readonly TensorSignature[] =>
    listIn(signature, name, MOST_TENSORS).map(readTensor);
  return {
    inputs: tensorsIn('inputs'),
    outputs: signature['outputs'] === undefined ? undefined : tensorsIn('outputs'),
  };
}

function readTensor(value: unknown): TensorSignature {
  const tensor = recordOf(value, 'A tensor in a signature');
  const shape = listIn(tensor, 'shape', MOST_AXES).map(readSize);
  return {
    name: stringIn(tensor, 'name', NAME),
    type: oneOfIn(tensor, 'type', TYPES),
    shape,
    batchAxis: tensor['batchAxis'] === null ? null : wholeIn(tensor, 'batchAxis', shape.length - 1),
  };
}

function readSize(value: unknown): number | string | null {
  if (
    value === null ||
    (typeof value === 'string' && NAME.test(value)) ||
    (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0)
  ) {
    return value;
  }
  throw new FrameError('A shape in a signature holds sizes, names and null');
}
