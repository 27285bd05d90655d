import {
  describePort,
  type ModelPort,
  type ModelSignature,
  type ServingSignature,
  type TensorSignature,
} from '../partitions/model/model-signature.js';

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
    return `it has the additional ${kind} ${describeTensors([added])}`;
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
