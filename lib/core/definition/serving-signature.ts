import type { Tensor } from 'onnxruntime-common';
import {
  describePort,
  type ModelPort,
  type ModelSignature,
} from '../partitions/onnx/model-signature.js';

/** One tensor of a serving's rows or results. */
export interface TensorSignature {
  /** The name in the model, or the path in a container; empty for a tensor without a name. */
  readonly name: string;
  /** Its elements' type. */
  readonly type: Tensor.Type;
  /**
   * Elements along each axis: a number is fixed, a text names a size that may vary, `null` is any
   * size.
   */
  readonly shape: readonly (number | string | null)[];
  /** The axis that counts rows; `null` for a tensor that a batch's rows share. */
  readonly batchAxis: number | null;
}

/**
 * The tensors that a serving's runner takes and returns: what `preprocess` gives and `postprocess`
 * gets, or, without them, what callers pass and receive.
 */
export interface ServingSignature {
  /** All inputs, in the model's or template's order. */
  readonly inputs: readonly TensorSignature[];
  /** The reply's outputs; `undefined` if only the inputs are declared. */
  readonly outputs: readonly TensorSignature[] | undefined;
}

/** The signature of what runs: a model's, or else that of the template, if there is one. */
export function signatureFor(
  { template }: { readonly template?: readonly ModelPort[] | undefined },
  model: ModelSignature | undefined,
): ServingSignature | undefined {
  return model ? signatureOfModel(model) : template && signatureOfTemplate(template);
}

export function signatureOfModel({ inputs, outputs, fetches }: ModelSignature): ServingSignature {
  const replied = outputs.filter(({ name }) => fetches.includes(name));
  return { inputs: inputs.map(tensorOf), outputs: replied.map(tensorOf) };
}

function signatureOfTemplate(ports: readonly ModelPort[]): ServingSignature {
  return { inputs: ports.map(tensorOf), outputs: undefined };
}

function tensorOf({ name, type, shape, batchAxis }: ModelPort): TensorSignature {
  return { name, type, shape: shape.map((size) => (isUnnamed(size) ? null : size)), batchAxis };
}

function isUnnamed(size: number | string): boolean {
  return size === '' || size === '?';
}

/** `image: float32[batch, 784]`, for logs. */
export function describeTensors(tensors: readonly TensorSignature[]): string {
  return tensors
    .map(({ shape, ...tensor }) =>
      describePort({ ...tensor, shape: shape.map((size) => size ?? '') }),
    )
    .join(', ');
}

/**
 * The first tensor that calls would miss or find changed, in words; undefined if the new signature
 * takes the same calls: it has the old names, types, ranks, batch axes and fixed sizes, and fixes
 * no size of an input that calls could choose.
 */
export function differenceOf(
  before: ServingSignature,
  after: ServingSignature,
): string | undefined {
  return (
    tensorDifference('input', before.inputs, after.inputs) ??
    tensorDifference('output', before.outputs ?? [], after.outputs ?? [])
  );
}

function tensorDifference(
  kind: 'input' | 'output',
  before: readonly TensorSignature[],
  after: readonly TensorSignature[],
): string | undefined {
  const added = after.find(({ name }) => before.every((tensor) => tensor.name !== name));
  if (added) {
    return `it has the ${kind} ${describeTensors([added])}, which the other has not`;
  }
  for (const tensor of before) {
    const same = after.find(({ name }) => name === tensor.name);
    if (!same) {
      return `it has no ${kind} ${describeTensors([tensor])}`;
    }
    if (same.type !== tensor.type || same.shape.length !== tensor.shape.length) {
      return `its ${kind} ${describeTensors([same])} was ${describeTensors([tensor])}`;
    }
    if (same.batchAxis !== tensor.batchAxis) {
      const [now, was] = [same, tensor].map(({ batchAxis }) => batchAxis ?? 'no axis');
      return `the rows of its ${kind} ${describeTensors([same])} lie on ${now}, and were on ${was}`;
    }
    if (
      tensor.shape.some(
        (size, axis) => !fits(kind, size, same.shape[axis]!, axis === tensor.batchAxis),
      )
    ) {
      return `its ${kind} ${describeTensors([same])} was ${describeTensors([tensor])}`;
    }
  }
  return undefined;
}

/** True if calls with the old size can use the new one. */
function fits(
  kind: 'input' | 'output',
  was: number | string | null,
  now: number | string | null,
  isBatchAxis: boolean,
): boolean {
  if (isBatchAxis || typeof now !== 'number' || was === now) {
    return true;
  }
  return kind === 'output' && typeof was !== 'number';
}
