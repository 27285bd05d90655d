import type { ServingDefinition } from '../../index.js';
import {
  type ImageFacts,
  type ImageInput,
  ImageModel,
  type ImageTaskOptions,
} from './image-model.js';
import {
  bestOf,
  scoresOf,
  type LabelFacts,
  type LabelOptions,
  labelRules,
  type LabelScore,
  labelFactsIn,
  readLogits,
} from './labels.js';
import type { Outputs } from './outputs.js';

/** Options of {@link imageClassification} and of any serving. */
export interface ImageClassificationOptions
  extends ImageTaskOptions<readonly LabelScore[]>, LabelOptions {}

/**
 * Serving that gives images labels with scores, best first, by a model for image classification.
 * Threads of libuv prepare images as preprocessor_config.json says.
 *
 * Needs `sharp`. Refuses to start if it can't prepare the model's images.
 *
 * @throws InvalidServingError for an invalid option
 */
export function imageClassification(
  options: ImageClassificationOptions,
): ServingDefinition<ImageInput, readonly LabelScore[]> {
  const own: ImageModel<readonly LabelScore[], LabelFacts> = new ImageModel(
    'imageClassification',
    options,
    labelRules,
    labelFactsIn(options),
    (outputs, facts) => void readLogits(own.owner, outputs, facts),
  );
  const definition: ServingDefinition<
    ImageInput,
    readonly LabelScore[],
    Outputs,
    unknown,
    ImageFacts<LabelFacts>
  > = {
    ...own.definition,
    async preprocess(input, { signature, facts }) {
      return { batch: await own.encode(input, signature!, facts) };
    },
    postprocess: (outputs, { facts }) => bestOf(scoresOf(own.owner, outputs, facts.own), options),
  };
  return definition;
}
