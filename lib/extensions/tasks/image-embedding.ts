import { InvalidServingError, type ServingDefinition, type TensorSignature } from '../../index.js';
import { flag, oneOf, type Rules } from '../../doors/options.js';
import {
  type ImageFacts,
  type ImageInput,
  ImageModel,
  type ImageTaskOptions,
} from './image-model.js';
import {
  finite,
  floatsOf,
  HIDDEN,
  normalized,
  outputOf,
  type Outputs,
  pool,
  type Pooling,
} from './outputs.js';

/** Vector of an image's content. */
export interface ImageEmbedding {
  /** Vector of length 1 (L2), unless the serving doesn't normalise. */
  readonly vector: Float32Array;
}

/** Options of {@link imageEmbedding} and of any serving. */
export interface ImageEmbeddingOptions extends ImageTaskOptions<ImageEmbedding> {
  /**
   * Pooling of `last_hidden_state`: its first vector, or the mean of all.
   *
   * @default the model's own vector: its output `image_embeds`, or else `pooler_output`
   */
  readonly pooling?: Extract<Pooling, 'cls' | 'mean'>;
  /**
   * Scales vectors to length 1 (L2).
   *
   * @default true
   */
  readonly normalize?: boolean;
}

const rules: Rules = { pooling: oneOf('cls', 'mean'), normalize: flag };

/** Outputs of models that pool by themselves. The first is for comparison with texts. */
const POOLED = ['image_embeds', 'pooler_output'];

/**
 * Serving that turns images into vectors of their content, such as by CLIP's image half. Threads of
 * libuv prepare images as preprocessor_config.json says.
 *
 * Needs `sharp`. Refuses to start if neither the model nor `pooling` makes one vector.
 *
 * @throws InvalidServingError for an invalid option
 */
export function imageEmbedding(
  options: ImageEmbeddingOptions,
): ServingDefinition<ImageInput, ImageEmbedding> {
  const { pooling, normalize = true } = options;
  const own: ImageModel<ImageEmbedding, void> = new ImageModel(
    'imageEmbedding',
    options,
    rules,
    async () => {},
    (outputs) => checkPooling(own.owner, pooling, outputs),
  );
  const definition: ServingDefinition<
    ImageInput,
    ImageEmbedding,
    Outputs,
    unknown,
    ImageFacts<void>
  > = {
    ...own.definition,
    async preprocess(input, { signature, facts }) {
      return { batch: await own.encode(input, signature!, facts) };
    },
    postprocess(outputs) {
      const name = POOLED.find((each) => Object.hasOwn(outputs, each));
      const hidden = pooling && outputOf(own.owner, outputs, ...HIDDEN);
      const vector = hidden
        ? pool(floatsOf(hidden), hidden.dims[1]!, pooling)
        : Float32Array.from(floatsOf(outputs[name!]!));
      finite(own.owner, vector);
      return { vector: normalize ? normalized(vector) : vector };
    },
  };
  return definition;
}

/** @throws InvalidServingError if nothing makes one vector */
function checkPooling(
  owner: string,
  pooling: Pooling | undefined,
  outputs: readonly TensorSignature[],
): void {
  const usable = outputs.filter(({ name, shape }) =>
    pooling
      ? HIDDEN.includes(name) && shape.length === 3
      : POOLED.includes(name) && shape.length === 2,
  );
  if (usable.length === 0) {
    const found = outputs.map(({ name, shape }) => `${name} [${shape.join()}]`).join(', ');
    const needed = pooling
      ? `${HIDDEN.join(' or ')} of the shape [batch, tokens, size]`
      : POOLED.join(' or ');
    const remedy = pooling
      ? 'leave out the option pooling, or use another model'
      : "look at the model card, and give the option pooling: 'cls' or 'mean'";
    throw new InvalidServingError(
      `${owner} reads the output ${needed}, and its model has ${found}; ${remedy}`,
    );
  }
}
